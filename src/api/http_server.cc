#include "api/http_server.h"

#include <httplib.h>
#include <sys/random.h>

#include <atomic>

#include "api/connection_poller.h"
#include "api/thread_lane.h"
#include "base/clock.h"
#include "base/hex.h"
#include "base/log.h"

namespace tandem::api {
namespace {

// Threads for probes and for refusing what is beyond max_connections: never held by a stream.
constexpr size_t kReservedThreads = 3;
constexpr int64_t kReservedWriteMs = 1000;
constexpr size_t kFlushBytes = 64 * 1024;
// Beyond the slow reader's time, so that a slow reader is told from a dead one.
constexpr int64_t kSilentPeerExtraMs = 1000;
constexpr int64_t kStopGraceMs = 2000;  // for running replies after stop() before sockets are cut

// What the HTTP library reads and writes: a head made by us, and the guarded socket.
class StreamAdapter : public httplib::Stream {
 public:
  StreamAdapter(std::string head, GuardedStream* stream, int64_t write_timeout_ms)
      : head_(std::move(head)), stream_(stream), write_timeout_ms_(write_timeout_ms) {}

  bool is_readable() const override { return offset_ < head_.size(); }
  bool is_writable() const override { return !stream_->is_broken(); }
  ssize_t read(char* bytes, size_t size) override {
    size_t n = std::min(size, head_.size() - offset_);
    head_.copy(bytes, n, offset_);
    offset_ += n;
    return static_cast<ssize_t>(n);
  }
  // Collects small writes so that head and body leave in one packet; streams flush each event.
  ssize_t write(const char* bytes, size_t size) override {
    out_.append(bytes, size);
    bool ok = (!is_streaming_ && out_.size() < kFlushBytes) || flush();
    return ok ? static_cast<ssize_t>(size) : -1;
  }
  bool flush() {
    bool ok = stream_->write_all(out_, write_timeout_ms_);
    out_.clear();
    return ok;
  }
  void start_streaming() { is_streaming_ = true; }
  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    ip = stream_->remote_addr();
    port = stream_->remote_port();
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    ip.clear();
    port = 0;
  }
  // The library only compares it with FD_SETSIZE, a limit of select() that does not apply here.
  socket_t socket() const override { return 0; }

 private:
  std::string head_;
  size_t offset_ = 0;
  GuardedStream* stream_;
  int64_t write_timeout_ms_;
  std::string out_;
  bool is_streaming_ = false;
};

class LibrarySink : public ReplySink {
 public:
  explicit LibrarySink(httplib::DataSink* sink) : sink_(sink) {}
  bool write(std::string_view bytes) override { return bytes.empty() || sink_->write(bytes.data(), bytes.size()); }

 private:
  httplib::DataSink* sink_;
};

std::string printable(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  return out;
}

// One request through the library. A fresh Server object a request costs less than a microsecond and keeps
// its handlers free of shared state.
class Exchange : private httplib::Server {
 public:
  Exchange(const HttpHead& head, HttpRequest* request, std::function<HttpReply(HttpRequest&)> produce)
      : head_(head), request_(request), produce_(std::move(produce)) {
    svr_sock_ = 0;  // "not shutting down": streams end through is_stopping, with an error event
    set_keep_alive_max_count(1'000'000);
    set_pre_routing_handler([this](const httplib::Request& req, httplib::Response& res) {
      answer(req, res);
      return httplib::Server::HandlerResponse::Handled;
    });
    // The library would put the exception's text into a header.
    set_exception_handler([](const httplib::Request&, httplib::Response& res, std::exception_ptr) {
      HttpReply reply = error_reply(api_error("internal_error", "internal error"));
      res.status = reply.status;
      res.set_content(reply.body, reply.content_type);
    });
  }

