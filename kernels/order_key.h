/* order_key.h - numbers as keys whose order is that of topk: larger numbers first, NaN before all of them, and of equal
 * numbers the one with the smaller index. Keys of different elements differ, so the order does not depend on how it is
 * found. Plain C that both devices compile.
 */
#ifndef MS_KERNELS_ORDER_KEY_H
#define MS_KERNELS_ORDER_KEY_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
  #define MS_ORDER_FUNCTION static inline __host__ __device__
#else
  #define MS_ORDER_FUNCTION static inline __attribute__((always_inline, unused))
#endif

/* The largest index; the key's low bits are what is left of it. */
#define MS_ORDER_LAST 0x7fffffff

/* Bits of x in an order of unsigned numbers: those of negative numbers fall, and -0 equals 0. */
MS_ORDER_FUNCTION uint32_t ms_order_bits(float x) {
  uint32_t bits;
  x += 0.0f;
  memcpy(&bits, &x, sizeof bits);
  if (x != x) return UINT32_MAX;
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* The key of element `index`, 0 to MS_ORDER_LAST; largest 0: smaller numbers have larger keys. No key is UINT64_MAX. */
MS_ORDER_FUNCTION uint64_t ms_order_key(float x, int64_t index, int largest) {
  const uint32_t bits = largest ? ms_order_bits(x) : ~ms_order_bits(x);
  return (uint64_t)bits << 32 | (uint32_t)(MS_ORDER_LAST - (int32_t)index);
}

MS_ORDER_FUNCTION int64_t ms_order_index(uint64_t key) { return MS_ORDER_LAST - (int64_t)(uint32_t)key; }

#endif
