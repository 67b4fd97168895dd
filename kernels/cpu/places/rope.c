/* rope.c - rotary positions (Su et al. 2021): rotates pair p of a head at position t by the angle t theta^(-2p / D), or
 * with Llama 3.1's scaled frequencies. Pairs are (p, p + D/2), or (2p, 2p + 1) if interleaved. The gradient is the
 * inverse rotation. prepare computes cosines and sines once per shape, and all calls share them. Frequencies that are
 * an input are read as a call runs, which computes the angles of each row for some pairs at a time. */
#include "kernels/cpu/block.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/shared.h"
#include "kernels/part.h"
#include "kernels/rope_frequencies.h"

/* Axes of x and y [B][T][H][D]. */
enum { TIME = 1, HEAD = 2, DEPTH = 3 };

/* Determines a table. Compared byte by byte, so it must not contain padding. */
typedef struct table_key {
  int64_t times, half;
  ms_op_attrs attrs;
} table_key;

/* Creates [T][2][D/2]: cosines and sines of each position; then the frequencies [D/2]. */
static int make_table(const void *data, void **object) {
  const table_key *key = data;
  const int64_t times = key->times, half = key->half;
  float *table = ms_calloc((times * 2 + 1) * half, (int64_t)sizeof *table);
  if (!table) return MS_ENOMEM;
  float *frequency = table + times * 2 * half;
  const ms_part part = ms_part_of(key->attrs.rope.part);
  const double turn = key->attrs.rope.inverse ? -1.0 : 1.0;
  for (int64_t p = 0; p < half; p++) frequency[p] = ms_rope_frequency(&key->attrs, p, half);
  for (int64_t t = 0; t < times; t++)
    for (int64_t p = 0; p < half; p++) {
      const float angle = (float)(ms_part_index(&part, t) + key->attrs.rope.offset) * frequency[p];
      table[t * 2 * half + p] = (float)cos((double)angle);
      table[t * 2 * half + half + p] = (float)(turn * sin((double)angle));
    }
  *object = table;
  return MS_OK;
}

static int prepare(ms_kernel_call *call) {
  if (call->inputs == 2) return MS_OK;
  table_key key = {call->in[0].dims[TIME], call->in[0].dims[DEPTH] / 2, call->attrs};
  key.attrs.rope.interleaved = 0; /* the angles are the same for both kinds of pairs */
  return ms_shared_take(make_table, free, &key, sizeof key, &call->prepared);
}

/* Rotates pairs [0, n) of one head; c, s [n]; x, y from element `first`, with `half` elements between those of a pair
 * if it is not interleaved; y can be x. */
MS_INLINE void turn_head(const void *x, void *y, int64_t first, int bf16, int interleaved, const float *c,
                         const float *s, int64_t half, int64_t n) {
#pragma omp simd
  for (int64_t p = 0; p < n; p++) {
    const int64_t i = first + (interleaved ? 2 * p : p), j = interleaved ? i + 1 : i + half;
    const float a = ms_simd_load(x, i, bf16), b = ms_simd_load(x, j, bf16);
    ms_simd_store(y, i, a * c[p] - b * s[p], bf16);
    ms_simd_store(y, j, a * s[p] + b * c[p], bf16);
  }
}

enum { PAIRS = 64 }; /* whose angles are computed at a time */

/* Cosines and sines of pairs [first, first + n) at the position of row r, times their factors. */
static void make_turns(const ms_kernel_call *call, int64_t r, int64_t first, int64_t n, float *c, float *s) {
  const int64_t pairs = call->in[1].dims[1];
  const float *frequency = (const float *)call->in_data[1] + first, *factor = frequency + pairs;
  const ms_part part = ms_part_of(call->attrs.rope.part);
  const float position = (float)(ms_part_index(&part, r % call->in[0].dims[TIME]) + call->attrs.rope.offset);
  for (int64_t p = 0; p < n; p++) {
    const float angle = position * frequency[p];
    c[p] = factor[p] * (float)cos((double)angle);
    s[p] = (call->attrs.rope.inverse ? -factor[p] : factor[p]) * (float)sin((double)angle);
  }
}

/* Copies the elements of the heads of row r that are not rotated. */
static void copy_rest(const ms_kernel_call *call, int64_t r) {
  const int64_t *dims = call->in[0].dims, turned = 2 * call->in[1].dims[1], width = ms_dtype_size(call->in[0].dtype);
  if (call->in_data[0] == call->out_data[0] || turned == dims[DEPTH]) return;
  for (int64_t h = 0; h < dims[HEAD]; h++) {
    const int64_t first = ((r * dims[HEAD] + h) * dims[DEPTH] + turned) * width;
    memcpy((char *)call->out_data[0] + first, (const char *)call->in_data[0] + first,
           (size_t)((dims[DEPTH] - turned) * width));
  }
}

/* Rows (b, t) of H heads each. */
#define ROPE(name, bf16, interleaved)                                                                                  \
  MS_CLONES static void name(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {                       \
    (void)part;                                                                                                        \
    const int64_t *dims = call->in[0].dims, half = dims[DEPTH] / 2;                                                    \
    for (int64_t r = begin; r < end; r++) {                                                                            \
      const float *c = (const float *)call->prepared + r % dims[TIME] * 2 * half, *s = c + half;                       \
      for (int64_t h = 0; h < dims[HEAD]; h++)                                                                         \
        turn_head(call->in_data[0], call->out_data[0], (r * dims[HEAD] + h) * 2 * half, bf16, interleaved, c, s, half, \
                  half);                                                                                               \
    }                                                                                                                  \
  }                                                                                                                    \
  MS_CLONES static void name##_given(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {               \
    (void)part;                                                                                                        \
    const int64_t *dims = call->in[0].dims, half = call->in[1].dims[1];                                                \
    float c[PAIRS], s[PAIRS];                                                                                          \
    for (int64_t r = begin; r < end; r++) {                                                                            \
      copy_rest(call, r);                                                                                              \
      for (int64_t p = 0; p < half; p += PAIRS) {                                                                      \
        const int64_t n = half - p < PAIRS ? half - p : PAIRS;                                                         \
        make_turns(call, r, p, n, c, s);                                                                               \
        for (int64_t h = 0; h < dims[HEAD]; h++)                                                                       \
          turn_head(call->in_data[0], call->out_data[0],                                                               \
                    (r * dims[HEAD] + h) * dims[DEPTH] + (interleaved ? 2 * p : p), bf16, interleaved, c, s, half, n); \
      }                                                                                                                \
    }                                                                                                                  \
  }

ROPE(halves_f32, 0, 0)
ROPE(halves_bf16, 1, 0)
ROPE(interleaved_f32, 0, 1)
ROPE(interleaved_bf16, 1, 1)

static int run(const ms_kernel_call *call) {
  static ms_part_fn *const by_kind[2][2][2] = {
      {{halves_f32, halves_bf16}, {interleaved_f32, interleaved_bf16}},
      {{halves_f32_given, halves_bf16_given}, {interleaved_f32_given, interleaved_bf16_given}}};
  const int64_t rows = call->in[0].dims[0] * call->in[0].dims[TIME];
  ms_run_parts(call, ms_part_count(call, rows, ms_call_bytes(call)), rows, 1,
               by_kind[call->inputs == 2][call->attrs.rope.interleaved != 0][call->in[0].dtype == MS_BF16]);
  return MS_OK;
}

const ms_kernel ms_cpu_rope = {.prepare = prepare, .run = run, .release = ms_shared_drop, .in_place = MS_OVER(0, 0)};
