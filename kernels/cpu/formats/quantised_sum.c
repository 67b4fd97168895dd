/* quantised_sum.c - the kernels of numbers that travel in few bits (kernels/formats/quantised_sum.h), block by block:
 * what a block needs stays in L1.
 */
#include "kernels/formats/quantised_sum.h"

#include <math.h>
#include <string.h>

#include "base/min.h"
#include "kernels/cpu/block.h"
#include "kernels/cpu/parallel.h"
#include "kernels/formats/quantise.h"

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
                 .codes = (uint8_t *)(at + of->blocks) + (ms_dtype_size(dtype) ? first : first / 2),
                 .n = ms_min(MS_PIECE_BLOCK, of->elements - first)};
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

/* What rounding left of a block; rest: what is left of it before, and here. */
MS_CLONES static void take_rest(float *restrict x, const float *restrict rest, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) x[i] += rest[i];
}

MS_CLONES static void leave_rest(const float *restrict x, const float *restrict rounded, int finite, int64_t n,
                                 float *restrict rest) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) rest[i] = finite ? x[i] - rounded[i] : 0;
}

/* Makes a block of x and its rest, of which it has the first `here` elements. */
static void encode_kept(int dtype, float *x, place to, int64_t here, float *rest) {
  float rounded[MS_PIECE_BLOCK];
  take_rest(x, rest, here);
  encode(dtype, x, to);
  decode(dtype, to, rounded);
  leave_rest(x, rounded, isfinite(*to.scale), here, rest);
}

/* ---- quantise_pieces, quantise_pieces_kept ---- */

static ms_pieces quantised_pieces(const ms_kernel_call *call) {
  return ms_pieces_asked((int)call->attrs.pieces.dtype, ms_numel(&call->in[0]), call->attrs.pieces.pieces,
                         call->attrs.pieces.stride);
}

MS_CLONES static void quantise_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const int dtype = (int)call->attrs.pieces.dtype;
  const int64_t n = ms_numel(&call->in[0]);
  const ms_pieces of = quantised_pieces(call);
  float x[MS_PIECE_BLOCK];
  for (int64_t i = begin; i < end; i++) {
    const int64_t piece = i / of.blocks, within = i % of.blocks * MS_PIECE_BLOCK;
    const int64_t among = ms_piece_place(piece, call->attrs.pieces.pieces, call->attrs.pieces.group);
    const place to = place_of(&of, dtype, call->out_data[0], among, i % of.blocks);
    const int64_t first = piece * of.stride + within, stop = ms_min(n, (piece + 1) * of.stride);
    const int64_t here = first < stop ? ms_min(to.n, stop - first) : 0;
    ms_widen(call->in_data[0], call->in[0].dtype, first, here, x);
    memset(x + here, 0, (size_t)(to.n - here) * sizeof *x);
    if (call->outputs == 1) encode(dtype, x, to);
    else encode_kept(dtype, x, to, here, (float *)call->out_data[1] + first);
  }
}

static int quantise(const ms_kernel_call *call) {
  return run_blocks(call, quantised_pieces(call).blocks * call->attrs.pieces.pieces, quantise_part);
}

/* ---- sum_pieces, sum_pieces_kept, total_pieces ---- */

MS_CLONES static void add(float *restrict sum, const float *restrict x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) sum[i] += x[i];
}

/* Sums a block of the piece `piece`, over the ranks, which have `each` pieces each. */
static void sum_block(int dtype, const ms_pieces *of, void *from, int64_t ranks, int64_t each, int64_t piece,
                      int64_t block, float *sum) {
  float x[MS_PIECE_BLOCK];
  decode(dtype, place_of(of, dtype, from, piece, block), sum);
  for (int64_t rank = 1; rank < ranks; rank++) {
    const place next = place_of(of, dtype, from, rank * each + piece, block);
    decode(dtype, next, x);
    add(sum, x, next.n);
  }
}

