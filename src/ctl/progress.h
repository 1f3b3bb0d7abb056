// How far a copy or download is: one line on stderr, rewritten on a terminal, every tenth elsewhere.
#pragma once

#include <cstdint>
#include <string>

namespace tandem::ctl {

class Progress {
 public:
  Progress(std::string what, int64_t total_bytes);  // 0: not known
  ~Progress();                                      // ends the line
  void set_total(int64_t total_bytes) { total_ = total_bytes; }
  void at(int64_t bytes);

 private:
  std::string what_;
  int64_t total_, shown_ = -1;
  bool is_terminal_;
};

}  // namespace tandem::ctl
