// A small TOML file as rows, for tables of data (the degrade ladder) that are no configuration keys. toml++ stays
// inside toml_rows.cc. Pure.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "base/status.h"

namespace tandem {

struct TomlRow {
  std::string table;  // "load.queue" for [load.queue]; "rung" for each [[rung]]
  int index = 0;      // which of a table's array; 0 for a plain table
  std::string key;
  std::variant<bool, double, std::string, std::vector<std::string>> value;  // integers are doubles
  int line = 0;
};

// In the order of the file's lines. Other kinds of values (dates, nested arrays, mixed lists) are an error that names
// file and line; so is broken TOML.
Result<std::vector<TomlRow>> read_toml_rows(const std::string& text, const std::string& file);

}  // namespace tandem
