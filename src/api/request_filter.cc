#include "api/request_filter.h"

#include <cerrno>
#include <fstream>
#include <sstream>

#include "base/log.h"

namespace tandem::api {

RequestFilter::RequestFilter(const Config& config)
    : file_(config.filter_deny_list_file), all_clients_(config.filter_all_clients) {}

Status RequestFilter::reload() {
  if (file_.empty()) return ok_status();
  std::ifstream in(file_);
  if (!in) return errno_status(errno, "cannot read filter.deny_list_file " + file_);
  std::ostringstream text;
  text << in.rdbuf();
  CHECK_ASSIGN(auto list, DenyList::parse(text.str(), file_));
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
