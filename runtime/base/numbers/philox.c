/* philox.c - Philox4x32-10 and the laws drawn from it.
 *
 * Word j of block b of a stream gives element 4b + j. Blocks are made LANES at a time by loops of a fixed trip count
 * that the compiler turns into vector code, in clones for the wider instruction sets, picked at run time.
 * The same bits come out on every machine: only additions, multiplications and divisions that IEEE 754 rounds, with
 * contraction into fused multiply-adds off, and no call into libm (whose sqrtf, for errno,
 * would also keep the loops scalar).
 */
#include "base/numbers/philox.h"

#include <string.h>

#ifdef __FAST_MATH__
  #error "philox.c needs IEEE arithmetic: compile it without -ffast-math"
#endif

#if defined(__clang__)
  #pragma STDC FP_CONTRACT OFF
#else
  #pragma GCC optimize("O3", "fp-contract=off")
#endif

#define INLINE static inline __attribute__((always_inline))

enum { LANES = 64, BATCH = 4 * LANES };

/* Multipliers and Weyl key increments of the paper. */
#define M0 0xd2511f53u
#define M1 0xcd9e8d57u
#define W0 0x9e3779b9u
#define W1 0xbb67ae85u

#define ROUND(r)                                    \
  do {                                              \
    uint64_t p0 = (uint64_t)M0 * c0;                \
    uint64_t p1 = (uint64_t)M1 * c2;                \
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ (k0 + (r)*W0); \
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ (k1 + (r)*W1); \
    c1 = (uint32_t)p1;                              \
    c3 = (uint32_t)p0;                              \
  } while (0)

#define TEN_ROUNDS() \
  do {               \
    ROUND(0u);       \
    ROUND(1u);       \
    ROUND(2u);       \
    ROUND(3u);       \
    ROUND(4u);       \
    ROUND(5u);       \
    ROUND(6u);       \
    ROUND(7u);       \
    ROUND(8u);       \
    ROUND(9u);       \
  } while (0)

void ms_philox4x32(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4]) {
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
  uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
  TEN_ROUNDS();
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

/* words[j][l] = word j of block + l */
INLINE void draw_blocks(uint64_t seed, uint64_t stream, uint64_t block, uint32_t words[4][LANES]) {
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int l = 0; l < LANES; l++) {
    uint64_t b = block + (uint64_t)l;
    uint32_t c0 = (uint32_t)b, c1 = (uint32_t)(b >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    TEN_ROUNDS();
    words[0][l] = c0;
    words[1][l] = c1;
    words[2][l] = c2;
    words[3][l] = c3;
  }
}

INLINE float float_of_bits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

INLINE uint32_t bits_of_float(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  return bits;
}

/* Natural logarithm of a normal positive u: u = 2^e m with m in [sqrt(1/2), sqrt(2)), ln m = 2 artanh((m-1)/(m+1)). */
INLINE float logarithm(float u) {
  uint32_t bits = bits_of_float(u) + (0x3f800000u - 0x3f3504f3u);
  float e = (float)((int32_t)(bits >> 23) - 127);
  float m = float_of_bits((bits & 0x007fffffu) + 0x3f3504f3u);
  float s = (m - 1.0f) / (m + 1.0f), t = s * s;
  float p = 2.0f + t * (2.0f / 3.0f + t * (2.0f / 5.0f + t * (2.0f / 7.0f + t * (2.0f / 9.0f))));
  return e * 0.693147180559945f + s * p;
}

/* Square root of x >= 0: a guess from its exponent, two Newton steps for 1/sqrt(x), a third for the root. */
INLINE float square_root(float x) {
  float y = float_of_bits(0x5f375a86u - (bits_of_float(x) >> 1)), half = 0.5f * x;
  y = y * (1.5f - half * y * y);
  y = y * (1.5f - half * y * y);
  float root = x * y;
  return root + 0.5f * y * (x - root * root);
}

/* Cosine and sine of turn / 2^32 of a full turn. The quadrant is taken off exactly, in integers; Taylor on the rest. */
INLINE void cosine_sine(uint32_t turn, float *cosine, float *sine) {
  uint32_t quadrant = (turn + 0x20000000u) >> 30;
  float x = (float)(int32_t)(turn - (quadrant << 30)) * 1.46291807926716e-9f; /* 2 pi / 2^32 */
  float t = x * x;
  float c = 1.0f + t * (-1.0f / 2 + t * (1.0f / 24 + t * (-1.0f / 720 + t * (1.0f / 40320 + t * (-1.0f / 3628800)))));
  float s = x * (1.0f + t * (-1.0f / 6 + t * (1.0f / 120 + t * (-1.0f / 5040 + t * (1.0f / 362880)))));
  uint32_t odd = 0u - (quadrant & 1u), cb = bits_of_float(c), sb = bits_of_float(s);
  uint32_t swap = (cb ^ sb) & odd;
  uint32_t negative_cosine = ((quadrant + 1u) & 2u) << 30, negative_sine = (quadrant & 2u) << 30;
  *cosine = float_of_bits((cb ^ swap) ^ negative_cosine);
  *sine = float_of_bits((sb ^ swap) ^ negative_sine);
}

/* Box-Muller: radius sqrt(-2 ln u) with u in (0,1] of 31 bits, so that normals reach 6.66 deviations. */
INLINE void normal_pair(uint32_t a, uint32_t b, float *x, float *y) {
  float u = ((float)(int32_t)(a >> 1) + 0.5f) * 4.656612873077393e-10f; /* 2^-31 */
  float radius = square_root(-2.0f * logarithm(u)), cosine, sine;
  cosine_sine(b, &cosine, &sine);
  *x = radius * cosine;
  *y = radius * sine;
}

INLINE void normal_batch(uint64_t seed, uint64_t stream, uint64_t block, float *out) {
  uint32_t words[4][LANES];
  float z[4][LANES];
  draw_blocks(seed, stream, block, words);
  for (int l = 0; l < LANES; l++) normal_pair(words[0][l], words[1][l], &z[0][l], &z[1][l]);
  for (int l = 0; l < LANES; l++) normal_pair(words[2][l], words[3][l], &z[2][l], &z[3][l]);
  for (int l = 0; l < LANES; l++)
    for (int j = 0; j < 4; j++) out[4 * l + j] = z[j][l];
}

INLINE void uniform_batch(uint64_t seed, uint64_t stream, uint64_t block, float *out) {
  uint32_t words[4][LANES];
  draw_blocks(seed, stream, block, words);
  for (int l = 0; l < LANES; l++)
    for (int j = 0; j < 4; j++) out[4 * l + j] = (float)(int32_t)(words[j][l] >> 8) * 5.960464477539063e-8f; /* 2^-24 */
}

/* One batch: the LANES blocks from `block`, out is [BATCH]. */
typedef void batch_function(uint64_t seed, uint64_t stream, uint64_t block, float *out);

#define CLONE(law, suffix, attribute)                                                                \
  attribute static void law##_##suffix(uint64_t seed, uint64_t stream, uint64_t block, float *out) { \
    law##_batch(seed, stream, block, out);                                                           \
  }

