/* attention_max.c - the largest score that each query of an attention has, without a tensor of scores: f32 [B,H,T], of
 * queries that see no key -inf. A block of queries is scaled and widened once; keys stream past it. */
#include "kernels/cpu/attention/attention.h"

#include <math.h>

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "kernels/cpu/block.h"
#include "kernels/cpu/parallel.h"

enum { TOKENS = 2, KEYS = 32 };

static ms_attention sizes_of(const ms_kernel_call *call) {
  ms_attention a = ms_attention_of(call);
  a.e = a.d; /* there are no values */
  return a;
}

static int64_t items_of(const ms_attention *a) { return a->batch * a->heads * ms_query_blocks(a); }

static int parts_of(const ms_kernel_call *call, const ms_attention *a) {
  return ms_part_count(call, items_of(a), ms_call_bytes(call));
}

/* f32 [MS_QUERIES][d], [KEYS][d] */
static int64_t scratch_floats(const ms_attention *a) { return (MS_QUERIES + KEYS) * a->d; }

static int prepare(ms_kernel_call *call) {
  MS_TRY(ms_attention_check(call));
  const ms_attention a = sizes_of(call);
  call->workspace_bytes = parts_of(call, &a) * scratch_floats(&a) * (int64_t)sizeof(float);
  return MS_OK;
}

/* The first key of query i, that of its document at least. */
static int64_t first_key(const ms_kernel_call *call, const ms_attention *a, int64_t b, int64_t i) {
  const int64_t first = ms_first_key(a, i);
  if (!a->options.documents) return first;
  const int32_t *tokens = (const int32_t *)call->in_data[TOKENS] + b * a->s;
  int64_t begin = ms_query_at(a, i);
  while (begin > first && tokens[begin] != a->options.start) begin--;
  return begin;
}

MS_CLONES static float product(const float *restrict q, const float *restrict k, int64_t d) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < d; i++) sum += q[i] * k[i];
  return sum;
}

/* A NaN is the largest. */
static float larger(float a, float b) { return b > a || b != b ? b : a; }

static void widen_rows(const void *x, int dtype, int64_t first, int64_t apart, int64_t rows, int64_t d, float *to) {
  for (int64_t r = 0; r < rows; r++) ms_widen(x, dtype, first + r * apart, d, to + r * d);
}

static void block(const ms_kernel_call *call, const ms_attention *a, int64_t b, int64_t h, int64_t q0, float *scratch) {
  const int64_t queries = a->t - q0 < MS_QUERIES ? a->t - q0 : MS_QUERIES, g = h / (a->heads / a->groups), d = a->d;
  float *q = scratch, *k = scratch + MS_QUERIES * d, most[MS_QUERIES];
  int64_t from[MS_QUERIES] = {0}, to[MS_QUERIES] = {0};
  widen_rows(call->in_data[0], a->dtype, ((b * a->t + q0) * a->heads + h) * d, a->heads * d, queries, d, q);
  for (int64_t i = 0; i < queries * d; i++) q[i] *= a->options.scale;
  for (int64_t i = 0; i < queries; i++) {
    most[i] = -INFINITY;
    from[i] = first_key(call, a, b, q0 + i);
    to[i] = ms_visible_keys(a, q0 + i);
  }
  for (int64_t k0 = from[0]; k0 < to[queries - 1]; k0 += KEYS) {
    const int64_t keys = to[queries - 1] - k0 < KEYS ? to[queries - 1] - k0 : KEYS;
    widen_rows(call->in_data[1], a->dtype, ((b * a->s + k0) * a->groups + g) * d, a->groups * d, keys, d, k);
    for (int64_t i = 0; i < queries; i++) {
      const int64_t begin = from[i] > k0 ? from[i] - k0 : 0, end = to[i] - k0 < keys ? to[i] - k0 : keys;
      for (int64_t j = begin; j < end; j++) most[i] = larger(most[i], product(q + i * d, k + j * d, d));
    }
  }
  float *out = (float *)call->out_data[0] + (b * a->heads + h) * a->t + q0;
  for (int64_t i = 0; i < queries; i++) out[i] = most[i];
}

static void run_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  const ms_attention a = sizes_of(call);
  const int64_t blocks = ms_query_blocks(&a);
  float *scratch = (float *)call->workspace + part * scratch_floats(&a);
  for (int64_t i = begin; i < end; i++)
    block(call, &a, i / blocks / a.heads, i / blocks % a.heads, i % blocks * MS_QUERIES, scratch);
}

static int run(const ms_kernel_call *call) {
  const ms_attention a = sizes_of(call);
  ms_run_parts(call, parts_of(call, &a), items_of(&a), 1, run_part);
  return MS_OK;
}

const ms_kernel ms_cpu_attention_max = {.prepare = prepare, .run = run};
