// A file of settings. First byte: which; rest: the file; of a deny-list the text to search follows a NUL.
#include <algorithm>

#include "admission/degrade_ladder.h"
#include "api/deny_list.h"
#include "api/keys.h"
#include "base/config.h"
#include "base/cpu_list.h"
#include "ctl/toml_edit.h"
#include "fuzz_target.h"
#include "tokenizer/utf8.h"

namespace {

using namespace tandem;

// What was accepted, written out and read again, is the same.
void check_config(const std::string& text) {
  Config config;
  if (!config_load_text(text, "f", &config).ok()) return;
  const std::string once = config_to_toml(config);
  Config again;
  FUZZ_REQUIRE(config_load_text(once, "f", &again).ok());
  FUZZ_REQUIRE(config_to_toml(again) == once);
  (void)config_validate(config);
}

void check_ladder(const std::string& text) {
  const auto ladder = parse_ladder(text, "f");
  if (!ladder.ok()) return;
  FUZZ_REQUIRE(ladder->rungs.size() <= kNumRungs);
  for (const Rung& rung : ladder->rungs) {
    FUZZ_REQUIRE(!rung.causes.empty() && rung.leave >= 0 && rung.leave < rung.enter && rung.enter <= 1);
    FUZZ_REQUIRE(rung.hold_us >= 0 && rung.leave_hold_us >= 0 && rung.dwell_us >= 1'000'000);
    FUZZ_REQUIRE((rung.kind == RungKind::kTokens) == (rung.max_tokens > 0));
  }
}

void check_deny_list(std::string_view bytes) {
  const size_t nul = std::min(bytes.find('\0'), bytes.size());
  const std::string file(bytes.substr(0, nul));
  const std::string_view text = bytes.substr(std::min(nul + 1, bytes.size()));
  const auto list = api::DenyList::parse(file, "f");
  if (!list.ok() || utf8_valid_prefix(text) != text.size()) return;
  const auto match = (*list)->find(text);
  FUZZ_REQUIRE((*list)->n_rules() > 0 || !match);
  if (match) FUZZ_REQUIRE(match->line >= 1 && match->line <= 1 + std::count(file.begin(), file.end(), '\n'));
}

void check_keys(const std::string& text, bool is_admin) {
  const auto keys = api::parse_key_file(text, "f", is_admin);
  if (!keys.ok()) {
    FUZZ_REQUIRE(keys.status().message().size() < 300);  // a line's text is not in it
    return;
  }
  for (const auto& key : *keys) {
    FUZZ_REQUIRE(is_admin || !key.name.empty());
    FUZZ_REQUIRE(key.limit.max_running >= 0 && key.limit.max_per_minute >= 0);
  }
}

void check_cpu_lists(const std::string& text) {
  if (const auto cpus = parse_cpu_list(text); cpus.ok()) {
    FUZZ_REQUIRE(!cpus->empty() && cpus->front() >= 0 && cpus->back() <= 1023);
    FUZZ_REQUIRE(std::is_sorted(cpus->begin(), cpus->end()));
  }
  if (const auto lists = split_cpu_lists(text, 3); lists.ok()) FUZZ_REQUIRE(lists->size() == 3);
}

// `tandem configure listen`: the key is as asked, all others as they were.
void check_edit(const std::string& text) {
  const auto edited = ctl::with_toml_key(text, "f", "server", "listen", "\"127.0.0.1:80\"");
  Config before, after;
  if (!edited.ok() || !config_load_text(text, "f", &before).ok()) return;
  FUZZ_REQUIRE(config_load_text(*edited, "f", &after).ok());
  FUZZ_REQUIRE(after.server_listen == "127.0.0.1:80");
  before.server_listen = after.server_listen;
  FUZZ_REQUIRE(config_to_toml(before) == config_to_toml(after));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::fuzz::planted_fault(data, size);
  if (size == 0) return 0;
  const std::string_view bytes = tandem::fuzz::view(data + 1, size - 1);
  const std::string text(bytes);
  switch (data[0] % 7) {
    case 0: check_config(text); break;
    case 1: check_ladder(text); break;
    case 2: check_deny_list(bytes); break;
    case 3: check_keys(text, false); break;
    case 4: check_keys(text, true); break;
    case 5: check_cpu_lists(text); break;
    default: check_edit(text); break;
  }
  return 0;
}
