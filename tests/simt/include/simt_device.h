// What device code sees: indices, barriers, warp operations, atomics, intrinsics. Everything that makes a thread
// wait, or names it, is a call into the stand-in's own (uninstrumented) code.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "vector_types.h"

// Kernel sources ask for this where they need another body (inline PTX).
#define TANDEM_SIMT 1

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
// One block at a time runs on an OS thread, so its shared memory is that thread's own: a range that every access
// can be held against. `extern __shared__` works for the one name that the stand-in defines (dynamic_shared.h).
#define __shared__ thread_local

namespace simt {

// Where in the source a thread waits.
struct Site {
  const char* file;
  int line;
  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

// Constant within one thread, hence `const`.
__attribute__((const)) uint3 thread_index();
__attribute__((const)) uint3 block_index();
__attribute__((const)) dim3 block_dimensions();
__attribute__((const)) dim3 grid_dimensions();
__attribute__((const)) unsigned lane_index();

enum class Vote { kNone, kCount, kAnd, kOr };
int block_barrier(Vote vote, int predicate, Site site);

// All lanes of `mask` meet; the last calls run(mask, args) with the argument of each lane (null outside the mask).
using CollectiveRun = void (*)(unsigned mask, void* const* args);
void warp_collective(unsigned mask, CollectiveRun run, void* arg, Site site);
unsigned live_lanes();

// Atomics, one operation each: (device or shared) memory is checked as for a write. Relaxed order.
uint32_t atomic_u32(void* p, uint32_t (*combine)(uint32_t old, uint32_t value), uint32_t value);
uint64_t atomic_u64(void* p, uint64_t (*combine)(uint64_t old, uint64_t value), uint64_t value);
uint32_t atomic_cas_u32(void* p, uint32_t expected, uint32_t value);
uint64_t atomic_cas_u64(void* p, uint64_t expected, uint64_t value);
[[noreturn]] void device_trap(const char* what, Site site);

struct ShuffleArg {
  uint64_t value, result;
  int from;  // source lane
};
void run_shuffle(unsigned mask, void* const* args);
struct VoteArg {
  uint64_t value;
  uint32_t result;
};
void run_ballot(unsigned mask, void* const* args);
void run_match_any(unsigned mask, void* const* args);
void run_nothing(unsigned mask, void* const* args);
struct ReduceArg {
  uint32_t value, result;
};
void run_reduce_add(unsigned mask, void* const* args);
void run_reduce_min_s(unsigned mask, void* const* args);
void run_reduce_max_s(unsigned mask, void* const* args);
void run_reduce_min_u(unsigned mask, void* const* args);
void run_reduce_max_u(unsigned mask, void* const* args);
void run_reduce_or(unsigned mask, void* const* args);
void run_reduce_and(unsigned mask, void* const* args);

template <typename T>
inline T shuffle(unsigned mask, T value, int from, Site site) {
  static_assert(sizeof(T) <= 8, "shuffles move up to 8 bytes");
  ShuffleArg a{0, 0, from};
  __builtin_memcpy(&a.value, &value, sizeof(T));
  warp_collective(mask, run_shuffle, &a, site);
  T out;
  __builtin_memcpy(&out, &a.result, sizeof(T));
  return out;
}
inline uint32_t ballot(unsigned mask, uint64_t value, CollectiveRun run, Site site) {
  VoteArg a{value, 0};
  warp_collective(mask, run, &a, site);
  return a.result;
}
inline uint32_t reduce(unsigned mask, uint32_t value, CollectiveRun run, Site site) {
  ReduceArg a{value, 0};
  warp_collective(mask, run, &a, site);
  return a.result;
}

}  // namespace simt

#define threadIdx (::simt::thread_index())
#define blockIdx (::simt::block_index())
// Not macros: launch configurations have members of these names.
namespace simt {
struct BlockDimensions {
  struct { operator unsigned() const { return block_dimensions().x; } } x;
  struct { operator unsigned() const { return block_dimensions().y; } } y;
  struct { operator unsigned() const { return block_dimensions().z; } } z;
};
struct GridDimensions {
  struct { operator unsigned() const { return grid_dimensions().x; } } x;
  struct { operator unsigned() const { return grid_dimensions().y; } } y;
  struct { operator unsigned() const { return grid_dimensions().z; } } z;
};
}  // namespace simt
constexpr simt::BlockDimensions blockDim{};
constexpr simt::GridDimensions gridDim{};
constexpr int warpSize = 32;

// --- barriers and warp operations ---------------------------------------------------------------------------
inline void __syncthreads(simt::Site s = simt::Site::here()) { simt::block_barrier(simt::Vote::kNone, 0, s); }
inline int __syncthreads_count(int p, simt::Site s = simt::Site::here()) { return simt::block_barrier(simt::Vote::kCount, p, s); }
inline int __syncthreads_and(int p, simt::Site s = simt::Site::here()) { return simt::block_barrier(simt::Vote::kAnd, p, s); }
inline int __syncthreads_or(int p, simt::Site s = simt::Site::here()) { return simt::block_barrier(simt::Vote::kOr, p, s); }
inline void __syncwarp(unsigned mask = 0xffffffffu, simt::Site s = simt::Site::here()) {
  simt::warp_collective(mask, simt::run_nothing, nullptr, s);
}
template <typename T>
inline T __shfl_sync(unsigned mask, T v, int lane, int width = 32, simt::Site s = simt::Site::here()) {
  const int self = static_cast<int>(simt::lane_index()), base = self & ~(width - 1);
  return simt::shuffle(mask, v, base + (lane & (width - 1)), s);
}
template <typename T>
inline T __shfl_xor_sync(unsigned mask, T v, int lane_mask, int width = 32, simt::Site s = simt::Site::here()) {
  const int self = static_cast<int>(simt::lane_index()), from = self ^ lane_mask;
  return simt::shuffle(mask, v, (from & ~(width - 1)) > (self & ~(width - 1)) ? self : from, s);
}
template <typename T>
inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32, simt::Site s = simt::Site::here()) {
  const int self = static_cast<int>(simt::lane_index()), from = self + static_cast<int>(delta);
  return simt::shuffle(mask, v, (self & (width - 1)) + static_cast<int>(delta) < width ? from : self, s);
}
template <typename T>
inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32, simt::Site s = simt::Site::here()) {
  const int self = static_cast<int>(simt::lane_index()), from = self - static_cast<int>(delta);
  return simt::shuffle(mask, v, (self & (width - 1)) >= static_cast<int>(delta) ? from : self, s);
}
inline unsigned __ballot_sync(unsigned mask, int p, simt::Site s = simt::Site::here()) { return simt::ballot(mask, p != 0, simt::run_ballot, s); }
inline int __any_sync(unsigned mask, int p, simt::Site s = simt::Site::here()) { return __ballot_sync(mask, p, s) != 0; }
inline int __all_sync(unsigned mask, int p, simt::Site s = simt::Site::here()) { return __ballot_sync(mask, p, s) == mask; }
template <typename T>
inline unsigned __match_any_sync(unsigned mask, T v, simt::Site s = simt::Site::here()) {
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &v, sizeof(T));
  return simt::ballot(mask, bits, simt::run_match_any, s);
}
inline unsigned __activemask() { return simt::live_lanes(); }
inline int __reduce_add_sync(unsigned m, int v, simt::Site s = simt::Site::here()) { return static_cast<int>(simt::reduce(m, static_cast<uint32_t>(v), simt::run_reduce_add, s)); }
inline unsigned __reduce_add_sync(unsigned m, unsigned v, simt::Site s = simt::Site::here()) { return simt::reduce(m, v, simt::run_reduce_add, s); }
inline int __reduce_min_sync(unsigned m, int v, simt::Site s = simt::Site::here()) { return static_cast<int>(simt::reduce(m, static_cast<uint32_t>(v), simt::run_reduce_min_s, s)); }
inline int __reduce_max_sync(unsigned m, int v, simt::Site s = simt::Site::here()) { return static_cast<int>(simt::reduce(m, static_cast<uint32_t>(v), simt::run_reduce_max_s, s)); }
inline unsigned __reduce_min_sync(unsigned m, unsigned v, simt::Site s = simt::Site::here()) { return simt::reduce(m, v, simt::run_reduce_min_u, s); }
inline unsigned __reduce_max_sync(unsigned m, unsigned v, simt::Site s = simt::Site::here()) { return simt::reduce(m, v, simt::run_reduce_max_u, s); }
inline unsigned __reduce_or_sync(unsigned m, unsigned v, simt::Site s = simt::Site::here()) { return simt::reduce(m, v, simt::run_reduce_or, s); }
inline unsigned __reduce_and_sync(unsigned m, unsigned v, simt::Site s = simt::Site::here()) { return simt::reduce(m, v, simt::run_reduce_and, s); }
inline void __threadfence() { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
inline void __nanosleep(unsigned) {}
inline void __trap(simt::Site s = simt::Site::here()) { simt::device_trap("__trap()", s); }

// --- bits ---------------------------------------------------------------------------------------------------
template <typename To, typename From>
inline To simt_bits(From f) {
  static_assert(sizeof(To) == sizeof(From));
  To t;
  __builtin_memcpy(&t, &f, sizeof t);
  return t;
}
inline int __float_as_int(float f) { return simt_bits<int>(f); }
inline unsigned __float_as_uint(float f) { return simt_bits<unsigned>(f); }
inline float __int_as_float(int i) { return simt_bits<float>(i); }
inline float __uint_as_float(unsigned i) { return simt_bits<float>(i); }
inline long long __double_as_longlong(double d) { return simt_bits<long long>(d); }
inline double __longlong_as_double(long long i) { return simt_bits<double>(i); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
inline int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(v)); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline unsigned __brev(unsigned v) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= ((v >> i) & 1u) << (31 - i);
  return r;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned s = selector >> (4 * i) & 0xf;
    unsigned byte = static_cast<unsigned>(both >> (8 * (s & 7))) & 0xff;
    if (s & 8) byte = byte & 0x80 ? 0xff : 0;
    r |= byte << (8 * i);
  }
  return r;
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n) {
  return static_cast<unsigned>((static_cast<uint64_t>(hi) << 32 | lo) >> (n & 31));
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n) {
  return static_cast<unsigned>((static_cast<uint64_t>(hi) << 32 | lo) << (n & 31) >> 32);
}
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<int64_t>(a) * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32); }
inline int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }

