/* quantise.h - tensors in few bits: the elements of an f32 tensor as codes of a dtype, and the scales that belong to
 * them.
 *
 * A scaling says which elements share a scale, and in which direction it works:
 *
 *   MS_SCALE_TENSOR  one f32 for all: largest / max(amax, 1e-12), the product in double, as torchao has it. A code is
 *                    x * scale, an element code / scale.
 *   MS_SCALE_BLOCK   one f32 for each `block` consecutive elements: amax / largest. A code is x / scale, an element
 *                    code * scale. A block of zeros has the scale 0.
 *   MS_SCALE_MX      one e8m0 for each 32 consecutive elements, as in OCP's microscaling formats: a code is x / scale,
 *                    an element code * scale. The rounding says which power of two: MS_MX_FLOOR that of amax over that
 *                    of the largest number, so that the largest elements may saturate; MS_MX_RCEIL the smallest one
 *                    that is at least amax / largest, so that none does.
 *
 * amax is the largest magnitude of the elements that share the scale, `largest` the largest code. Codes are rounded to
 * nearest, ties to even unless the type says otherwise, and saturate. The last block may be shorter. Which types have
 * codes, and with which scalings, says MS_CODES of base/numbers/formats.def: those of f8 with all three, others with
 * blocks, symmetrically.
 *
 * NaN and infinity: a scale of elements with NaN is NaN, so all of them read back as NaN. With an infinity, a block's
 * scale is infinite and its codes are 0, which read back as NaN; an e8m0 is NaN; the tensor's scale is 0, and all
 * elements read back as NaN. So a broken step stays visible.
 *
 * Blocks are independent: ranges of whole blocks can be converted apart, also on several threads. The CPU and CUDA give
 * the same bits (quantise_code.h is their common arithmetic).
 */
#ifndef MS_KERNELS_QUANTISE_H
#define MS_KERNELS_QUANTISE_H

#include "moonshard.h"

enum ms_scaling { MS_SCALE_TENSOR, MS_SCALE_BLOCK, MS_SCALE_MX };
enum ms_mx_rounding { MS_MX_FLOOR, MS_MX_RCEIL };
enum { MS_MX_BLOCK = 32 };

typedef struct ms_quantisation {
  int dtype;     /* of the codes */
  int scaling;   /* enum ms_scaling */
  int64_t block; /* elements of a scale, with MS_SCALE_BLOCK; a multiple of those in a byte */
  int rounding;  /* enum ms_mx_rounding, with MS_SCALE_MX */
} ms_quantisation;

/* MS_EDTYPE, MS_EINVAL or MS_ESHAPE if such a quantisation of n elements does not exist. */
int ms_quantisation_check(const ms_quantisation *q, int64_t n);
/* The elements that share a scale; n for MS_SCALE_TENSOR. */
int64_t ms_quantisation_block(const ms_quantisation *q, int64_t n);
/* The number of scales, f32 or with MS_SCALE_MX e8m0. */
int64_t ms_quantisation_scales(const ms_quantisation *q, int64_t n);

/* x f32 [n] to codes [ms_dtype_bytes] and scales [ms_quantisation_scales], and back. */
int ms_cpu_quantise(const ms_quantisation *q, const float *x, int64_t n, void *codes, void *scales);
int ms_cpu_dequantise(const ms_quantisation *q, const void *codes, const void *scales, int64_t n, float *x);

/* The same on a GPU: all memory is the device's, and the work is enqueued on the stream. */
int ms_cuda_quantise(const ms_quantisation *q, const float *x, int64_t n, void *codes, void *scales, void *stream);
int ms_cuda_dequantise(const ms_quantisation *q, const void *codes, const void *scales, int64_t n, float *x,
                       void *stream);

#endif
