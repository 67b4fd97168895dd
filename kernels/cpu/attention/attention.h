/* attention.h - shared by the files of attention: the shape of a call, and the choice of the implementation.
 *
 *   attention.c, attention_backward.c             read the call and divide it among threads
 *   attention_f32_*.c                             f32 products; each compiles attention_f32.h for one instruction set
 *   attention_split.c                             f32 products on the bf16 matrix unit, in three parts
 *   attention_bf16.c, attention_bf16_backward.c   bf16 products, on processors that have them
 */
#ifndef MS_KERNELS_CPU_ATTENTION_H
#define MS_KERNELS_CPU_ATTENTION_H

#include "kernels/attention_options.h"

/* The sizes of a call: q [batch][t][heads][d], o [batch][t][heads][e]; k [batch][s][groups][d], v
 * [batch][s][groups][e]; lse [batch][heads][t]. */
typedef struct ms_attention {
  int64_t batch, t, s, heads, groups, d, e;
  int dtype;
  ms_attention_options options;
  int64_t before;                 /* keys before the first of all queries */
  int64_t first_query, first_key; /* of the part, and of all keys: where this call begins */
  int64_t lse_row;                /* elements of lse between heads: t, or that of the call which this is a part of */
} ms_attention;

/* Queries per block: a block stays in L1 while the keys stream past it. The first of these keys is a multiple of
 * MS_KEY_GRAIN, so that the tiles and panels of every implementation are whole. */
enum { MS_QUERIES = 32, MS_KEY_GRAIN = 32 };

/* Computes a range of items and writes to the call's tensors. Each thread has its own scratch, 64-byte aligned. */
typedef struct ms_attention_part {
  int64_t (*scratch_bytes)(const ms_attention *a);
  void (*run)(const ms_attention *a, const ms_kernel_call *call, int64_t begin, int64_t end, void *scratch);
} ms_attention_part;

/* Forward items are blocks of queries: (b heads + h) blocks + i, i < blocks = ms_query_blocks(a). Backward items are
 * key heads, b groups + g: one thread adds all queries of a key head to its gradients, in a fixed order. */
typedef struct ms_attention_code {
  ms_attention_part forward, backward;
} ms_attention_code;

extern const ms_attention_code ms_attention_f32_sse2, ms_attention_f32_avx2, ms_attention_f32_avx512;
extern const ms_attention_code ms_attention_split; /* only if ms_split_available */
extern const ms_attention_part ms_attention_bf16_forward, ms_attention_bf16_backward;

int ms_attention_check(const ms_kernel_call *call);
ms_attention ms_attention_of(const ms_kernel_call *call);
/* The fastest implementation for the dtype on this processor. */
ms_attention_code ms_attention_choose(const ms_attention *a);

static inline int64_t ms_query_blocks(const ms_attention *a) { return (a->t + MS_QUERIES - 1) / MS_QUERIES; }

/* Where query i is among the keys. */
static inline int64_t ms_query_at(const ms_attention *a, int64_t i) {
  return a->options.part.ranks ? ms_part_index(&a->options.part, a->first_query + i) + a->before - a->first_key
                               : i + a->s - a->t;
}

/* The number of queries, from q0 on, that are before a key. */
static inline int64_t ms_queries_before(const ms_attention *a, int64_t key, int64_t q0) {
  const int64_t queries = a->options.part.ranks
                              ? ms_part_before(&a->options.part, a->first_key + key - a->before) - a->first_query
                              : key - (a->s - a->t);
  return queries > q0 ? queries - q0 : 0;
}

/* Query i sees the keys from the first that is visible to it to the end of those that are. Neither decreases with i. */
static inline int64_t ms_visible_keys(const ms_attention *a, int64_t i) {
  if (!a->options.causal && !a->options.window) return a->s;
  const int64_t at = ms_query_at(a, i), end = at + (a->options.causal ? 1 : a->options.window);
  const int64_t visible = end > a->options.prefix ? end : a->options.prefix;
  return visible < a->s ? visible : a->s;
}
static inline int64_t ms_first_key(const ms_attention *a, int64_t i) {
  if (!a->options.window) return 0;
  const int64_t first = ms_query_at(a, i) - a->options.window + 1;
  return first > 0 ? first : 0;
}

/* Of `queries` queries from q0 on, a key is seen by those from the end of the blind ones, which come before it, to the
 * end of the seeing ones, whose window has not passed it. */
static inline int64_t ms_blind_queries(const ms_attention *a, int64_t key, int64_t q0) {
  if (key < a->options.prefix || !(a->options.causal || a->options.window)) return 0;
  return ms_queries_before(a, a->options.causal ? key : key - a->options.window + 1, q0);
}
static inline int64_t ms_seeing_queries(const ms_attention *a, int64_t key, int64_t q0, int64_t queries) {
  const int64_t seeing = a->options.window ? ms_queries_before(a, key + a->options.window, q0) : queries;
  return seeing < queries ? seeing : queries;
}

/* The keys that a block of queries, from `first` on, reads: it ends with the last that any of them sees, and begins
 * with the first, rounded down to MS_KEY_GRAIN. */
static inline int64_t ms_block_keys(const ms_attention *a, int64_t first) {
  int64_t last = first + MS_QUERIES - 1;
  return ms_visible_keys(a, last < a->t ? last : a->t - 1);
}
static inline int64_t ms_block_first_key(const ms_attention *a, int64_t first) {
  return ms_first_key(a, first) / MS_KEY_GRAIN * MS_KEY_GRAIN;
}

#endif
