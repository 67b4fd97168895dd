/* product.c - reads a matmul call: checks the dtypes and turns leading dimensions into rows or a batch. */
#include "kernels/products/product.h"

#include <string.h>

#include "base/numbers/dtype.h"
#include "base/error.h"

static int check_dtypes(const ms_kernel_call *call) {
  for (int i = 0; i < call->inputs; i++)
    if (!ms_dtype_may(call->in[i].dtype, MS_DTYPE_FLOAT))
      return MS_FAIL(MS_EDTYPE, "matmul: input %d is %s; it must be f32 or bf16", i, ms_dtype_name(call->in[i].dtype));
  if (!ms_dtype_may(call->out[0].dtype, MS_DTYPE_FLOAT))
    return MS_FAIL(MS_EDTYPE, "matmul: the result is %s; it must be f32 or bf16", ms_dtype_name(call->out[0].dtype));
  if (call->op == MS_OP_matmul_accumulate && !ms_dtype_may(call->out[0].dtype, MS_DTYPE_SUM))
    return MS_FAIL(MS_EDTYPE, "matmul_accumulate: the result is bf16; the accumulator must be f32");
  if (call->op == MS_OP_matmul_add && call->in[0].dtype == MS_F32 && call->out[0].dtype != MS_F32)
    return MS_FAIL(MS_EDTYPE, "matmul_add: f32 operands, but the result is %s; it must be f32",
                   ms_dtype_name(call->out[0].dtype));
  if (call->in[0].dtype != call->in[1].dtype)
    return MS_FAIL(MS_EDTYPE, "matmul: %s x %s; both operands must have the same dtype: cast one",
                   ms_dtype_name(call->in[0].dtype), ms_dtype_name(call->in[1].dtype));
  return MS_OK;
}

int ms_product_of(const ms_kernel_call *call, ms_product *product) {
  const ms_value_info *a = &call->in[0], *b = &call->in[1], *c = &call->out[0];
  MS_TRY(check_dtypes(call));
  memset(product, 0, sizeof *product);
  product->trans_a = call->attrs.product.trans_a != 0;
  product->trans_b = call->attrs.product.trans_b != 0;
  product->accumulate = call->op == MS_OP_matmul_accumulate || call->op == MS_OP_matmul_add;
  product->activation = product->accumulate ? MS_ACT_NONE : (int)call->attrs.product.activation;
  product->dtype = a->dtype;
  product->c_dtype = c->dtype;
  product->bias_dtype = call->inputs == 3 && !product->accumulate ? call->in[2].dtype : -1;
  product->m = c->dims[c->ndim - 2];
  product->n = c->dims[c->ndim - 1];
  product->k = a->dims[a->ndim - (product->trans_a ? 2 : 1)];
  product->batch = 1;
  for (int d = 0; d < c->ndim - 2; d++) product->batch *= c->dims[d];
  product->shared_b = b->ndim == 2;
  if (product->shared_b && !product->trans_a) {
    product->m *= product->batch;
    product->batch = 1;
  }
  if (product->batch == 1) product->shared_b = 1;
  return MS_OK;
}
