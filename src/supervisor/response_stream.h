// The connection thread's end of a request (api::ResponseStream): reads the buffer; destroyed
// before the end, it cancels the request. Confined to one thread.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "api/service.h"
#include "supervisor/response_buffer.h"

namespace tandem {

class BufferedStream : public api::ResponseStream {
 public:
  BufferedStream(std::shared_ptr<ResponseBuffer> buffer, std::function<void()> cancel)
      : buffer_(std::move(buffer)), cancel_(std::move(cancel)) {}
  ~BufferedStream() override {
    if (!buffer_->has_ended()) cancel_();
  }
  BufferedStream(const BufferedStream&) = delete;
  BufferedStream& operator=(const BufferedStream&) = delete;
  api::StreamEvent next(std::chrono::milliseconds wait) override { return buffer_->next(wait); }

 private:
  std::shared_ptr<ResponseBuffer> buffer_;
  std::function<void()> cancel_;
};

}  // namespace tandem
