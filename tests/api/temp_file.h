// A file with a text, for settings that name one; gone after the test.
#pragma once

#include "base/file_hash.h"
#include "tests/temp_folder.h"

namespace tandem::api {

struct TempFile {
  testing::TempFolder folder;
  std::string path;
  explicit TempFile(const std::string& text) { write(text); }
  void write(const std::string& text) { path = folder.put("file", text); }
};

}  // namespace tandem::api
