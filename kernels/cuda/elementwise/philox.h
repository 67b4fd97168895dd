/* philox.h - random words on the device; the same bits as base/numbers/philox.h. */
#ifndef MS_KERNELS_CUDA_PHILOX_H
#define MS_KERNELS_CUDA_PHILOX_H

#include "kernels/cuda/launch.h"

struct ms_words {
  unsigned word[4];
};

/* Philox4x32-10, Salmon et al. 2011: the words of elements 4 block to 4 block + 3. */
__device__ __forceinline__ ms_words ms_draw(uint64_t seed, uint64_t stream, uint64_t block) {
  unsigned key0 = static_cast<unsigned>(seed), key1 = static_cast<unsigned>(seed >> 32);
  unsigned c0 = static_cast<unsigned>(block), c1 = static_cast<unsigned>(block >> 32);
  unsigned c2 = static_cast<unsigned>(stream), c3 = static_cast<unsigned>(stream >> 32);
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const unsigned high0 = __umulhi(0xd2511f53u, c0), low0 = 0xd2511f53u * c0;
    const unsigned high1 = __umulhi(0xcd9e8d57u, c2), low1 = 0xcd9e8d57u * c2;
    c0 = high1 ^ c1 ^ key0;
    c2 = high0 ^ c3 ^ key1;
    c1 = low1;
    c3 = low0;
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  return {{c0, c1, c2, c3}};
}

/* The word of element i within its group of four. */
__device__ __forceinline__ unsigned ms_word_of(const ms_words &w, int64_t i) {
  const int own = static_cast<int>(i % 4);
  return own == 0 ? w.word[0] : own == 1 ? w.word[1] : own == 2 ? w.word[2] : w.word[3];
}

#endif