  // Returns whether the connection may be kept.
  bool run(GuardedStream* stream, bool must_close, int64_t idle_timeout_ms, int64_t write_timeout_ms) {
    set_keep_alive_timeout(std::max<int64_t>(1, idle_timeout_ms / 1000));
    // Paths are routed by us; the library gets the query to decode, and a method it knows.
    std::string line = (head_.method == "HEAD" ? "HEAD /" : "GET /") + head_.target.substr(head_.path.size()) + " HTTP/1.1\r\n";
    StreamAdapter adapter(line + (must_close ? "Connection: close\r\n\r\n" : "\r\n"), stream, write_timeout_ms);
    adapter_ = &adapter;
    bool is_closed = false;
    process(*this, adapter, stream, must_close, &is_closed);
    if (!stream->is_broken()) adapter.flush();
    if (stream->is_timed_out())
      log_warn("slow reader cut", {{"request_id", request_->id}, {"peer", stream->remote_addr()}, {"after_ms", write_timeout_ms}});
    return !must_close && !is_closed && !must_close_ && !stream->is_broken();
  }

 private:
  // Debian 12 has cpp-httplib 0.11; from 0.18 on (Debian 13) the caller says who the peer is.
  template <typename Self>
  static void process(Self& self, StreamAdapter& adapter, const GuardedStream* stream, bool must_close, bool* is_closed) {
    if constexpr (requires { self.process_request(adapter, must_close, *is_closed, nullptr); })
      self.process_request(adapter, must_close, *is_closed, nullptr);
    else
      self.process_request(adapter, stream->remote_addr(), stream->remote_port(), std::string(), 0, must_close, *is_closed, nullptr);
  }

  void answer(const httplib::Request& req, httplib::Response& res) {
    for (const auto& [name, value] : req.params) request_->query.emplace_back(name, value);
    HttpReply reply = produce_(*request_);
    res.status = reply.status;
    for (const auto& [name, value] : reply.headers) res.set_header(name, printable(value));
    must_close_ = reply.must_close;
    if (!reply.stream) {
      if (!reply.body.empty()) res.set_content(reply.body, reply.content_type);
      return;
    }
    auto provider = [this, stream = std::move(reply.stream)](size_t, httplib::DataSink& sink) {
      adapter_->start_streaming();
      if (!adapter_->flush()) return false;
      LibrarySink out(&sink);
      if (!stream(out)) must_close_ = true;
      sink.done();
      return true;
    };
    if (head_.minor_version == 0) {
      must_close_ = true;
      res.set_header("Connection", "close");
      res.set_content_provider(reply.content_type, provider);
    } else {
      res.set_chunked_content_provider(reply.content_type, provider);
    }
  }

  const HttpHead& head_;
  HttpRequest* request_;
  std::function<HttpReply(HttpRequest&)> produce_;
  StreamAdapter* adapter_ = nullptr;
  bool must_close_ = false;
};

}  // namespace

std::string new_request_id() {
  unsigned char bytes[12];
  size_t got = 0;
  while (got < sizeof bytes) {
    ssize_t n = getrandom(bytes + got, sizeof bytes - got, 0);
    if (n > 0) got += static_cast<size_t>(n);
  }
  return "req_" + hex_of(bytes);
}

struct HttpServer::Impl {
  HttpLimits limits;
  HttpHooks hooks;
  std::atomic<bool> is_stopping{false};
  ThreadLane regular, reserved;
  std::atomic<size_t> n_running{0};
  ConnectionPoller poller;  // last: its thread uses the rest

  Impl(UniqueFd listening, HttpLimits l, HttpHooks h)
      : limits(l),
        hooks(std::move(h)),
        regular(l.max_connections),
        reserved(kReservedThreads),
        poller(std::move(listening),
               {l.max_connections, l.max_header_bytes, l.header_timeout_ms, l.idle_timeout_ms,
                l.slow_reader_timeout_ms + kSilentPeerExtraMs, l.tls},
               [this](std::unique_ptr<Connection> c) { dispatch(std::move(c)); }) {}

  // Poller thread. Probes, refusals and errors go to the reserved threads.
  void dispatch(std::unique_ptr<Connection> c) {
    bool is_short = c->is_overflow || c->head_error || hooks.is_probe(target_path(c->stream.buffered()));
    auto shared = std::make_shared<std::unique_ptr<Connection>>(std::move(c));
    (is_short ? reserved : regular).run([this, shared, is_short] {
      CountGuard counted(&n_running);
      serve(std::move(*shared), is_short);
    });
  }

