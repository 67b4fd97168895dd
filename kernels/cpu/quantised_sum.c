/* quantised_sum.c - the kernels of sums over ranks in few bits (kernels/quantised_sum.h), block by block: what a block
 * needs stays in L1.
 */
#include "kernels/quantised_sum.h"

#include <string.h>

#include "kernels/cpu/block.h"
#include "kernels/cpu/parallel.h"
#include "kernels/quantise.h"

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static ms_quantisation quantisation_of(int dtype) {
  return (ms_quantisation){.dtype = dtype, .scaling = MS_SCALE_BLOCK, .block = MS_PIECE_BLOCK};
}

/* A block of a piece: its scale, its codes, and how many elements it has. */
typedef struct place {
  float *scale;
  uint8_t *codes;
  int64_t n;
} place;

static place place_of(const ms_pieces *of, int dtype, void *words, int64_t piece, int64_t block) {
  float *at = (float *)words + piece * of->words;
  const int64_t first = block * MS_PIECE_BLOCK;
  return (place){.scale = at + block,
                 .codes = (uint8_t *)(at + of->blocks) + (dtype == MS_I4 ? first / 2 : first),
                 .n = least(MS_PIECE_BLOCK, of->elements - first)};
}

static void encode(int dtype, const float *x, place to) {
  const ms_quantisation q = quantisation_of(dtype);
  ms_cpu_quantise(&q, x, to.n, to.codes, to.scale);
}

static void decode(int dtype, place from, float *x) {
  const ms_quantisation q = quantisation_of(dtype);
  ms_cpu_dequantise(&q, from.codes, from.scale, from.n, x);
}

/* Blocks of all pieces are numbered through. */
static int run_blocks(const ms_kernel_call *call, int64_t blocks, ms_part_fn *run) {
  ms_run_parts(call, ms_part_count(call, blocks, ms_call_bytes(call)), blocks, 1, run);
  return MS_OK;
}

/* ---- quantise_pieces ---- */

MS_CLONES static void quantise_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const int dtype = (int)call->attrs.i[0];
  const int64_t n = ms_numel(&call->in[0]);
  const ms_pieces of = ms_pieces_of(dtype, n, call->attrs.i[1]);
  float x[MS_PIECE_BLOCK];
  for (int64_t i = begin; i < end; i++) {
    const int64_t piece = i / of.blocks, block = i % of.blocks;
    const place to = place_of(&of, dtype, call->out_data[0], piece, block);
    const int64_t first = piece * of.elements + block * MS_PIECE_BLOCK;
    const int64_t here = first < n ? least(to.n, n - first) : 0;
    ms_widen(call->in_data[0], call->in[0].dtype, first, here, x);
    memset(x + here, 0, (size_t)(to.n - here) * sizeof *x);
    encode(dtype, x, to);
  }
}

static int quantise(const ms_kernel_call *call) {
  const ms_pieces of = ms_pieces_of((int)call->attrs.i[0], ms_numel(&call->in[0]), call->attrs.i[1]);
  return run_blocks(call, of.blocks * call->attrs.i[1], quantise_part);
}

/* ---- sum_pieces ---- */

MS_CLONES static void add(float *restrict sum, const float *restrict x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) sum[i] += x[i];
}

static void sum_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const int dtype = (int)call->attrs.i[0];
  const int64_t ranks = call->attrs.i[1];
  const ms_pieces of = ms_pieces_of(dtype, call->attrs.i[2], ranks);
  void *from = (void *)(uintptr_t)call->in_data[0];
  float sum[MS_PIECE_BLOCK], x[MS_PIECE_BLOCK];
  for (int64_t block = begin; block < end; block++) {
    const place to = place_of(&of, dtype, call->out_data[0], 0, block);
    decode(dtype, place_of(&of, dtype, from, 0, block), sum);
    for (int64_t rank = 1; rank < ranks; rank++) {
      decode(dtype, place_of(&of, dtype, from, rank, block), x);
      add(sum, x, to.n);
    }
    encode(dtype, sum, to);
  }
}

static int sum(const ms_kernel_call *call) {
  return run_blocks(call, ms_pieces_of((int)call->attrs.i[0], call->attrs.i[2], call->attrs.i[1]).blocks, sum_part);
}

/* ---- restore_pieces ---- */

/* Elements [begin, end) of the output, of which element 0 is element i4 of the vector. */
static void restore_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const int dtype = (int)call->attrs.i[1], adds = call->attrs.i[0] != 0;
  const int64_t offset = call->attrs.i[4];
  const ms_pieces of = ms_pieces_of(dtype, call->attrs.i[3], call->attrs.i[2]);
  float x[MS_PIECE_BLOCK], *y = call->out_data[0];
  for (int64_t at = begin, n; at < end; at += n) {
    const int64_t piece = (offset + at) / of.elements, within = (offset + at) % of.elements;
    const place from = place_of(&of, dtype, (void *)(uintptr_t)call->in_data[0], piece, within / MS_PIECE_BLOCK);
    const int64_t skipped = within % MS_PIECE_BLOCK;
    n = least(end - at, from.n - skipped);
    decode(dtype, from, x);
    if (adds) add(y + at, x + skipped, n);
    else memcpy(y + at, x + skipped, (size_t)n * sizeof *y);
  }
}

static int restore(const ms_kernel_call *call) { return ms_run_elements(call, ms_numel(&call->out[0]), restore_part); }

const ms_kernel ms_cpu_quantise_pieces = {.run = quantise};
const ms_kernel ms_cpu_sum_pieces = {.run = sum};
const ms_kernel ms_cpu_restore_pieces = {.run = restore};
