// tandem degrade: an operator's hand on the ladder of a running server.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "ctl/http_client.h"
#include "ctl/json_read.h"
#include "ctl/verbs.h"

namespace tandem::ctl {

namespace {

Result<std::string> pin(const DegradeOptions& options) {
  const nlohmann::json body = {{"rung", options.rung}, {"pin", options.pin}};
  std::string text;
  CHECK_ASSIGN(const HttpAnswer answer,
               http_post(options.server, "/admin/degrade", body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
                         [&](std::string_view data) { return text.append(data), true; }));
  if (answer.status != 200) return unavailable(describe_refusal(answer));
  return JsonDocument(text).text("done").value_or("done");
}

}  // namespace

int verb_degrade(const DegradeOptions& options) {
  const auto done = pin(options);
  if (done.ok()) return std::puts(done->c_str()), 0;
  std::fprintf(stderr, "tandem degrade: %s\n", done.status().message().c_str());
  return 1;
}

}  // namespace tandem::ctl
