// Small files are read whole or not at all, and the error says which and why.
#include "base/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/hex.h"
#include "base/mib.h"
#include "base/unique_fd.h"
#include "tests/temp_folder.h"

using namespace tandem;

TEST_CASE("small files are read whole, with all their bytes") {
  testing::TempFolder folder;
  const std::string bytes = std::string("a\0b\n", 4) + std::string(200'000, 'x');
  CHECK(*read_file(folder.put("f", bytes)) == bytes);
  CHECK(read_file(folder.put("empty", ""))->empty());
}

TEST_CASE("what cannot be read is an error that says which and why, never an empty text") {
  testing::TempFolder folder;
  auto none = read_file(folder.at("none"));
  CHECK(none.status().code() == StatusCode::kNotFound);
  CHECK(none.status().message() == "cannot read " + folder.at("none") + ": No such file or directory");
  CHECK(read_file(folder.path).status().message() == "cannot read " + folder.path + ": Is a directory");
  auto large = read_file(folder.put("large", std::string(kSmallFileBytes + 1, 'x')));
  CHECK(large.status().code() == StatusCode::kInvalidArgument);
  CHECK(large.status().message() == "cannot read " + folder.at("large") + ": it has more than 16 MiB");
  CHECK(read_file("/dev/zero").status().code() == StatusCode::kInvalidArgument);  // ends, too
}

TEST_CASE("first line: without its newline, none where there is none") {
  testing::TempFolder folder;
  CHECK(first_line(folder.put("f", "one\ntwo\n")) == "one");
  CHECK(first_line(folder.put("f", "alone")) == "alone");
  CHECK(first_line(folder.put("f", "\ntwo")) == "");
  CHECK(first_line(folder.put("f", "")) == std::nullopt);
  CHECK(first_line(folder.at("none")) == std::nullopt);
}

TEST_CASE("all bytes are written, or the error says so") {
  testing::TempFolder folder;
  const std::string bytes(300'000, 'y');
  {
    const UniqueFd fd(open(folder.at("f").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    CHECK(write_all(fd.get(), bytes, folder.at("f")).ok());
  }
  CHECK(*read_file(folder.at("f")) == bytes);
  {
    const UniqueFd fd(open(folder.at("f").c_str(), O_WRONLY | O_CLOEXEC));
    CHECK(write_all_at(fd.get(), 299'998, "zzzz", folder.at("f")).ok());
  }
  CHECK(*read_file(folder.at("f")) == std::string(299'998, 'y') + "zzzz");
  const UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  const Status status = write_all(full.get(), "x", "/dev/full");
  CHECK(status.code() == StatusCode::kExhausted);
  CHECK(status.message() == "cannot write /dev/full: No space left on device");
  CHECK(try_write_all(full.get(), "x") == ENOSPC);
  CHECK(try_write_all_at(full.get(), 7, "x") == ENOSPC);
  CHECK(try_write_all(full.get(), "") == 0);
}

TEST_CASE("a file takes another's name and place, or the error says which") {
  testing::TempFolder folder;
  folder.put("to", "old");
  CHECK(rename_durably(folder.put("from", "new"), folder.at("to")).ok());
  CHECK(*read_file(folder.at("to")) == "new");
  CHECK(read_file(folder.at("from")).status().code() == StatusCode::kNotFound);
  CHECK(rename_durably(folder.at("from"), folder.at("to")).message() == "cannot name the file " + folder.at("to") + ": No such file or directory");
}

TEST_CASE("a note is replaced in one step and leaves nothing beside it") {
  testing::TempFolder folder;
  CHECK(replace_note(folder.at("note"), "one\n").ok());
  CHECK(replace_note(folder.at("note"), "two\n").ok());
  CHECK(*read_file(folder.at("note")) == "two\n");
  const auto n_files = [&] { return std::distance(std::filesystem::directory_iterator(folder.path), {}); };
  CHECK(n_files() == 1);
  std::filesystem::create_directories(folder.at("folder/in"));
  CHECK(replace_note(folder.at("folder"), "three\n").code() == StatusCode::kInvalidArgument);
  CHECK(n_files() == 2);
  CHECK(replace_note(folder.at("none/note"), "x").code() == StatusCode::kNotFound);
}

TEST_CASE("sizes in MiB") {
  CHECK(mib(0) == "0.0 MiB");
  CHECK(mib(110'415'052) == "105.3 MiB");
}

TEST_CASE("hexadecimal: two lower-case digits a byte") {
  const unsigned char bytes[] = {0x00, 0x0f, 0xa0, 0xff};
  CHECK(hex_of(bytes) == "000fa0ff");
  CHECK(hex_of({}).empty());
}
