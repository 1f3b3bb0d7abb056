// RequestLog in memory, linked instead of requestlog/'s: these tests count rows, not transactions.
#include <mutex>

#include "requestlog/request_log.h"

namespace tandem {

struct RequestLog::Impl {
  std::mutex mutex;
  std::vector<ipc::RequestRecord> rows;
};

RequestLog::RequestLog() : impl_(std::make_unique<Impl>()) {}
RequestLog::~RequestLog() = default;
std::unique_ptr<RequestLog> RequestLog::open(RequestLogOptions) {
  return std::unique_ptr<RequestLog>(new RequestLog);
}
void RequestLog::append(ipc::RequestRecord record) {
  std::lock_guard lock(impl_->mutex);
  impl_->rows.push_back(std::move(record));
}
void RequestLog::flush() {}
Result<std::vector<ipc::RequestRecord>> RequestLog::query(const ipc::RecordQuery&) const {
  std::lock_guard lock(impl_->mutex);
  return std::vector<ipc::RequestRecord>(impl_->rows.rbegin(), impl_->rows.rend());
}
RequestLogCounters RequestLog::counters() const {
  std::lock_guard lock(impl_->mutex);
  return {impl_->rows.size(), 0, impl_->rows.size() * sizeof(ipc::RequestRecord), 0};
}
Status RequestLog::status() const { return ok_status(); }

}  // namespace tandem
