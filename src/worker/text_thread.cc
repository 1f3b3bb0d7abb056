#include "worker/text_thread.h"

namespace tandem {
namespace {
constexpr const char* kTooMany = "too many prompts wait to be tokenized; try again";
}

TextThread::TextThread(TextModel model, Mailbox* mailbox)
    : model_(std::move(model)), mailbox_(mailbox), thread_([this] { run(); }) {}

TextThread::~TextThread() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  arrived_.notify_one();
  thread_.join();
}

void TextThread::add(ipc::Prepare request) {
  ipc::PrepareReply refusal;
  refusal.id = request.id;
  refusal.error_code = "invalid_prompt";
  refusal.error = kTooMany;
  if (!enqueue(std::move(request))) mailbox_->post_message(std::move(refusal));
}

void TextThread::add(ipc::Detokenize request) {
  ipc::DetokenizeReply refusal;
  refusal.id = request.id;
  refusal.error = kTooMany;
  if (!enqueue(std::move(request))) mailbox_->post_message(std::move(refusal));
}

bool TextThread::enqueue(Job job) {
  {
    std::lock_guard lock(mutex_);
    if (jobs_.size() >= kMaxWaiting) return false;
    jobs_.push_back(std::move(job));
  }
  arrived_.notify_one();
  return true;
}

void TextThread::run() {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      arrived_.wait(lock, [&] { return is_stopping_ || !jobs_.empty(); });
      if (is_stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    if (const auto* p = std::get_if<ipc::Prepare>(&job)) {
      mailbox_->post_message(prepare(*p, model_));
    } else {
      mailbox_->post_message(detokenize(std::get<ipc::Detokenize>(job), model_));
    }
  }
}

}  // namespace tandem
