// The digest of a model: right, taken once, remembered over restarts.
#include "supervisor/model_digest.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "tests/temp_folder.h"

using namespace tandem;

namespace {
std::string wait_for(const ModelDigest& digest) {
  for (int i = 0; i < 2000 && digest.get().empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return digest.get();
}

// sha256sum of "abc"
constexpr const char* kAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
}  // namespace

TEST_CASE("model digest: of all parts in order") {
  testing::TempFolder f;
  ModelDigest digest;
  digest.want(f.path, "1;", {f.put("a", "ab"), f.put("b", "c")});
  CHECK(wait_for(digest) == kAbc);
}

TEST_CASE("model digest: remembered by its stamp, which is all that is looked at") {
  testing::TempFolder f;
  {
    ModelDigest digest;
    digest.want(f.path, "1;", {f.put("a", "abc")});
    REQUIRE(wait_for(digest) == kAbc);
  }
  ModelDigest known, other;
  known.want(f.path, "1;", {f.path + "/missing"});
  CHECK(known.get() == kAbc);
  known.want(f.path, "2;", {f.put("b", "abd")});
  CHECK(wait_for(known) != kAbc);
  other.want(f.path, "1", {f.path + "/missing"});  // not the beginning of a stamp
  other.stop();
  CHECK(other.get().empty());
}

TEST_CASE("model digest: a file or a folder that cannot be used costs only the digest") {
  testing::TempFolder f;
  ModelDigest digest;
  digest.want(f.path, "1;", {f.path + "/missing"});
  digest.stop();
  CHECK(digest.get().empty());
  digest.want(f.path + "/missing", "1;", {f.put("a", "abc")});
  CHECK(wait_for(digest) == kAbc);
  f.put("model_digests", std::string(100000, 'x'));
  ModelDigest again;
  again.want(f.path, "3;", {f.put("a", "abc")});
  CHECK(wait_for(again) == kAbc);
}
