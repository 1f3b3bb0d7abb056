#include "base/file_stamp.h"

#include <cstdint>
#include <initializer_list>

namespace tandem {
namespace {

std::string joined(std::initializer_list<int64_t> values) {
  std::string text;
  for (int64_t v : values) text += std::to_string(v) + ",";
  return text;
}

}  // namespace

std::string file_stamp(const struct stat& st) {
  return joined({static_cast<int64_t>(st.st_dev), static_cast<int64_t>(st.st_ino), static_cast<int64_t>(st.st_size),
                 static_cast<int64_t>(st.st_mtim.tv_sec), static_cast<int64_t>(st.st_mtim.tv_nsec)});
}

std::string file_change_stamp(const struct stat& st) {
  return joined({static_cast<int64_t>(st.st_ctim.tv_sec), static_cast<int64_t>(st.st_ctim.tv_nsec)});
}

}  // namespace tandem
