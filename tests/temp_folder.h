// A folder for one test, with what the test puts there; gone after it.
#pragma once

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace tandem::testing {

struct TempFolder {
  std::string path;
  TempFolder() {
    char name[] = "/tmp/tandem_test_XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    path = name;
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string at(const std::string& name) const { return path + "/" + name; }
  // Writes a file (its folders too), in place of what was there; its path.
  std::string put(const std::string& name, const std::string& bytes) const {
    const std::string file = at(name);
    std::filesystem::create_directories(std::filesystem::path(file).parent_path());
    std::ofstream out(file, std::ios::binary | std::ios::trunc);
    out << bytes;
    REQUIRE(out.flush());
    return file;
  }
};

}  // namespace tandem::testing
