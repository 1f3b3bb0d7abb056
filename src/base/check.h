// CHECK: a broken invariant is our bug. Prints expression, text and place, then aborts the process, by
// design nearly always a worker (the supervisor restarts it). Never used on someone else's input.
#pragma once

namespace tandem {
[[noreturn]] void check_failed(const char* expression, const char* file, int line, const char* text);
}

#define CHECK(condition)                                                         \
  do {                                                                           \
    if (!(condition)) ::tandem::check_failed(#condition, __FILE__, __LINE__, ""); \
  } while (false)
#define CHECK_MSG(condition, text)                                                 \
  do {                                                                             \
    if (!(condition)) ::tandem::check_failed(#condition, __FILE__, __LINE__, text); \
  } while (false)
#ifdef NDEBUG
#define DCHECK(condition) do { if (false) CHECK(condition); } while (false)
#else
#define DCHECK(condition) CHECK(condition)
#endif
