// The digest of a model: right, taken once, remembered over restarts.
#include "supervisor/model_digest.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>

using namespace tandem;

namespace {
struct Folder {
  std::string path;
  Folder() {
    char name[] = "/tmp/tandem_digest_XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path + "/" + name) << text;
    return path + "/" + name;
  }
};

std::string wait_for(const ModelDigest& digest) {
  for (int i = 0; i < 2000 && digest.get().empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return digest.get();
}

// sha256sum of "abc"
constexpr const char* kAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
}  // namespace

TEST_CASE("model digest: of all parts in order") {
  Folder f;
  ModelDigest digest;
  digest.want(f.path, "1;", {f.write("a", "ab"), f.write("b", "c")});
  CHECK(wait_for(digest) == kAbc);
}

TEST_CASE("model digest: remembered by its stamp, which is all that is looked at") {
  Folder f;
  {
    ModelDigest digest;
    digest.want(f.path, "1;", {f.write("a", "abc")});
    REQUIRE(wait_for(digest) == kAbc);
  }
  ModelDigest known, other;
  known.want(f.path, "1;", {f.path + "/missing"});
  CHECK(known.get() == kAbc);
  known.want(f.path, "2;", {f.write("b", "abd")});
  CHECK(wait_for(known) != kAbc);
  other.want(f.path, "1", {f.path + "/missing"});  // not the beginning of a stamp
  other.stop();
  CHECK(other.get().empty());
}

TEST_CASE("model digest: a file or a folder that cannot be used costs only the digest") {
  Folder f;
  ModelDigest digest;
  digest.want(f.path, "1;", {f.path + "/missing"});
  digest.stop();
  CHECK(digest.get().empty());
  digest.want(f.path + "/missing", "1;", {f.write("a", "abc")});
  CHECK(wait_for(digest) == kAbc);
  f.write("model_digests", std::string(100000, 'x'));
  ModelDigest again;
  again.want(f.path, "3;", {f.write("a", "abc")});
  CHECK(wait_for(again) == kAbc);
}
