/* conv2d_onednn.h - the oneDNN primitive of a convolution or of one of its gradients, which all calls of equal shapes
 * share (shared.h); conv2d_onednn.c runs it.
 */
#ifndef MS_KERNELS_CPU_CONV2D_ONEDNN_H
#define MS_KERNELS_CPU_CONV2D_ONEDNN_H

#include <oneapi/dnnl/dnnl.h>

#include "kernels/cpu/windows/conv2d.h"
#include "kernels/cpu/matmul/onednn_api.h"

enum { MS_CONV_X, MS_CONV_W, MS_CONV_BIAS, MS_CONV_Y, MS_CONV_OPERANDS };

/* Key of a shared primitive. */
typedef struct ms_conv_key {
  int op;
  int stored[MS_CONV_OPERANDS];            /* dtypes of the tensors, -1: the call has no such operand */
  dnnl_data_type_t type[MS_CONV_OPERANDS]; /* that the primitive computes with */
  ms_conv conv;                            /* of one part's images */
} ms_conv_key;

/* Read-only after creation, because threads share it. */
typedef struct ms_conv_primitive {
  dnnl_primitive_t primitive;
  dnnl_primitive_desc_t desc;
  ms_onednn_desc tensor[MS_CONV_OPERANDS], chosen[MS_CONV_OPERANDS];
  /* Between both formats; NULL: they are equal, or there is no such operand. */
  dnnl_primitive_t reorder[MS_CONV_OPERANDS];
  dnnl_primitive_desc_t reorder_desc[MS_CONV_OPERANDS];
} ms_conv_primitive;

/* MS_OK, or an error that says what was done with which convolution. */
int ms_conv_check(dnnl_status_t status, const char *doing, int op, const ms_conv *c);
/* The operand that an op writes. */
int ms_conv_result_of(int op);
/* The primitive of a key; the caller drops it (ms_shared_drop). */
int ms_conv_primitive_take(const ms_conv_key *key, ms_conv_primitive **primitive);

#endif