#define SIMT_BYTES4(NAME, T, EXPR)                                       \
  inline unsigned NAME(unsigned a, unsigned b) {                         \
    unsigned r = 0;                                                      \
    for (int i = 0; i < 4; ++i) {                                        \
      const int x = static_cast<T>(a >> (8 * i)), y = static_cast<T>(b >> (8 * i)); \
      r |= (static_cast<unsigned>(EXPR) & 0xffu) << (8 * i);             \
    }                                                                    \
    return r;                                                            \
  }
inline int simt_clamp8(int v) { return v < -128 ? -128 : v > 127 ? 127 : v; }
SIMT_BYTES4(__vadd4, uint8_t, x + y)
SIMT_BYTES4(__vsub4, uint8_t, x - y)
SIMT_BYTES4(__vaddss4, int8_t, simt_clamp8(x + y))
SIMT_BYTES4(__vsubss4, int8_t, simt_clamp8(x - y))
SIMT_BYTES4(__vcmpeq4, uint8_t, x == y ? 0xff : 0)
SIMT_BYTES4(__vcmpne4, uint8_t, x != y ? 0xff : 0)
SIMT_BYTES4(__vcmpgtu4, uint8_t, x > y ? 0xff : 0)
SIMT_BYTES4(__vcmpgts4, int8_t, x > y ? 0xff : 0)

