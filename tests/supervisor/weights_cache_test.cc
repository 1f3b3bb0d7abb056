// Where a worker's file of packed weights comes from and how it gets its name.
#include "supervisor/weights_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "box.h"

using namespace tandem;

namespace {
struct CacheFolder : testing::TempFolder {
  size_t n_files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path), {}));
  }
  void store(const std::string& model, const std::string& text) {
    WeightsCache cache = open_weights_cache(path, model, {});
    INFO(cache.trouble);
    REQUIRE(cache.fresh.valid());
    REQUIRE(write(cache.fresh.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    Status status = publish_weights_cache(&cache);
    INFO(status.message());
    REQUIRE(status.ok());
    CHECK_FALSE(cache.fresh.valid());
  }
  std::string stored(const std::string& model) {
    WeightsCache cache = open_weights_cache(path, model, {});
    char text[64];
    ssize_t n = cache.existing.valid() ? read(cache.existing.get(), text, sizeof text) : 0;
    return {text, static_cast<size_t>(n)};
  }
};
}  // namespace

TEST_CASE("packed weights: one file a model path, replaced in one step") {
  CacheFolder f;
  CHECK_FALSE(open_weights_cache(f.path, "/a/m.gguf", {}).existing.valid());
  CHECK(f.n_files() == 0);  // what is never published leaves nothing
  f.store("/a/m.gguf", "one");
  CHECK(f.stored("/a/m.gguf") == "one");
  CHECK(f.stored("/b/m.gguf").empty());
  std::ofstream(f.path + "/" + open_weights_cache(f.path, "/a/m.gguf", {}).name + ".new") << "left over";
  f.store("/a/m.gguf", "two");
  f.store("/b/m.gguf", "three");
  CHECK(f.stored("/a/m.gguf") == "two");
  CHECK(f.stored("/b/m.gguf") == "three");
  CHECK(f.n_files() == 2);
  struct stat st;
  REQUIRE(stat((f.path + "/" + open_weights_cache(f.path, "/a/m.gguf", {}).name).c_str(), &st) == 0);
  CHECK((st.st_mode & 0777) == 0600);
}

TEST_CASE("packed weights: a missing folder, a link or a folder in the way are no cache, and no failure") {
  CacheFolder f;
  WeightsCache none = open_weights_cache(f.path + "/missing", "/a/m.gguf", {});
  CHECK((!none.existing.valid() && !none.fresh.valid()));
  CHECK(none.trouble.find("missing") != std::string::npos);
  CHECK_FALSE(publish_weights_cache(&none).ok());
  std::string at = f.path + "/" + none.name;
  std::filesystem::create_symlink("/etc/passwd", at);
  CHECK_FALSE(open_weights_cache(f.path, "/a/m.gguf", {}).existing.valid());
  std::filesystem::remove(at);
  std::filesystem::create_directory(at);
  WeightsCache blocked = open_weights_cache(f.path, "/a/m.gguf", {});
  CHECK_FALSE(blocked.existing.valid());
  CHECK_FALSE(publish_weights_cache(&blocked).ok());
  CHECK(f.n_files() == 1);
}

TEST_CASE("packed weights: the mark of an orderly stop is of one file and is taken once") {
  CacheFolder f;
  f.store("/a/m.gguf", "one");
  WeightsCache cache = open_weights_cache(f.path, "/a/m.gguf", {});
  CHECK(take_whole_mark(cache).empty());
  CHECK_FALSE(cache.stamp.empty());
  leave_whole_mark(cache);
  CHECK(take_whole_mark(cache) == cache.stamp);
  CHECK(take_whole_mark(cache).empty());
  leave_whole_mark(cache);
  f.store("/a/m.gguf", "two");  // the mark of the older file goes with it
  CHECK(take_whole_mark(cache).empty());
  CHECK(open_weights_cache(f.path, "/a/m.gguf", {}).stamp != cache.stamp);
  remove_weights_cache(cache);
  CHECK(f.n_files() == 0);
}

TEST_CASE("packed weights: files of models unused for a month go when a new one comes") {
  CacheFolder f;
  f.store("/a/m.gguf", "one");
  f.store("/b/m.gguf", "two");
  std::ofstream(f.path + "/model_hashes") << "not ours";
  const std::string old = f.path + "/" + open_weights_cache(f.path, "/a/m.gguf", {}).name;
  const timespec times[2] = {{time(nullptr) - 31 * 24 * 3600, 0}, {0, UTIME_OMIT}};
  REQUIRE(utimensat(AT_FDCWD, old.c_str(), times, 0) == 0);
  f.store("/b/m.gguf", "three");
  CHECK(f.n_files() == 2);
  CHECK(f.stored("/a/m.gguf").empty());
  CHECK(f.stored("/b/m.gguf") == "three");
}

TEST_CASE("packed weights with which a worker dies while it loads are not given to the next one") {
  CacheFolder f;
  Box box("abort_with_cache=1", [&](Config* config) {
    config->paths_cache_dir = f.path;
    f.store(config->model_path, "deadly");
  });  // ready, else it fails
  CHECK(box.supervisor->status_json().find("crash") != std::string::npos);
}

TEST_CASE("packed weights: where room is short files of others go, but not that of the other set in use") {
  CacheFolder f;
  f.store("/a/m.gguf", "one");
  f.store("/b/lean.gguf", "two");
  f.store("/c/other.gguf", "three");
  OpenModel huge;
  huge.fds.emplace_back(memfd_create("huge", MFD_CLOEXEC));
  REQUIRE(ftruncate(huge.fds[0].get(), off_t{1} << 50) == 0);
  CHECK_FALSE(open_weights_cache(f.path, "/a/m.gguf", huge, "/b/lean.gguf").trouble.empty());
  CHECK(f.stored("/a/m.gguf") == "one");
  CHECK(f.stored("/b/lean.gguf") == "two");
  CHECK(f.stored("/c/other.gguf").empty());
}

TEST_CASE("a file of weights.lean that is not there is told to the worker, which serves") {
  Box box("", [](Config* config) { config->weights_lean = config->model_path + ".none"; });
  const std::string status = box.supervisor->status_json();
  INFO(status);
  CHECK(status.find("weights.lean: cannot open model " + box.model + ".none: No such file") != std::string::npos);
}

TEST_CASE("a file of weights.lean with which workers die is left out") {
  Box box("abort_with_lean=1", [](Config* config) { config->weights_lean = config->model_path; });  // ready, else it fails
  const std::string status = box.supervisor->status_json();
  INFO(status);
  CHECK(status.find("is left out, as 3 workers ended before they had computed anything, the last by crash") != std::string::npos);
}
