// IEEE half in the spelling of CUDA, rounding to nearest even; arithmetic rounds once to half an operation.
#pragma once

#include "simt_device.h"

namespace simt {
inline float half_bits_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, rest = h & 0x7fffu;
  if (rest >= 0x7c00u) return simt_bits<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  // The exponent of a float counts from 127, a half's from 15: 2^112 makes up for it, subnormal halves too.
  return simt_bits<float>(sign | simt_bits<uint32_t>(simt_bits<float>(rest << 13) * 0x1p112f));
}
inline uint16_t float_to_half_bits(float f) {
  const uint32_t u = simt_bits<uint32_t>(f), sign = u >> 16 & 0x8000u, rest = u & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7fffu);
  if (rest >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (rest < 0x38800000u) {  // a subnormal half: let the float adder round at its last bit, 2^-24
    return static_cast<uint16_t>(sign | (simt_bits<uint32_t>(simt_bits<float>(rest) + 0.5f) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13));
}
}  // namespace simt

struct alignas(2) __half {
  uint16_t bits;
  __half() = default;
  __half(float f) : bits(simt::float_to_half_bits(f)) {}
  operator float() const { return simt::half_bits_to_float(bits); }
};
struct __half_raw {
  unsigned short x;
};
typedef __half half;
struct alignas(4) __half2 {
  __half x, y;
  __half2() = default;
  __half2(__half a, __half b) : x(a), y(b) {}
  __half2(const __half2& o) { *this = o; }
  __half2& operator=(const __half2& o) {
    typedef unsigned char Raw __attribute__((vector_size(4), may_alias));
    *reinterpret_cast<Raw*>(this) = *reinterpret_cast<const Raw*>(&o);
    return *this;
  }
};
typedef __half2 half2;

inline __half simt_half(uint16_t bits) { __half h; h.bits = bits; return h; }
inline float __half2float(__half h) { return static_cast<float>(h); }
inline __half __float2half(float f) { return __half(f); }
inline __half __float2half_rn(float f) { return __half(f); }
inline unsigned short __half_as_ushort(__half h) { return h.bits; }
inline short __half_as_short(__half h) { return static_cast<short>(h.bits); }
inline __half __ushort_as_half(unsigned short u) { return simt_half(u); }
inline __half __short_as_half(short u) { return simt_half(static_cast<uint16_t>(u)); }
inline __half2 __halves2half2(__half a, __half b) { return __half2(a, b); }
inline __half2 make_half2(__half a, __half b) { return __half2(a, b); }
inline __half2 __half2half2(__half a) { return __half2(a, a); }
inline __half2 __float2half2_rn(float a) { return __half2(__half(a), __half(a)); }
inline __half2 __floats2half2_rn(float a, float b) { return __half2(__half(a), __half(b)); }
inline __half2 __float22half2_rn(float2 v) { return __half2(__half(v.x), __half(v.y)); }
inline float2 __half22float2(__half2 v) { return make_float2(static_cast<float>(v.x), static_cast<float>(v.y)); }
inline float __low2float(__half2 v) { return static_cast<float>(v.x); }
inline float __high2float(__half2 v) { return static_cast<float>(v.y); }
inline __half __low2half(__half2 v) { return v.x; }
inline __half __high2half(__half2 v) { return v.y; }
inline __half __hadd(__half a, __half b) { return __half(float(a) + float(b)); }
inline __half __hsub(__half a, __half b) { return __half(float(a) - float(b)); }
inline __half __hmul(__half a, __half b) { return __half(float(a) * float(b)); }
inline __half __hfma(__half a, __half b, __half c) { return __half(static_cast<float>(double(float(a)) * double(float(b)) + double(float(c)))); }
inline __half2 __hadd2(__half2 a, __half2 b) { return __half2(__hadd(a.x, b.x), __hadd(a.y, b.y)); }
inline __half2 __hsub2(__half2 a, __half2 b) { return __half2(__hsub(a.x, b.x), __hsub(a.y, b.y)); }
inline __half2 __hmul2(__half2 a, __half2 b) { return __half2(__hmul(a.x, b.x), __hmul(a.y, b.y)); }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return __half2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)); }
inline bool __hisnan(__half a) { return (a.bits & 0x7fffu) > 0x7c00u; }