inline int __dp4a(int a, int b, int c) {
  return c + static_cast<int8_t>(a) * static_cast<int8_t>(b) + static_cast<int8_t>(a >> 8) * static_cast<int8_t>(b >> 8) +
         static_cast<int8_t>(a >> 16) * static_cast<int8_t>(b >> 16) + (a >> 24) * (b >> 24);
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  return c + (a & 0xff) * (b & 0xff) + (a >> 8 & 0xff) * (b >> 8 & 0xff) + (a >> 16 & 0xff) * (b >> 16 & 0xff) + (a >> 24) * (b >> 24);
}

// --- arithmetic with the rounding in its name ------------------------------------------------------------------
// Compiled with -ffp-contract=off: one rounding an operation.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float a) { return expf(a); }
inline float __exp10f(float a) { return powf(10.0f, a); }
inline float __logf(float a) { return logf(a); }
inline float __log2f(float a) { return log2f(a); }
inline float __powf(float a, float b) { return powf(a, b); }
inline float __sinf(float a) { return sinf(a); }
inline float __cosf(float a) { return cosf(a); }
inline float __tanf(float a) { return tanf(a); }
inline void __sincosf(float a, float* s, float* c) { sincosf(a, s, c); }
inline float __saturatef(float a) { return a < 0.0f ? 0.0f : a > 1.0f ? 1.0f : a; }
inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
inline double rsqrt(double a) { return 1.0 / sqrt(a); }
inline int __float2int_rn(float a) { return static_cast<int>(lrintf(a)); }
inline int __float2int_rz(float a) { return static_cast<int>(a); }
inline int __float2int_rd(float a) { return static_cast<int>(floorf(a)); }
inline int __float2int_ru(float a) { return static_cast<int>(ceilf(a)); }
inline unsigned __float2uint_rn(float a) { return static_cast<unsigned>(llrintf(a)); }
inline unsigned __float2uint_rz(float a) { return static_cast<unsigned>(a); }
inline float __int2float_rn(int a) { return static_cast<float>(a); }
inline float __uint2float_rn(unsigned a) { return static_cast<float>(a); }

