// The AVX-VNNI column's source with its one instruction, VPDPBUSD on 256 bits, in the EVEX encoding of AVX-512: the same
// operation, on processors that many more people have. What remains untested without AVX-VNNI is the assembler's
// encoding alone.
#if defined(__x86_64__)
#include <immintrin.h>
#define _mm256_dpbusd_avx_epi32 _mm256_dpbusd_epi32
#define avxvnni avxvnni_in_evex
#include "kernels/matmul_avxvnni.cc"
#endif
