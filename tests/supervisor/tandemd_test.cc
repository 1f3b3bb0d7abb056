// The real program with the fake worker, over real sockets: start line, bad configurations,
// signals.
#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "box.h"

using namespace tandem;

namespace {

class Daemon {
 public:
  explicit Daemon(const std::vector<std::string>& settings,
                  const std::string& script = "step_us=2000") {
    char name[] = "/tmp/tandemd_test_XXXXXX";
    dir = mkdtemp(name);
    std::ofstream(dir + "/m.gguf") << script << "\n";
    std::vector<std::string> args = {TANDEMD_PATH};
    auto set = [&](const std::string& s) { args.push_back("--set"), args.push_back(s); };
    set(std::string("workers.libexec_dir=") + TANDEM_FAKE_WORKER_DIR);
    set("paths.state_dir=" + dir + "/state/deep"), set("paths.cache_dir=" + dir + "/cache");
    set("server.listen=127.0.0.1:0"), set("model.path=" + dir + "/m.gguf"), set("log.flush_ms=20");
    for (const std::string& s : settings) set(s);
    int out[2];
    REQUIRE(pipe(out) == 0);
    pid = fork();
    if (pid == 0) {
      dup2(out[1], 1), close(out[0]), close(out[1]);
      (void)!freopen((dir + "/log").c_str(), "w", stderr);
      std::vector<char*> argv;
      for (std::string& a : args) argv.push_back(a.data());
      argv.push_back(nullptr);
      execv(TANDEMD_PATH, argv.data());
      _exit(127);
    }
    close(out[1]);
    char text[400];
    for (ssize_t n;
         stdout_text.find('\n') == std::string::npos && (n = read(out[0], text, sizeof text)) > 0;)
      stdout_text.append(text, static_cast<size_t>(n));
    stdout_fd.reset(out[0]);
    size_t colon = stdout_text.rfind(':');
    if (colon != std::string::npos) port = std::atoi(stdout_text.c_str() + colon + 1);
  }
  ~Daemon() {
    if (!is_over) wait(SIGKILL);
    std::filesystem::remove_all(dir);
  }
  int wait(int sig) {
    if (sig != 0) kill(pid, sig);
    int status = 0;
    waitpid(pid, &status, 0);
    is_over = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string log() {
    std::ifstream in(dir + "/log");
    return {std::istreambuf_iterator<char>(in), {}};
  }
  UniqueFd send(const std::string& method, const std::string& path, const std::string& body = "") {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in a{};
    a.sin_family = AF_INET, a.sin_port = htons(static_cast<uint16_t>(port)),
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&a), sizeof a) != 0) return UniqueFd();
    std::string text =
        method + " " + path +
        " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n" +
        "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    if (::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0) return UniqueFd();
    return fd;
  }
  static std::string rest(const UniqueFd& fd) {
    std::string all;
    char text[4096];
    for (ssize_t n; (n = recv(fd.get(), text, sizeof text, 0)) > 0;)
      all.append(text, static_cast<size_t>(n));
    return all;
  }
  std::string ask(const std::string& method, const std::string& path,
                  const std::string& body = "") {
    return rest(send(method, path, body));
  }
  bool is_ready() { return ask("GET", "/ready").find(" 200 ") != std::string::npos; }

  std::string dir, stdout_text;
  UniqueFd stdout_fd;
  pid_t pid = -1;
  int port = 0;
  bool is_over = false;
};

std::string content(const std::string& sse) {
  std::string text;
  for (size_t at = 0; (at = sse.find("\"text\":\"", at)) != std::string::npos;) {
    at += 8;
    text += sse.substr(at, sse.find('"', at) - at);
  }
  return text;
}
const char* kLong =
    R"({"prompt":"hello","max_tokens":400,"ignore_eos":true,"temperature":0,"seed":1,"stream":true})";

}  // namespace

