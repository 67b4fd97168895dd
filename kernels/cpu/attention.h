/* attention.h - what the parts of attention share: the shape of a call, and the code that suits the processor.
 *
 *   attention.c, attention_backward.c   read the call, cut it for threads
 *   attention_f32_*.c                   one instruction set each, of attention_f32.h: f32 products
 *   attention_split.c   f32 on the bf16 matrix unit, in three parts
 *   attention_bf16.c, attention_bf16_backward.c   bf16 products, where the processor has them
 */
#ifndef MS_KERNELS_CPU_ATTENTION_H
#define MS_KERNELS_CPU_ATTENTION_H

#include "kernels/op.h"

/* q, o [batch,t,heads,d]; k, v [batch,s,groups,d]; lse [batch,heads,t] */
typedef struct ms_attention {
  int64_t batch, t, s, heads, groups, d;
  int causal; /* query i sees keys 0 to i + s - t */
  int dtype;
  float scale;
} ms_attention;

/* Queries are taken MS_QUERIES at a time: the block that stays in L1 while keys pass by. */
enum { MS_QUERIES = 32 };

/* Computes one range of items and writes to the call's tensors; scratch belongs to the thread and
 * is 64-byte aligned. */
typedef struct ms_attention_part {
  int64_t (*scratch_bytes)(const ms_attention *a);
  void (*run)(const ms_attention *a, const ms_kernel_call *call, int64_t begin, int64_t end, void *scratch);
} ms_attention_part;

/* Forward items are blocks of queries: (b heads + h) blocks + i, i < blocks = ms_query_blocks(a). Backward items are
 * key heads, b groups + g: all queries of a key head add to its gradients in a fixed order. */
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

/* The number of keys visible to query i. */
static inline int64_t ms_visible_keys(const ms_attention *a, int64_t i) {
  int64_t keys = a->causal ? i + a->s - a->t + 1 : a->s;
  return keys < a->s ? keys : a->s;
}

/* The number of keys visible to at least one query of the block that begins at `first`. */
static inline int64_t ms_block_keys(const ms_attention *a, int64_t first) {
  int64_t last = first + MS_QUERIES - 1;
  return ms_visible_keys(a, last < a->t ? last : a->t - 1);
}

#endif
