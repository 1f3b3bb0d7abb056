// How far a tool is, on stderr: a line rewritten on a terminal, every tenth elsewhere. Confined to one thread.
#pragma once

#include <cstdint>

namespace tandem {

class ToolProgress {
 public:
  // "WHAT [####......] 40 %, 2 of 5 UNIT"; amounts are shown divided by unit_size. total > 0.
  ToolProgress(const char* what, int64_t total, int64_t unit_size, const char* unit);
  void at(int64_t done);

 private:
  const char* what_;
  const char* unit_;
  int64_t total_, unit_size_, shown_ = -1;
  bool is_terminal_;
};

}  // namespace tandem