#define SIMT_MINMAX(T)                                        \
  inline T min(T a, T b) { return b < a ? b : a; }            \
  inline T max(T a, T b) { return a < b ? b : a; }
SIMT_MINMAX(int)
SIMT_MINMAX(unsigned)
SIMT_MINMAX(long)
SIMT_MINMAX(unsigned long)
SIMT_MINMAX(long long)
SIMT_MINMAX(unsigned long long)
inline unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
inline unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
inline unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
inline unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

// --- memory with a hint ------------------------------------------------------------------------------------------
template <typename T> inline T __ldg(const T* p) { return *p; }
template <typename T> inline T __ldcs(const T* p) { return *p; }
template <typename T> inline T __ldcg(const T* p) { return *p; }
template <typename T> inline T __ldca(const T* p) { return *p; }
template <typename T> inline T __ldcv(const T* p) { return *p; }
template <typename T> inline void __stcs(T* p, T v) { *p = v; }
template <typename T> inline void __stcg(T* p, T v) { *p = v; }
template <typename T> inline void __stwb(T* p, T v) { *p = v; }

// --- atomics -----------------------------------------------------------------------------------------------------
#define SIMT_ATOMIC32(NAME, T, EXPR)                                                                        \
  inline T NAME(T* p, T v) {                                                                                \
    return simt_bits<T>(simt::atomic_u32(                                                                   \
        p, [](uint32_t o, uint32_t n) { const T old = simt_bits<T>(o), value = simt_bits<T>(n);             \
          return simt_bits<uint32_t>(static_cast<T>(EXPR)); }, simt_bits<uint32_t>(v)));                    \
  }
SIMT_ATOMIC32(atomicAdd, int, static_cast<unsigned>(old) + static_cast<unsigned>(value))
SIMT_ATOMIC32(atomicAdd, unsigned, old + value)
SIMT_ATOMIC32(atomicAdd, float, old + value)
SIMT_ATOMIC32(atomicSub, int, static_cast<unsigned>(old) - static_cast<unsigned>(value))
SIMT_ATOMIC32(atomicSub, unsigned, old - value)
SIMT_ATOMIC32(atomicMin, int, min(old, value))
SIMT_ATOMIC32(atomicMin, unsigned, min(old, value))
SIMT_ATOMIC32(atomicMax, int, max(old, value))
SIMT_ATOMIC32(atomicMax, unsigned, max(old, value))
SIMT_ATOMIC32(atomicAnd, unsigned, old & value)
SIMT_ATOMIC32(atomicOr, unsigned, old | value)
SIMT_ATOMIC32(atomicXor, unsigned, old ^ value)
SIMT_ATOMIC32(atomicOr, int, old | value)
SIMT_ATOMIC32(atomicExch, int, (void(old), value))
SIMT_ATOMIC32(atomicExch, unsigned, (void(old), value))
SIMT_ATOMIC32(atomicExch, float, (void(old), value))
SIMT_ATOMIC32(atomicInc, unsigned, old >= value ? 0 : old + 1)
inline int atomicCAS(int* p, int e, int v) { return static_cast<int>(simt::atomic_cas_u32(p, static_cast<uint32_t>(e), static_cast<uint32_t>(v))); }
inline unsigned atomicCAS(unsigned* p, unsigned e, unsigned v) { return simt::atomic_cas_u32(p, e, v); }
inline unsigned long long atomicAdd(unsigned long long* p, unsigned long long v) {
  return simt::atomic_u64(p, [](uint64_t o, uint64_t n) { return o + n; }, v);
}
inline unsigned long long atomicMax(unsigned long long* p, unsigned long long v) {
  return simt::atomic_u64(p, [](uint64_t o, uint64_t n) { return o < n ? n : o; }, v);
}
inline unsigned long long atomicCAS(unsigned long long* p, unsigned long long e, unsigned long long v) { return simt::atomic_cas_u64(p, e, v); }
