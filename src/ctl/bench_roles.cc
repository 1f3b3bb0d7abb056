#include "ctl/bench_roles.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "ctl/http_client.h"
#include "ctl/json_read.h"
#include "ctl/programs.h"
#include "ctl/sse_parser.h"

extern char** environ;

namespace tandem::ctl {

namespace {

using Json = nlohmann::json;
constexpr int kReadyTries = 1200;  // of 50 ms: a large model's first start repacks it

// A tandemd of its own in a scratch folder; ended with this.
class Server {
 public:
  static Result<std::unique_ptr<Server>> start(const BenchOptions& options, const std::vector<std::string>& settings);
  ~Server() {
    if (pid_ > 0) kill(pid_, SIGTERM), waitpid(pid_, nullptr, 0);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  const ServerOptions& options() const { return server_; }
  Result<JsonDocument> status() const {
    CHECK_ASSIGN(HttpAnswer answer, http_get(server_, "/status.json"));
    JsonDocument json(answer.body);
    if (!json.is_object()) return data_loss("/status.json is not JSON");
    return json;
  }

 private:
  Status wait_until_ready() const;
  pid_t pid_ = -1;
  std::string folder_;
  ServerOptions server_;
};

Result<std::string> read_address(int fd) {
  std::string text;
  char c = 0;
  while (read(fd, &c, 1) == 1 && c != '\n') text += c;
  const std::string mark = "address=";
  if (text.find(mark) == std::string::npos) return unavailable("tandemd did not start; its reason is above");
  return "http://" + text.substr(text.find(mark) + mark.size());
}

Result<std::unique_ptr<Server>> Server::start(const BenchOptions& options, const std::vector<std::string>& settings) {
  CHECK_ASSIGN(std::string program, find_tandemd());
  auto server = std::make_unique<Server>();
  char name[] = "/tmp/tandem-bench-XXXXXX";
  if (mkdtemp(name) == nullptr) return errno_status(errno, "cannot make a folder in /tmp");
  server->folder_ = name;
  ServeOptions serve;
  serve.model = options.model, serve.state_dir = name, serve.port = 0;
  serve.settings = {"log.level=error", "cpu.force_isa=" + options.force_isa, "cpu.threads=" + std::to_string(options.threads),
                    "batch.prefill_chunk_tokens=" + std::to_string(std::max(16, options.chunk))};
  serve.settings.insert(serve.settings.end(), settings.begin(), settings.end());
  serve.settings.insert(serve.settings.end(), options.settings.begin(), options.settings.end());
  std::vector<std::string> arguments = tandemd_arguments(serve);
  arguments.insert(arguments.begin(), program);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return errno_status(errno, "cannot make a pipe");
  UniqueFd out(ends[0]), in(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.get(), STDOUT_FILENO);
  const int err = posix_spawn(&server->pid_, program.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (err != 0) return errno_status(err, "cannot start " + program);
  in.reset();
  CHECK_ASSIGN(server->server_.url, read_address(out.get()));
  CHECK_OK(server->wait_until_ready());
  return server;
}

Status Server::wait_until_ready() const {
  std::string last;
  for (int i = 0; i < kReadyTries; ++i) {
    auto answer = http_get(server_, "/ready");
    if (answer.ok() && answer->status == 200) return ok_status();
    last = answer.ok() ? answer->body : answer.status().message();
    if (last.find("\"dead\"") != std::string::npos) break;
    usleep(50'000);
  }
  return unavailable("the model is not ready: " + last);
}

struct Times {
  std::vector<double> first_ms, gap_ms;
  int64_t n_tokens = 0;
  std::string error;
};

// One client: requests one after the other, each a prompt of its own.
void run_client(const Server& server, const BenchOptions& o, int client, int64_t vocab_size, Times* all, std::mutex* mutex) {
  for (int n = 0; n < o.repeat; ++n) {
    std::vector<int> ids;
    for (int i = 0; i < o.prompt; ++i)
      ids.push_back(static_cast<int>((static_cast<uint64_t>(client * 1000 + n + 1) * 2654435761u + static_cast<uint64_t>(i) * 40503u) %
                                     static_cast<uint64_t>(vocab_size)));
    const Json body = {{"prompt", ids}, {"max_tokens", o.gen}, {"temperature", 0}, {"ignore_eos", true},
                       {"stream", true}, {"logprobs", 0}};
    SseParser parser;
    Times mine;
    const int64_t start = monotonic_us();
    int64_t last = start;
    auto answer = http_post(server.options(), "/v1/completions", body.dump(), [&](std::string_view bytes) {
      for (const std::string& payload : parser.feed(bytes)) {
        const JsonDocument event(payload);
        if (auto error = event.error()) mine.error = *error;
        for (const JsonPart& choice : event.list("choices")) {
          const size_t n_tokens = choice.list("logprobs.tokens").size();
          if (n_tokens == 0) continue;
          mine.n_tokens += static_cast<int64_t>(n_tokens);
          const int64_t now = monotonic_us();
          (last == start ? mine.first_ms : mine.gap_ms).push_back(static_cast<double>(now - last) / 1000);
          last = now;
        }
      }
      return true;
    });
    if (!answer.ok()) mine.error = answer.status().message();
    else if (answer->status != 200) mine.error = describe_refusal(*answer);
    std::lock_guard lock(*mutex);
    all->first_ms.insert(all->first_ms.end(), mine.first_ms.begin(), mine.first_ms.end());
    all->gap_ms.insert(all->gap_ms.end(), mine.gap_ms.begin(), mine.gap_ms.end());
    all->n_tokens += mine.n_tokens;
    if (!mine.error.empty()) all->error = mine.error;
  }
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

Result<Json> run_shape(const BenchOptions& options, const std::string& name, const std::vector<std::string>& settings,
                       const std::vector<int>& batches) {
  CHECK_ASSIGN(auto server, Server::start(options, settings));
  CHECK_ASSIGN(JsonDocument before, server->status());
  const int64_t vocab_size = before.count("model.vocab_size");
  if (vocab_size < 1) return data_loss("the server does not tell its vocabulary's size");
  Json rows = Json::array();
  auto handoff = [](const JsonPart& status) {
    double bytes = 0, seconds = 0;
    for (const JsonPart& w : status.list("workers"))
      bytes += w.number("bytes_imported").value_or(0), seconds += w.number("import_seconds").value_or(0);
    return std::pair(bytes, seconds);
  };
  for (int batch : batches) {
    CHECK_ASSIGN(before, server->status());
    Times times;
    std::mutex mutex;
    std::vector<std::thread> clients;
    const int64_t start = monotonic_us();
    for (int c = 0; c < batch; ++c)
      clients.emplace_back([&, c] { run_client(*server, options, c + batch * 100, vocab_size, &times, &mutex); });
    for (std::thread& client : clients) client.join();
    const double seconds = static_cast<double>(monotonic_us() - start) / 1e6;
    if (!times.error.empty()) return unavailable(name + ", " + std::to_string(batch) + " clients: " + times.error);
    usleep(600'000);  // two heartbeats: the counters are complete
    CHECK_ASSIGN(const JsonDocument after, server->status());
    auto [bytes0, copy0] = handoff(before);
    auto [bytes1, copy1] = handoff(after);
    const double bytes = bytes1 - bytes0, copy_s = copy1 - copy0;
    rows.push_back({{"shape", name}, {"clients", batch},
                    {"output_tokens_per_s", static_cast<double>(times.n_tokens) / seconds},
                    {"ttft_ms_p50", quantile(times.first_ms, 0.5)}, {"ttft_ms_max", quantile(times.first_ms, 1)},
                    {"inter_token_ms_p50", quantile(times.gap_ms, 0.5)}, {"inter_token_ms_p99", quantile(times.gap_ms, 0.99)},
                    {"inter_token_ms_max", quantile(times.gap_ms, 1)},
                    {"handoff_bytes", bytes}, {"handoff_bytes_per_s", copy_s > 0 ? bytes / copy_s : 0.0}});
  }
  return rows;
}

void print_rows(const Json& rows) {
  std::printf("%-22s %7s %9s %10s %10s %9s %9s %9s %12s %9s\n", "shape", "clients", "out tok/s", "ttft p50", "ttft max",
              "gap p50", "gap p99", "gap max", "handoff MB", "GB/s");
  for (const Json& r : rows) {
    auto number = [&](const char* key) { return r.value(key, 0.0); };
    std::printf("%-22s %7d %9.1f %8.1fms %8.1fms %7.2fms %7.2fms %7.2fms %12.1f %9.2f\n", r.value("shape", "").c_str(),
                r.value("clients", 0), number("output_tokens_per_s"), number("ttft_ms_p50"), number("ttft_ms_max"),
                number("inter_token_ms_p50"), number("inter_token_ms_p99"), number("inter_token_ms_max"),
                number("handoff_bytes") / 1e6, number("handoff_bytes_per_s") / 1e9);
  }
}

Status run(const BenchOptions& options) {
  CHECK_ASSIGN(std::vector<std::string> settings, role_settings(options.roles));
  std::vector<int> batches;
  for (size_t begin = 0; begin <= options.batches.size();) {
    const size_t comma = std::min(options.batches.find(',', begin), options.batches.size());
    const std::string item = options.batches.substr(begin, comma - begin);
    int n = 0;
    auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), n);
    if (error != std::errc() || end != item.data() + item.size() || n < 1 || n > 256)
      return invalid_argument("--batch must be numbers of clients from 1 to 256 like 1,8, got \"" + options.batches + "\"");
    batches.push_back(n);
    begin = comma + 1;
  }
  CHECK_ASSIGN(Json rows, run_shape(options, "both:1", {}, batches));
  CHECK_ASSIGN(Json apart, run_shape(options, options.roles, settings, batches));
  rows.insert(rows.end(), apart.begin(), apart.end());
  if (options.json) std::printf("%s\n", rows.dump(2).c_str());
  else print_rows(rows);
  return ok_status();
}

}  // namespace

Result<std::vector<std::string>> role_settings(const std::string& roles) {
  std::vector<std::string> settings;
  bool has_both = false;
  for (size_t begin = 0; begin <= roles.size();) {
    const size_t comma = std::min(roles.find(',', begin), roles.size());
    const std::string item = roles.substr(begin, comma - begin);
    const size_t colon = std::min(item.find(':'), item.size());
    const std::string role = item.substr(0, colon), count = item.substr(std::min(colon + 1, item.size()));
    int n = 0;
    auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), n);
    const bool is_role = role == "both" || role == "prefill" || role == "decode";
    if (!is_role || error != std::errc() || end != count.data() + count.size() || n < 1 || n > 16)
      return invalid_argument("--roles must be both|prefill|decode with counts from 1 to 16 like prefill:1,decode:1, got \"" +
                              roles + "\"");
    has_both = has_both || role == "both";
    settings.push_back("workers." + role + "=" + std::to_string(n));
    begin = comma + 1;
  }
  if (!has_both) settings.push_back("workers.both=0");
  return settings;
}

int bench_roles(const BenchOptions& options) {
  Status status = run(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "tandem bench: %s\n", status.message().c_str());
  return status.code() == StatusCode::kInvalidArgument ? 2 : 1;
}

}  // namespace tandem::ctl
