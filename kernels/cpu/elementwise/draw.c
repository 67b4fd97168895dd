/* draw.c - Philox for a block of elements at once. Compilers do not find the instruction that multiplies 32 by 32 bits
 * in each 64-bit lane, so intrinsics for AVX2 and AVX-512 compute the ten rounds. Other machines use
 * base/numbers/philox.h; the bits are the same. */
#include "kernels/cpu/elementwise/draw.h"

#include <string.h>

#include "base/numbers/philox.h"

static void draw_portably(uint64_t seed, uint64_t stream, uint64_t block, uint32_t *words) {
  for (int i = 0; i < MS_BLOCK; i += 4) ms_philox4x32(seed, stream, block + (uint64_t)i / 4, words + i);
}

#ifdef __x86_64__
  #include <immintrin.h>

  /* Each lane computes one block. The counters c0 to c3 are in the low halves of the lanes; the high halves are
   * ignored. Lane 2k computes block k and lane 2k + 1 computes block lanes/2 + k, so that two unpack instructions put
   * the words in order. */
  #define DRAW(isa, features, vector, lanes, multiply, unpack_low, unpack_high)                                   \
    __attribute__((target(features))) static void draw_with_##isa(uint64_t seed, uint64_t stream, uint64_t block, \
                                                                  uint32_t *words) {                              \
      typedef uint64_t lane_vector __attribute__((vector_size(8 * lanes)));                                       \
      const lane_vector low_half = (lane_vector){0} + 0xffffffffu;                                                \
      const lane_vector factor0 = (lane_vector){0} + 0xd2511f53u, factor1 = (lane_vector){0} + 0xcd9e8d57u;       \
      for (int group = 0; group < MS_BLOCK / (4 * lanes); group++) {                                              \
        lane_vector c0, c1, c2 = (lane_vector){0} + stream, c3 = c2 >> 32;                                        \
        for (int l = 0; l < lanes; l++) c0[l] = block + (uint64_t)(group * lanes + l % 2 * (lanes / 2) + l / 2);  \
        c1 = c0 >> 32;                                                                                            \
        for (uint32_t round = 0; round < 10; round++) {                                                           \
          const uint32_t key0 = (uint32_t)seed + round * 0x9e3779b9u,                                             \
                         key1 = (uint32_t)(seed >> 32) + round * 0xbb67ae85u;                                     \
          lane_vector product0 = (lane_vector)multiply((vector)c0, (vector)factor0);                              \
          lane_vector product1 = (lane_vector)multiply((vector)c2, (vector)factor1);                              \
          c0 = (product1 >> 32) ^ c1 ^ key0;                                                                      \
          c2 = (product0 >> 32) ^ c3 ^ key1;                                                                      \
          c1 = product1;                                                                                          \
          c3 = product0;                                                                                          \
        }                                                                                                         \
        const vector low = (vector)((c0 & low_half) | c1 << 32), high = (vector)((c2 & low_half) | c3 << 32);     \
        const vector first = unpack_low(low, high), second = unpack_high(low, high);                              \
        memcpy(words + group * 4 * lanes, &first, sizeof first);                                                  \
        memcpy(words + group * 4 * lanes + 2 * lanes, &second, sizeof second);                                    \
      }                                                                                                           \
    }

DRAW(avx2, "avx2", __m256i, 4, _mm256_mul_epu32, _mm256_unpacklo_epi64, _mm256_unpackhi_epi64)
DRAW(avx512, "avx512f", __m512i, 8, _mm512_mul_epu32, _mm512_unpacklo_epi64, _mm512_unpackhi_epi64)
#endif

ms_draw_fn *ms_pick_draw(void) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) return draw_with_avx512;
  if (__builtin_cpu_supports("avx2")) return draw_with_avx2;
#endif
  return draw_portably;
}
