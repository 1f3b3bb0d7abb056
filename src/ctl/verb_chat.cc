// tandem chat: one question from the arguments, or a conversation from stdin; the answer is printed
// as it comes.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "ctl/chat_answer.h"
#include "ctl/http_client.h"
#include "ctl/terminal_text.h"
#include "ctl/tool_process.h"
#include "ctl/verbs.h"

namespace tandem::ctl {

namespace {

using Json = nlohmann::json;

Json body_of(const ChatOptions& options, const Json& messages) {
  Json body = {{"messages", messages}, {"stream", true}};
  if (options.max_tokens) body["max_tokens"] = *options.max_tokens;
  if (options.temperature) body["temperature"] = *options.temperature;
  if (options.seed) body["seed"] = *options.seed;
  return body;
}

// Asks, prints and appends the answer to `messages`.
Status ask(const ChatOptions& options, Json* messages) {
  ChatAnswer answer;
  const bool is_terminal = isatty(STDOUT_FILENO);
  std::string body;
  try {  // dump() throws on text that is not UTF-8
    body = body_of(options, *messages).dump();
  } catch (const Json::exception&) {
    return invalid_argument("the prompt is not valid UTF-8");
  }
  CHECK_ASSIGN(const HttpAnswer reply,
               http_post(options.server, "/v1/chat/completions", body, [&](std::string_view bytes) {
                 std::string piece = answer.feed(bytes);
                 if (is_terminal) piece = terminal_text(piece, '?', "\n\t");
                 std::fwrite(piece.data(), 1, piece.size(), stdout);
                 std::fflush(stdout);
                 return answer.error().empty();
               }));
  if (reply.status != 200) return unavailable(describe_refusal(reply));
  std::fputs("\n", stdout);
  std::fflush(stdout);
  if (!answer.error().empty()) return unavailable("the answer broke off: " + answer.error());
  if (!answer.is_done()) return unavailable("the answer broke off: the stream ended early");
  if (answer.finish_reason() == "length") std::fputs("[cut: the token limit was reached]\n", stderr);
  messages->push_back({{"role", "assistant"}, {"content", answer.text()}});
  return {};
}

int fail(const Status& status) {
  std::fprintf(stderr, "tandem chat: %s\n", status.message().c_str());
  return 1;
}

int ask_once(const ChatOptions& options, Json* messages, const std::string& prompt) {
  messages->push_back({{"role", "user"}, {"content", prompt}});
  const Status status = ask(options, messages);
  return status.ok() ? 0 : fail(status);
}

// A line a turn until the input ends. At a terminal a failed turn is taken back and the talk goes
// on.
int converse(const ChatOptions& options, Json* messages) {
  const bool is_terminal = isatty(STDIN_FILENO);
  if (is_terminal)
    std::fprintf(stderr, "Talking to %s; Ctrl-D ends.\n", options.server.url.c_str());
  int code = 0;
  for (std::string line; (is_terminal && std::fputs("> ", stderr)), std::getline(std::cin, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    code = ask_once(options, messages, line);
    if (code == 0) continue;
    if (!is_terminal) return code;
    messages->erase(messages->size() - 1);
  }
  if (is_terminal) std::fputs("\n", stderr);
  return code;
}

}  // namespace

int verb_chat(const ChatOptions& options) {
  Json messages = Json::array();
  if (!options.system.empty())
    messages.push_back({{"role", "system"}, {"content", options.system}});
  if (options.prompt.empty()) return converse(options, &messages);
  if (options.prompt.size() == 1 && options.prompt[0] == "-") {
    const auto text = read_stdin();
    return text.ok() ? ask_once(options, &messages, *text) : fail(text.status());
  }
  return ask_once(options, &messages, fmt::format("{}", fmt::join(options.prompt, " ")));
}

}  // namespace tandem::ctl
