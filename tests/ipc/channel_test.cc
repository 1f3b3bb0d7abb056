// Framing over a real socketpair.
#include "ipc/channel.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <sys/socket.h>
#include <thread>

namespace tandem::ipc {
namespace {

struct Pair {
  UniqueFd a, b;
  Pair() {
    Result<std::pair<UniqueFd, UniqueFd>> pair = channel_pair();
    REQUIRE(pair.ok());
    a = std::move(pair->first), b = std::move(pair->second);
  }
};

void write_raw(int fd, const std::string& bytes) {
  REQUIRE(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}
std::string header(uint32_t size) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &size, 4);
  return bytes;
}

}  // namespace

TEST_CASE("frames arrive whole and in order, also larger than the socket's buffer") {
  Pair pair;
  Channel out(std::move(pair.a)), in(std::move(pair.b));
  std::vector<std::string> sent, got;
  std::mt19937 rng(3);
  for (int i = 0; i < 200; ++i) {
    sent.emplace_back(1 + rng() % (i % 50 == 49 ? 3'000'000 : 300), static_cast<char>(rng()));
    REQUIRE(out.send(sent.back()).ok());
  }
  CHECK(out.wants_write());
  while (got.size() < sent.size()) {
    REQUIRE(in.receive(&got).ok());
    REQUIRE(out.flush().ok());
  }
  CHECK(got == sent);
  CHECK_FALSE(out.wants_write());
}

TEST_CASE("a frame cut anywhere waits for its rest") {
  Pair pair;
  Channel in(std::move(pair.b));
  std::string bytes = header(5) + "hello" + header(1) + "x";
  std::vector<std::string> got;
  for (char c : bytes) {
    write_raw(pair.a.get(), std::string(1, c));
    REQUIRE(in.receive(&got).ok());
  }
  CHECK(got == std::vector<std::string>{"hello", "x"});
}

TEST_CASE("huge and zero lengths are refused without waiting for their bytes") {
  for (uint32_t size : {0u, static_cast<uint32_t>(kMaxFrameBytes + 1), 0xffffffffu}) {
    Pair pair;
    Channel in(std::move(pair.b));
    write_raw(pair.a.get(), header(2) + "ok" + header(size));
    std::vector<std::string> got;
    Status status = in.receive(&got);
    CHECK(status.code() == StatusCode::kDataLoss);
    CHECK(status.message().find(std::to_string(size)) != std::string::npos);
    CHECK(got == std::vector<std::string>{"ok"});
  }
  Pair pair;
  Channel out(std::move(pair.a));
  CHECK(out.send("").code() == StatusCode::kInvalidArgument);
  CHECK(out.send("still open").ok());
}

TEST_CASE("a closed peer: earlier frames are delivered, then the end; sending says so") {
  Pair pair;
  Channel in(std::move(pair.b));
  write_raw(pair.a.get(), header(3) + "end" + header(10) + "cut");
  pair.a.reset();
  std::vector<std::string> got;
  CHECK(in.receive(&got).code() == StatusCode::kUnavailable);
  CHECK(got == std::vector<std::string>{"end"});
  CHECK(in.send("x").code() == StatusCode::kUnavailable);
  CHECK(in.send("x").code() == StatusCode::kUnavailable);
  CHECK_FALSE(in.wants_write());
}

TEST_CASE("a peer that does not read hits the bound and the channel closes, both ways") {
  Pair pair;
  Channel out(std::move(pair.a), 1 << 20);
  Channel peer(std::move(pair.b));
  std::string frame(100'000, 'x');
  int n_sent = 0;
  Status status;
  while ((status = out.send(frame)).ok() && n_sent < 100) ++n_sent;
  CHECK(status.code() == StatusCode::kUnavailable);
  CHECK(status.message().find("does not read") != std::string::npos);
  CHECK(n_sent >= 10);
  CHECK(n_sent < 100);
  CHECK_FALSE(out.wants_write());
  CHECK_FALSE(out.flush().ok());
  std::vector<std::string> got;
  while (peer.receive(&got).ok()) {}
  CHECK(got.size() <= static_cast<size_t>(n_sent));  // a clean prefix
  for (const std::string& g : got) CHECK(g == frame);
}

TEST_CASE("send is thread-safe") {
  Pair pair;
  Channel out(std::move(pair.a)), in(std::move(pair.b));
  constexpr int kPerThread = 2000;
  auto sender = [&](char tag) {
    for (int i = 0; i < kPerThread; ++i) {
      if (!out.send(std::string(1 + i % 200, tag)).ok()) return;
    }
  };
  std::thread a(sender, 'a'), b(sender, 'b');
  std::vector<std::string> got;
  bool ok = true;
  while (ok && got.size() < 2 * kPerThread) ok = in.receive(&got).ok() && out.flush().ok();
  a.join(), b.join();
  REQUIRE(ok);
  int next[2] = {0, 0};
  for (const std::string& frame : got) {
    int& i = next[frame[0] - 'a'];
    REQUIRE(frame == std::string(1 + i % 200, frame[0]));
    ++i;
  }
}

}  // namespace tandem::ipc