  static std::string_view target_path(std::string_view head) {
    size_t begin = head.find(' ') + 1;
    return head.substr(begin, head.find_first_of(" ?\r\n", begin) - begin);
  }

  // Reads the rest of the request. A reply here: the request is refused before its handler.
  std::optional<HttpReply> receive(Connection* c, const HttpHead& head, HttpRequest* request, bool* must_close) {
    if (c->is_overflow && !hooks.is_probe(head.path)) {
      *must_close = true;
      return error_reply(api_error("too_many_connections",
                                   "all " + std::to_string(limits.max_connections) +
                                       " connections (server.max_connections) are in use; try again",
                                   "", 1));
    }
    if (auto reply = hooks.precheck(*request)) {
      *must_close = *must_close || head.has_body();
      return reply;
    }
    bool fits = head.content_length.value_or(0) <= limits.max_body_bytes;
    if (fits && head.expects_continue && head.has_body() && c->stream.buffered().empty())
      c->stream.write_all("HTTP/1.1 100 Continue\r\n\r\n", kReservedWriteMs);
    int64_t deadline_us = request->received_us + limits.body_timeout_ms * 1000;
    auto body = c->stream.read_body(head, limits.max_body_bytes, deadline_us);
    if (body.ok()) {
      request->body = std::move(body.value());
      return std::nullopt;
    }
    *must_close = true;
    return error_reply(body.error());
  }

  void serve(std::unique_ptr<Connection> c, bool is_short) {
    HttpRequest request;
    request.id = new_request_id();
    request.received_us = monotonic_us();
    request.remote_addr = c->stream.remote_addr();
    request.is_client_gone = [stream = &c->stream] { return stream->is_peer_gone(); };
    request.is_stopping = [this] { return is_stopping.load(); };
    HttpHead head;
    std::optional<HttpReply> early;
    bool must_close = false;
    if (c->head_error) {
      early = error_reply(*c->head_error);
      must_close = true;
    } else {
      auto parsed = parse_http_head(c->stream.buffered().substr(0, c->head_bytes));
      c->stream.consume(c->head_bytes);
      if (parsed.ok()) {
        head = std::move(parsed.value());
        request.method = head.method;
        request.path = head.path;
        request.headers = head.headers;
        must_close = !head.keeps_alive || is_stopping;
        early = receive(c.get(), head, &request, &must_close);
      } else {
        early = error_reply(parsed.error());
        must_close = true;
      }
    }
    if (early && early->error && early->error->code == "client_gone") return;  // closes
    Exchange exchange(head, &request, [&](HttpRequest& r) { return produce(r, std::move(early)); });
    bool keep = exchange.run(&c->stream, must_close, limits.idle_timeout_ms,
                             is_short ? kReservedWriteMs : limits.slow_reader_timeout_ms);
    if (keep)
      poller.give_back(std::move(c));
    else
      poller.linger(std::move(c));
  }

  HttpReply produce(HttpRequest& request, std::optional<HttpReply> early) {
    HttpReply reply;
    try {
      reply = early ? std::move(*early) : hooks.handle(request);
    } catch (const std::exception& error) {  // std::bad_alloc, or our bug
      log_error("request handler failed", {{"request_id", request.id}, {"reason", error.what()}});
      reply = error_reply(api_error("internal_error", "internal error; see the log for " + request.id));
    }
    hooks.finish(request, &reply);
    reply.headers.emplace_back("X-Request-Id", request.id);
    return reply;
  }

  void stop() {
    is_stopping = true;
    poller.stop_accepting();
    int64_t give_up_us = monotonic_us() + kStopGraceMs * 1000;
    while (n_running > 0 && monotonic_us() < give_up_us)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    poller.stop();  // writes that still hang are cut
    regular.stop();
    reserved.stop();
  }
};

HttpServer::HttpServer(UniqueFd listening, HttpLimits limits, HttpHooks hooks)
    : impl_(std::make_unique<Impl>(std::move(listening), limits, std::move(hooks))) {}
HttpServer::~HttpServer() { stop(); }
void HttpServer::leave_socket() { impl_->poller.leave_socket(); }
void HttpServer::stop() { impl_->stop(); }

}  // namespace tandem::api
