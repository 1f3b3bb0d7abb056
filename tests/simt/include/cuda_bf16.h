// bfloat16 in the spelling of CUDA, rounding to nearest even.
#pragma once

#include "simt_device.h"

struct alignas(2) __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  __nv_bfloat16(float f) {
    const uint32_t u = simt_bits<uint32_t>(f);
    bits = (u & 0x7fffffffu) > 0x7f800000u ? uint16_t{0x7fff}
                                           : static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
  }
  operator float() const { return simt_bits<float>(static_cast<uint32_t>(bits) << 16); }
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
  __nv_bfloat162() = default;
  __nv_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) : x(a), y(b) {}
  __nv_bfloat162(const __nv_bfloat162& o) { *this = o; }
  __nv_bfloat162& operator=(const __nv_bfloat162& o) {
    typedef unsigned char Raw __attribute__((vector_size(4), may_alias));
    *reinterpret_cast<Raw*>(this) = *reinterpret_cast<const Raw*>(&o);
    return *this;
  }
};
inline float __bfloat162float(__nv_bfloat16 b) { return static_cast<float>(b); }
inline __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
inline __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 b) { return b.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u) { __nv_bfloat16 b; b.bits = u; return b; }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return make_float2(static_cast<float>(v.x), static_cast<float>(v.y)); }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return __nv_bfloat162(__nv_bfloat16(a), __nv_bfloat16(b)); }
