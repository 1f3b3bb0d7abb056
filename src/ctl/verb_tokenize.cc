// tandem tokenize: ids and pieces of a text, by the model's own vocabulary.
#include <cstdio>

#include "ctl/tool_process.h"
#include "ctl/verbs.h"

namespace tandem::ctl {

namespace {

Result<UniqueFd> text_of(const TokenizeOptions& options) {
  if (options.text != "-") return text_descriptor(options.text);
  CHECK_ASSIGN(const std::string text, read_stdin());
  return text_descriptor(text);
}

}  // namespace

int verb_tokenize(const TokenizeOptions& options) {
  auto text = text_of(options);
  if (!text.ok())
    return std::fprintf(stderr, "tandem tokenize: %s\n", text.status().message().c_str()), 1;
  std::vector<std::string> arguments;
  if (options.ids_only) arguments.push_back("--ids");
  if (options.no_special) arguments.push_back("--no-special");
  if (options.parse_special) arguments.push_back("--parse-special");
  return run_worker_tool("tokenize", {options.model, std::move(text).value()}, arguments);
}

}  // namespace tandem::ctl
