// CUDA's vector types. The wide ones are copied as one access, as the device does it, so that the stand-in sees
// (and counts) one access instead of one per member.
#pragma once

#define SIMT_VECTOR(NAME, T, BYTES, MEMBERS, PARAMS, INIT)                              \
  struct alignas(BYTES) NAME {                                                          \
    T MEMBERS;                                                                          \
    NAME() = default;                                                                   \
    constexpr NAME PARAMS : INIT {}                                                     \
    NAME(const NAME& o) { *this = o; }                                                  \
    NAME& operator=(const NAME& o) {                                                    \
      typedef unsigned char Raw __attribute__((vector_size(BYTES), may_alias));         \
      *reinterpret_cast<Raw*>(this) = *reinterpret_cast<const Raw*>(&o);                \
      return *this;                                                                     \
    }                                                                                   \
  };
#define SIMT_C ,
#define SIMT_VECTOR2(NAME, T, BYTES)                                                              \
  SIMT_VECTOR(NAME, T, BYTES, x SIMT_C y, (T x_ SIMT_C T y_), x(x_) SIMT_C y(y_))                 \
  static inline NAME make_##NAME(T x, T y) { return NAME(x, y); }
#define SIMT_VECTOR4(NAME, T, BYTES)                                                              \
  SIMT_VECTOR(NAME, T, BYTES, x SIMT_C y SIMT_C z SIMT_C w,                                       \
              (T x_ SIMT_C T y_ SIMT_C T z_ SIMT_C T w_), x(x_) SIMT_C y(y_) SIMT_C z(z_) SIMT_C w(w_)) \
  static inline NAME make_##NAME(T x, T y, T z, T w) { return NAME(x, y, z, w); }
#define SIMT_VECTOR3(NAME, T)                                                  \
  struct NAME {                                                                \
    T x, y, z;                                                                 \
  };                                                                           \
  static inline NAME make_##NAME(T x, T y, T z) { return NAME{x, y, z}; }

typedef signed char simt_schar;
typedef unsigned char simt_uchar;
typedef unsigned short simt_ushort;
typedef unsigned int simt_uint;
typedef long long simt_llong;
typedef unsigned long long simt_ullong;
SIMT_VECTOR2(char2, simt_schar, 2)
SIMT_VECTOR2(uchar2, simt_uchar, 2)
SIMT_VECTOR2(short2, short, 4)
SIMT_VECTOR2(ushort2, simt_ushort, 4)
SIMT_VECTOR2(int2, int, 8)
SIMT_VECTOR2(uint2, simt_uint, 8)
SIMT_VECTOR2(float2, float, 8)
SIMT_VECTOR2(double2, double, 16)
SIMT_VECTOR2(longlong2, simt_llong, 16)
SIMT_VECTOR2(ulonglong2, simt_ullong, 16)
SIMT_VECTOR4(char4, simt_schar, 4)
SIMT_VECTOR4(uchar4, simt_uchar, 4)
SIMT_VECTOR4(short4, short, 8)
SIMT_VECTOR4(ushort4, simt_ushort, 8)
SIMT_VECTOR4(int4, int, 16)
SIMT_VECTOR4(uint4, simt_uint, 16)
SIMT_VECTOR4(float4, float, 16)
SIMT_VECTOR3(int3, int)
SIMT_VECTOR3(uint3, simt_uint)
SIMT_VECTOR3(float3, float)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
