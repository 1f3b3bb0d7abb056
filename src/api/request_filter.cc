#include "api/request_filter.h"

#include "base/file_io.h"
#include "base/log.h"

namespace tandem::api {

RequestFilter::RequestFilter(const Config& config)
    : file_(config.filter_deny_list_file), all_clients_(config.filter_all_clients) {}

Status RequestFilter::reload() {
  if (file_.empty()) return ok_status();
  const auto text = read_file(file_);
  if (!text.ok()) return {text.status().code(), "filter.deny_list_file: " + text.status().message()};
  CHECK_ASSIGN(auto list, DenyList::parse(*text, file_));
  log_info("deny list read", {{"file", file_}, {"rules", static_cast<uint64_t>(list->n_rules())}});
  std::lock_guard lock(mutex_);
  list_ = std::move(list);
  return ok_status();
}

bool RequestFilter::applies_to(const HttpRequest& http) const {
  return !file_.empty() && http.is_filtered.value_or(all_clients_);
}

std::optional<ApiError> RequestFilter::check(const HttpRequest& http, std::string_view text, const std::string& param) const {
  std::shared_ptr<const DenyList> list;
  {
    std::lock_guard lock(mutex_);
    list = list_;
  }
  if (list == nullptr) return std::nullopt;
  auto match = list->find(text);
  if (!match) return std::nullopt;
  log_info("request filtered", {{"request_id", http.id}, {"rule_line", match->line}, {"is_exhausted", match->is_exhausted}});
  return api_error("request_filtered", "the request was refused by this server's filter", param);
}

}  // namespace tandem::api
