// Block layouts of the GGUF quantization types, byte for byte as they stand in a model file
// (little-endian, packed, no alignment promised: readers copy a block out with memcpy or read
// bytes). `half` fields are IEEE binary16 bits.
#pragma once

#include <stdint.h>

namespace tandem {

constexpr int QK = 32;     // values in a block of the simple types
constexpr int QK_K = 256;  // values in a super-block of the k-quants

struct block_q4_0 {
  uint16_t d;      // half scale; value = d * (nibble - 8)
  uint8_t qs[16];  // low nibbles: values 0..15, high nibbles: values 16..31
};
struct block_q4_1 {
  uint16_t d;
  uint16_t m;  // half minimum; value = d * nibble + m
  uint8_t qs[16];
};
struct block_q5_0 {
  uint16_t d;
  uint8_t qh[4];  // fifth bit of value i is bit i of this little-endian word; value = d * (q - 16)
  uint8_t qs[16];
};
struct block_q5_1 {
  uint16_t d;
  uint16_t m;
  uint8_t qh[4];
  uint8_t qs[16];
};
struct block_q8_0 {
  uint16_t d;
  int8_t qs[32];
};
struct block_q8_1 {
  uint16_t d;
  uint16_t s;  // half d * sum(qs)
  int8_t qs[32];
};
struct block_q2_K {
  uint8_t scales[16];  // of 16 values: low nibble scale, high nibble min
  uint8_t qs[64];      // 2 bits a value, four planes of 32 in each half of 128
  uint16_t d;          // of the scales
  uint16_t dmin;       // of the mins; value = d*scale*q - dmin*min
};
struct block_q3_K {
  uint8_t hmask[32];   // third bit, one plane of 32 a bit; clear means minus 4
  uint8_t qs[64];      // low two bits, as in Q2_K
  uint8_t scales[12];  // 16 six-bit scales, offset 32
  uint16_t d;
};
struct block_q4_K {
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];  // 8 six-bit scales and 8 six-bit mins
  uint8_t qs[128];     // each 32 bytes: low nibbles one block of 32, high nibbles the next
};
struct block_q5_K {
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];
  uint8_t qh[32];  // bit b of byte l: fifth bit of value l of block b
  uint8_t qs[128];
};
struct block_q6_K {
  uint8_t ql[128];
  uint8_t qh[64];
  int8_t scales[16];  // of 16 values
  uint16_t d;         // value = d * scale * (q - 32)
};
struct block_q8_K {
  float d;
  int8_t qs[256];
  int16_t bsums[16];
};
struct block_iq4_nl {
  uint16_t d;
  uint8_t qs[16];  // indices into kIq4Values
};
struct block_iq4_xs {
  uint16_t d;
  uint16_t scales_h;    // high two bits of the 8 scales
  uint8_t scales_l[4];  // low four bits; scale offset 32
  uint8_t qs[128];
};
struct block_mxfp4 {
  uint8_t e;       // power-of-two scale, E8M0
  uint8_t qs[16];  // indices into kMxfp4Values (doubled E2M1 values)
};

static_assert(sizeof(block_q4_0) == 18 && sizeof(block_q4_1) == 20);
static_assert(sizeof(block_q5_0) == 22 && sizeof(block_q5_1) == 24);
static_assert(sizeof(block_q8_0) == 34 && sizeof(block_q8_1) == 36);
static_assert(sizeof(block_q2_K) == 84 && sizeof(block_q3_K) == 110);
static_assert(sizeof(block_q4_K) == 144 && sizeof(block_q5_K) == 176);
static_assert(sizeof(block_q6_K) == 210 && sizeof(block_q8_K) == 292);
static_assert(sizeof(block_iq4_nl) == 18 && sizeof(block_iq4_xs) == 136);
static_assert(sizeof(block_mxfp4) == 17);

constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace tandem