static ms_pieces pieces_to_sum(const ms_kernel_call *call, int64_t *each) {
  return ms_pieces_to_sum((int)call->attrs.pieces.dtype, call->attrs.pieces.elements, call->attrs.pieces.pieces,
                          call->attrs.pieces.each, each);
}

static void sum_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const int dtype = (int)call->attrs.pieces.dtype;
  const int64_t ranks = call->attrs.pieces.pieces;
  int64_t each;
  const ms_pieces of = pieces_to_sum(call, &each);
  float sum[MS_PIECE_BLOCK];
  for (int64_t i = begin; i < end; i++) {
    const int64_t piece = i / of.blocks, block = i % of.blocks;
    const place to = place_of(&of, dtype, call->out_data[0], piece, block);
    float *rest = call->outputs == 2 ? (float *)call->out_data[1] + piece * of.elements : NULL;
    sum_block(dtype, &of, (void *)(uintptr_t)call->in_data[0], ranks, each, piece, block, sum);
    if (!rest) encode(dtype, sum, to);
    else encode_kept(dtype, sum, to, to.n, rest + block * MS_PIECE_BLOCK);
  }
}

static int sum(const ms_kernel_call *call) {
  int64_t each;
  const ms_pieces of = pieces_to_sum(call, &each);
  return run_blocks(call, each * of.blocks, sum_part);
}

static void total_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const int dtype = (int)call->attrs.pieces.dtype;
  const int64_t n = call->attrs.pieces.elements;
  const ms_pieces of = ms_pieces_each(dtype, n);
  float sum[MS_PIECE_BLOCK], *y = call->out_data[0];
  for (int64_t block = begin; block < end; block++) {
    const int64_t first = block * MS_PIECE_BLOCK, here = ms_min(MS_PIECE_BLOCK, n - first);
    sum_block(dtype, &of, (void *)(uintptr_t)call->in_data[0], call->attrs.pieces.pieces, 1, 0, block, sum);
    if (call->attrs.add) add(y + first, sum, here);
    else memcpy(y + first, sum, (size_t)here * sizeof *y);
  }
}

static int total(const ms_kernel_call *call) {
  return run_blocks(call, ms_pieces_each((int)call->attrs.pieces.dtype, call->attrs.pieces.elements).blocks,
                    total_part);
}

/* ---- restore_pieces ---- */

/* Elements [begin, end) of the output, of which element 0 is element `first` of the vector. */
MS_CLONES static void restore_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const int dtype = (int)call->attrs.pieces.dtype, adds = call->attrs.add != 0;
  const int64_t origin = call->attrs.pieces.first;
  const ms_pieces of =
      ms_pieces_asked(dtype, call->attrs.pieces.elements, call->attrs.pieces.pieces, call->attrs.pieces.stride);
  float x[MS_PIECE_BLOCK], *y = call->out_data[0];
  for (int64_t at = begin, n; at < end; at += n) {
    const int64_t piece = (origin + at) / of.stride, within = (origin + at) % of.stride;
    const place from = place_of(&of, dtype, (void *)(uintptr_t)call->in_data[0], piece, within / MS_PIECE_BLOCK);
    const int64_t skipped = within % MS_PIECE_BLOCK;
    n = ms_min(end - at, from.n - skipped);
    decode(dtype, from, x);
    if (call->out[0].dtype != MS_F32) ms_narrow((ms_bf16 *)call->out_data[0] + at, x + skipped, n);
    else if (adds) add(y + at, x + skipped, n);
    else memcpy(y + at, x + skipped, (size_t)n * sizeof *y);
  }
}

static int restore(const ms_kernel_call *call) { return ms_run_elements(call, ms_numel(&call->out[0]), restore_part); }

const ms_kernel ms_cpu_quantise_pieces = {.run = quantise};
const ms_kernel ms_cpu_sum_pieces = {.run = sum};
const ms_kernel ms_cpu_total_pieces = {.run = total};
const ms_kernel ms_cpu_restore_pieces = {.run = restore};
