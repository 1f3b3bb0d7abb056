#include "base/toml_rows.h"

#include <algorithm>
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

namespace tandem {
namespace {

struct Reader {
  std::string file;
  std::vector<TomlRow> rows;

  Status fail(const toml::node& node, const std::string& name, const char* rule) const {
    return invalid_argument(file + ":" + std::to_string(node.source().begin.line) + ": " + name + " " + rule);
  }

  Status read_value(const std::string& table, int index, const std::string& key, const toml::node& node) {
    TomlRow row{table, index, key, {}, static_cast<int>(node.source().begin.line)};
    if (auto b = node.value_exact<bool>()) {
      row.value = *b;
    } else if (auto n = node.value<double>(); n && node.is_number()) {
      row.value = *n;
    } else if (auto s = node.value_exact<std::string>()) {
      row.value = *s;
    } else if (const toml::array* list = node.as_array()) {
      std::vector<std::string> texts;
      for (const toml::node& item : *list) {
        auto text = item.value_exact<std::string>();
        if (!text) return fail(item, key, "must be a list of strings");
        texts.push_back(*text);
      }
      row.value = std::move(texts);
    } else {
      return fail(node, key, "must be a number, true or false, a string or a list of strings");
    }
    rows.push_back(std::move(row));
    return ok_status();
  }

  Status read_table(const std::string& name, int index, const toml::table& table) {
    for (auto&& [key, node] : table) {
      const std::string path = (name.empty() ? "" : name + ".") + std::string(key.str());
      const toml::array* list = node.as_array();
      if (const toml::table* inner = node.as_table()) {
        CHECK_OK(read_table(path, 0, *inner));
      } else if (list != nullptr && !list->empty() && list->front().is_table()) {
        for (size_t i = 0; i < list->size(); ++i) {
          const toml::table* item = (*list)[i].as_table();
          if (item == nullptr) return fail((*list)[i], path, "must hold tables only");
          CHECK_OK(read_table(path, static_cast<int>(i), *item));
        }
      } else {
        CHECK_OK(read_value(name, index, std::string(key.str()), node));
      }
    }
    return ok_status();
  }
};

}  // namespace

Result<std::vector<TomlRow>> read_toml_rows(const std::string& text, const std::string& file) {
  toml::parse_result parsed = toml::parse(text);
  if (!parsed)
    return invalid_argument(file + ":" + std::to_string(parsed.error().source().begin.line) + ": " +
                            std::string(parsed.error().description()));
  Reader reader{file, {}};
  CHECK_OK(reader.read_table("", 0, parsed.table()));
  std::stable_sort(reader.rows.begin(), reader.rows.end(), [](const TomlRow& a, const TomlRow& b) { return a.line < b.line; });
  return std::move(reader.rows);
}

}  // namespace tandem