#ifdef __x86_64__
  #define AVX2 __attribute__((target("avx2")))
  #if defined(__clang__)
    #define AVX512 __attribute__((target("avx512f,avx512dq,avx512vl")))
  #else
    #define AVX512 __attribute__((target("avx512f,avx512dq,avx512vl,prefer-vector-width=512")))
  #endif
CLONE(normal, avx2, AVX2)
CLONE(uniform, avx2, AVX2)
CLONE(normal, avx512, AVX512)
CLONE(uniform, avx512, AVX512)
#endif
CLONE(normal, base, )
CLONE(uniform, base, )

static batch_function *pick_normal(void) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) return normal_avx512;
  if (__builtin_cpu_supports("avx2")) return normal_avx2;
#endif
  return normal_base;
}

static batch_function *pick_uniform(void) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) return uniform_avx512;
  if (__builtin_cpu_supports("avx2")) return uniform_avx2;
#endif
  return uniform_base;
}

/* Whole batches go straight to out; the ragged ends by way of a buffer. */
static void fill(batch_function *batch, uint64_t seed, uint64_t stream, int64_t first, int64_t count, float *out) {
  int64_t done = 0;
  while (done < count) {
    int64_t element = first + done, skip = element % 4, take = count - done;
    uint64_t block = (uint64_t)(element / 4);
    if (skip == 0 && take >= BATCH) {
      batch(seed, stream, block, out + done);
      take = BATCH;
    } else {
      float buffer[BATCH];
      batch(seed, stream, block, buffer);
      if (take > BATCH - skip) take = BATCH - skip;
      memcpy(out + done, buffer + skip, (size_t)take * sizeof *out);
    }
    done += take;
  }
}

void ms_philox_normal(uint64_t seed, uint64_t stream, int64_t first, int64_t count, float *out) {
  fill(pick_normal(), seed, stream, first, count, out);
}

void ms_philox_uniform(uint64_t seed, uint64_t stream, int64_t first, int64_t count, float *out) {
  fill(pick_uniform(), seed, stream, first, count, out);
}
