// Renders and tokenizes new prompts, one after the other, on a thread of its own: 8 MB of text take more than
// a second, which no running stream is to notice.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <variant>

#include "worker/mailbox.h"
#include "worker/prepare.h"

namespace tandem {

class TextThread {
 public:
  // The model's tokenizer and template outlive it. Answers go to the mailbox.
  TextThread(TextModel model, Mailbox* mailbox);
  ~TextThread();  // drops what waits
  // Thread-safe. Beyond kMaxWaiting the answer is a refusal.
  void add(ipc::Prepare request);
  void add(ipc::Detokenize request);

 private:
  static constexpr size_t kMaxWaiting = 256;  // the supervisor has 64 under way at most
  using Job = std::variant<ipc::Prepare, ipc::Detokenize>;
  bool enqueue(Job job);
  void run();

  const TextModel model_;
  Mailbox* const mailbox_;
  std::mutex mutex_;  // guards jobs_, is_stopping_
  std::condition_variable arrived_;
  std::deque<Job> jobs_;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace tandem
