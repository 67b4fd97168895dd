/* matmul_f8.c - see the header. */
#include "kernels/cuda/plan/products/matmul_f8.h"

#include "base/error.h"
#include "kernels/cuda/plan/products/matmul.h"
#include "kernels/cuda/plan/plan.h"
#include "kernels/cuda/plan/sizes.h"
#include "kernels/cuda/workspace.h"
#include "kernels/formats/quantise.h"

static int64_t take(int64_t *total, int64_t bytes) {
  const int64_t at = *total;
  *total += ms_cuda_align(bytes);
  return at;
}

static int64_t tiles(int64_t n, int64_t of_each) { return (n + of_each - 1) / of_each; }

/* Bytes of the scales of blocks; the last tiles of e8m0 are whole. */
static int64_t block_bytes(const ms_f8 *f8, const ms_f8_operand *operand) {
  const int64_t blocks = operand->block ? tiles(f8->product.k, operand->block) : 0;
  if (!blocks) return 0;
  if (!f8->e8m0)
    return (operand->side > 1 ? tiles(operand->rows, operand->side) : blocks) * (int64_t)sizeof(float) *
           ms_f8_scale_pitch(operand, f8->product.k);
  return tiles(operand->rows, MS_F8_TILE_ROWS) * tiles(f8->product.k / MS_MX_BLOCK, MS_F8_TILE_BLOCKS) *
         MS_F8_TILE_BYTES;
}

/* 1 when an operand's codes come as the product reads them. */
static int has_codes(const ms_f8 *f8, int operand) { return operand == 1 && ms_f8_reads_codes(f8); }

static void place(const ms_f8 *f8, ms_f8_places *places) {
  const ms_f8_operand *operand[2] = {&f8->a, &f8->b};
  places->total = 0;
  for (int i = 0; i < 2; i++) {
    const int64_t scales = ms_f8_scales(f8, operand[i]) * (int64_t)sizeof(float);
    places->magnitudes[i] = take(&places->total, scales);
    places->scales[i] = take(&places->total, scales);
    places->inverses[i] = take(&places->total, scales);
    places->codes[i] = take(&places->total, has_codes(f8, i) ? 0 : operand[i]->rows * f8->product.k);
    places->blocks[i] = take(&places->total, block_bytes(f8, operand[i]));
  }
  places->library = take(&places->total, ms_matmul_library_bytes(&f8->product));
}

int ms_f8_plan(ms_kernel_call *call, ms_f8 *f8, ms_f8_places *places) {
  MS_TRY(ms_f8_of(call, f8));
  place(f8, places);
  call->workspace_bytes = places->total + MS_LIBRARY_SLACK;
  return MS_OK;
}

int ms_cuda_prepare_matmul_f8(ms_kernel_call *call) {
  ms_f8 f8;
  ms_f8_places places;
  return ms_f8_plan(call, &f8, &places);
}
