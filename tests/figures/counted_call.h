// A call whose instructions callgrind counts and reports under a name.
#pragma once

#include <valgrind/callgrind.h>

#include <functional>
#include <string>

namespace tandem {

inline void count_calls(const std::string& name, const std::function<void()>& call, int n_calls = 1) {
  call();  // page faults and lazy binding are no part of the figure
  CALLGRIND_ZERO_STATS;
  CALLGRIND_TOGGLE_COLLECT;
  for (int i = 0; i < n_calls; ++i) call();
  CALLGRIND_TOGGLE_COLLECT;
  CALLGRIND_DUMP_STATS_AT(name.c_str());
}

}  // namespace tandem
