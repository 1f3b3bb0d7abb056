// Hashes of files and their memory; archives.
#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/file_hash.h"
#include "base/tar_archive.h"
#include "base/unique_fd.h"
#include "tests/temp_folder.h"
using namespace tandem;

namespace {

UniqueFd open_ro(const std::string& path) { return UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC)); }

}  // namespace

TEST_CASE("sha256 of texts and files is the known one") {
  CHECK(sha256_of_text("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_of_text("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  testing::TempFolder folder;
  std::string long_text(3'000'001, 'x');
  UniqueFd fd = open_ro(folder.put("f", long_text));
  CHECK(*sha256_of_files({fd.get()}) == sha256_of_text(long_text));
  CHECK(*sha256_of_files({fd.get(), fd.get()}) == sha256_of_text(long_text + long_text));
  int64_t n_read = 0;
  const auto on_read = [&](int64_t n) {
    CHECK(n > n_read);
    n_read = n;
  };
  CHECK(sha256_of_files({fd.get(), fd.get()}, nullptr, on_read).ok());
  CHECK(n_read == 6'000'002);
  std::atomic<bool> stop{true};
  CHECK(sha256_of_files({fd.get()}, &stop).status().code() == StatusCode::kCancelled);
  CHECK(!sha256_of_files({-1}).ok());
}

TEST_CASE("a hash is found by the whole stamp of its files") {
  testing::TempFolder folder;
  const std::string memory = folder.path + "/hashes", one = sha256_of_text("one"), two = sha256_of_text("two");
  CHECK(find_sha256(memory, "1,2,;").empty());
  remember_sha256(memory, "1,2,;", one);
  remember_sha256(memory, "1,2,;3,;", two);
  CHECK(find_sha256(memory, "1,2,;") == one);
  CHECK(find_sha256(memory, "1,2,;3,;") == two);
  CHECK(find_sha256(memory, "1,2,").empty());
  folder.put("hashes", "rubbish\n1,2,; 77\n\x01 2\n" + std::string(100'000, 'x'));
  CHECK(find_sha256(memory, "1,2,;").empty());
  remember_sha256(memory, "1,2,;", one);
  CHECK(find_sha256(memory, "1,2,;") == one);
  for (int i = 0; i < 200; ++i) remember_sha256(memory, std::to_string(i) + ";", one);
  CHECK(find_sha256(memory, "1,2,;").empty());  // bounded: the oldest go
  CHECK(find_sha256(memory, "199;") == one);
  remember_sha256("/nonexistent/folder/hashes", "1;", one);
  CHECK(find_sha256("/nonexistent/folder/hashes", "1;").empty());
}

TEST_CASE("an archive gives back what went in") {
  std::vector<ArchiveEntry> files = {{"a/empty", ""}, {"a/text", "line\n"}, {"a/large", std::string(200'000, 'z')}};
  auto bytes = make_tar_gz(files, 1'790'000'000);
  REQUIRE(bytes.ok());
  archive* reader = archive_read_new();
  archive_read_support_filter_gzip(reader);
  archive_read_support_format_tar(reader);
  REQUIRE(archive_read_open_memory(reader, bytes->data(), bytes->size()) == ARCHIVE_OK);
  size_t n = 0;
  for (archive_entry* entry; archive_read_next_header(reader, &entry) == ARCHIVE_OK; ++n) {
    REQUIRE(n < files.size());
    CHECK(archive_entry_pathname(entry) == files[n].path);
    CHECK(archive_entry_perm(entry) == 0600);
    CHECK(archive_entry_mtime(entry) == 1'790'000'000);
    std::string content(static_cast<size_t>(archive_entry_size(entry)), '\0');
    CHECK(archive_read_data(reader, content.data(), content.size()) == static_cast<la_ssize_t>(content.size()));
    CHECK(content == files[n].content);
  }
  CHECK(n == files.size());
  archive_read_free(reader);
}