TEST_CASE("tandemd: one start line, a stream over a killed worker, reload, drain, exit 0") {
  Daemon d({});
  CHECK(d.stdout_text == "listening address=127.0.0.1:" + std::to_string(d.port) + "\n");
  REQUIRE(wait_until([&] { return d.is_ready(); }));
  std::string whole = d.ask("POST", "/v1/completions", kLong);
  REQUIRE(whole.find("[DONE]") != std::string::npos);
  UniqueFd stream = d.send("POST", "/v1/completions", kLong);
  usleep(200'000);
  std::string status = d.ask("GET", "/status.json");
  REQUIRE(kill(static_cast<pid_t>(std::atoi(status.c_str() + status.find("\"pid\":") + 6)),
               SIGKILL) == 0);
  std::string resumed = Daemon::rest(stream);
  CHECK(content(resumed) == content(whole));
  CHECK(resumed.find("[DONE]") != std::string::npos);
  kill(d.pid, SIGHUP);
  CHECK(wait_until([&] { return d.log().find("reloaded") != std::string::npos; }));
  UniqueFd last = d.send("POST", "/v1/completions", kLong);
  usleep(100'000);
  kill(d.pid, SIGTERM);
  usleep(100'000);
  std::string late = d.ask("POST", "/v1/completions", kLong);
  CHECK(late.find(" 503 ") != std::string::npos);
  CHECK(late.find("Retry-After:") != std::string::npos);
  CHECK(content(Daemon::rest(last)) == content(whole));
  CHECK(d.wait(0) == 0);
  char more;
  CHECK(read(d.stdout_fd.get(), &more, 1) == 0);
}

TEST_CASE("tandemd: a model that is refused, then replaced") {
  Daemon d({}, "refuse=78");
  REQUIRE(
      wait_until([&] { return d.ask("GET", "/ready").find("field refuse") != std::string::npos; }));
  CHECK(d.ask("GET", "/health").find(" 200 ") != std::string::npos);
  std::string answer = d.ask("POST", "/v1/completions", kLong);
  CHECK(answer.find(" 503 ") != std::string::npos);
  CHECK(answer.find("Retry-After:") != std::string::npos);
  std::ofstream(d.dir + "/m.gguf") << "context=256\n";
  CHECK(wait_until([&] { return d.is_ready(); }));
  CHECK(d.wait(SIGINT) == 0);
}

TEST_CASE("tandemd: bad configurations exit with 78 and say why") {
  std::vector<std::pair<std::string, std::string>> cases = {
      {"limits.max_queue=0", "limits.max_queue"},
      {"no.such=1", "no.such"},
      {"log.level=loud", "log.level"},
      {"cache.page_size_tokens=17", "page_size"},
      {"nonsense", "section.name=value"}};
  for (const auto& [setting, word] : cases) {
    Daemon d({setting});
    INFO(setting);
    CHECK(d.wait(0) == 78);
    CHECK(d.log().find(word) != std::string::npos);
    CHECK(d.stdout_text.empty());
  }
}

TEST_CASE("tandemd: a broken deny list at reload keeps the old one and is shown; so says /admin/reload") {
  char name[] = "/tmp/tandemd_deny_XXXXXX";
  close(mkstemp(name));
  std::string path = name;
  auto write = [&](const std::string& text) { std::ofstream(path, std::ios::trunc) << text; };
  write("one\n");
  Daemon d({"filter.deny_list_file=" + path});
  REQUIRE(wait_until([&] { return d.is_ready(); }));
  auto asks = [&](const std::string& word) {
    return d.ask("POST", "/v1/completions", "{\"prompt\":\"" + word + "\",\"max_tokens\":1}");
  };
  CHECK(asks("one").find(" 403 ") != std::string::npos);
  write("two\nre:(\n");
  kill(d.pid, SIGHUP);
  CHECK(wait_until([&] {
    return d.ask("GET", "/status.json").find("\"what\":\"reload: " + path + ":2: the pattern is broken") !=
           std::string::npos;
  }));
  CHECK(asks("one").find(" 403 ") != std::string::npos);
  std::string refused = d.ask("POST", "/admin/reload", "{}");
  CHECK(refused.find(" 409 ") != std::string::npos);
  CHECK(refused.find("the pattern is broken") != std::string::npos);
  write("two\n");
  CHECK(d.ask("POST", "/admin/reload", "{}").find(" 200 ") != std::string::npos);
  CHECK(asks("two").find(" 403 ") != std::string::npos);
  CHECK(asks("one").find(" 200 ") != std::string::npos);
  CHECK(d.wait(SIGTERM) == 0);
  write("re:(\n");
  Daemon e({"filter.deny_list_file=" + path});
  CHECK(e.wait(0) == 78);
  CHECK(e.log().find("the pattern is broken") != std::string::npos);
  unlink(path.c_str());
}
