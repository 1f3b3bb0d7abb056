// tandem status: the facts of the status page in a terminal.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "ctl/http_client.h"
#include "ctl/status_text.h"
#include "ctl/verbs.h"

namespace tandem::ctl {

namespace {

constexpr auto kPeriod = std::chrono::seconds(2);

Result<std::string> fetch(const StatusOptions& options) {
  CHECK_ASSIGN(const HttpAnswer answer, http_get(options.server, "/status.json"));
  if (answer.status != 200) return unavailable(describe_refusal(answer));
  if (options.json) return answer.body + "\n";
  return status_text(answer.body);
}

// False: stdout is closed (`tandem status --watch | head`).
bool print(const std::string& text, bool clears) {
  if (clears) std::fputs("\033[H\033[2J", stdout);
  std::fputs(text.c_str(), stdout);
  return std::fflush(stdout) == 0;
}

}  // namespace

int verb_status(const StatusOptions& options) {
  const bool is_screen = options.watch && !options.json && isatty(STDOUT_FILENO) != 0;
  while (true) {
    const auto text = fetch(options);
    if (!text.ok()) {
      std::fprintf(stderr, "tandem status: %s\n", text.status().message().c_str());
      if (!options.watch) return 1;
    } else if (!print(*text, is_screen)) {
      return 1;
    }
    if (!options.watch) return 0;
    std::this_thread::sleep_for(kPeriod);
  }
}

}  // namespace tandem::ctl
