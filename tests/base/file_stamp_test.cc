// A file's stamp follows the file, not its name.
#include "base/file_stamp.h"

#include <catch2/catch.hpp>

namespace tandem {

TEST_CASE("file stamp: every field counts, the change of attributes apart") {
  struct stat st{};
  st.st_dev = 1, st.st_ino = 2, st.st_size = 3, st.st_mtim = {4, 5}, st.st_ctim = {6, 7};
  CHECK(file_stamp(st) == "1,2,3,4,5,");
  CHECK(file_change_stamp(st) == "6,7,");
}

}  // namespace tandem
