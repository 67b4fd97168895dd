/* pieces.h - what tests of numbers in few bits (kernels/formats/quantised_sum.h) have in common: gradients of ranks,
 * and how a block of them is rounded, written out.
 */
#ifndef MS_TESTS_PIECES_H
#define MS_TESTS_PIECES_H

#include "kernels/formats/quantised_sum.h"

#include <math.h>
#include <stdlib.h>

#include "base/numbers/bf16.h"
#include "tests/c/support/kernel_case.h"

static inline float value_of(int rank, int64_t i) {
  uint32_t x = (uint32_t)(i * 2654435761u) ^ (uint32_t)(rank * 40503 + 77);
  x ^= x >> 15;
  x *= 0x2c1b3c6du;
  x ^= x >> 12;
  /* Blocks differ by orders of magnitude, and some are zero. */
  return i / 256 % 3 == 2 ? 0 : ldexpf((float)(int32_t)x, -24 - (int)(i / 256 % 7));
}

static inline float max_of(int dtype) { return dtype == MS_I8 ? 127 : 7; }

/* Rounds [begin, end) of x, a block, to codes and back. Every element moves by half a step at most. */
static inline void round_block(int dtype, float *x, int64_t begin, int64_t end) {
  float amax = 0;
  for (int64_t i = begin; i < end; i++) amax = fmaxf(amax, fabsf(x[i]));
  const float scale = amax / max_of(dtype), half = amax / (2 * max_of(dtype));
  for (int64_t i = begin; i < end; i++) {
    const float rounded = scale > 0 ? rintf(x[i] / scale) * scale : 0;
    assert_true(fabsf(rounded - x[i]) <= half * (1 + 1e-5f));
    x[i] = rounded;
  }
}

static inline ms_value_info vector_of(int dtype, int64_t n) {
  return (ms_value_info){.dtype = dtype, .ndim = 1, .dims = {n}};
}

static inline ms_value_info words_of(int64_t n) { return vector_of(MS_I32, n); }

/* Both kinds of devices make the same bytes. */
static inline void assert_as_on_the_cpu(const kernel_case *c) {
  const int64_t bytes = tensor_bytes(&c->call.out[0]);
  ms_kernel_call call = c->call;
  void *words = call.out_data[0] = malloc((size_t)bytes);
  call.threads = 1;
  must(ms_cpu_kernel(call.op)->run(&call));
  assert_memory_equal(words, c->call.out_data[0], (size_t)bytes);
  free(words);
}

#endif
