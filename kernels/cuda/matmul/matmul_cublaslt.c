/* matmul_cublaslt.c - matmul by cuBLASLt: divides an op between the library's epilogue and a pass of our own.
 *
 * The library adds a bias in the result's dtype and applies the tanh form of gelu. Our pass handles the rest: biases of
 * another dtype, other activations (the library's relu may lose NaN), and bf16 results of f32 operands, which the
 * library cannot write: it computes them in f32 in the workspace and our pass rounds them. In the other cases the pass
 * works on the result in place, so a bf16 result is rounded twice, as by two separate ops.
 */
#include "kernels/cuda/matmul/matmul.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "kernels/cuda/matmul/cublaslt_product.h"
#include "kernels/cuda/workspace.h"

/* Whether all tensors are aligned to 16 bytes; the library has different algorithms for each case. */
enum { ALIGNED, UNALIGNED, VARIANTS };

typedef struct variant {
  ms_lt_product lt;
  int bound;
  ms_product left; /* the bias and activation that the epilogue does not compute */
} variant;

struct ms_matmul_cublaslt {
  const ms_cublaslt *lt;
  ms_product product;
  int tf32;
  variant variant[VARIANTS];
};

/* The epilogue that computes as much of the op as the library supports. */
static int epilogue_of(const ms_product *p) {
  const int biased = p->bias_dtype >= 0, gelu = p->activation == MS_ACT_GELU_TANH;
  if (ms_matmul_scratch_bytes(p) || (biased && p->bias_dtype != p->c_dtype)) return MS_LT_EPILOGUE_DEFAULT;
  if (biased) return gelu ? MS_LT_EPILOGUE_GELU_BIAS : MS_LT_EPILOGUE_BIAS;
  return gelu ? MS_LT_EPILOGUE_GELU : MS_LT_EPILOGUE_DEFAULT;
}

static ms_product left_by(const ms_product *p, int epilogue) {
  ms_product left = *p;
  if (epilogue == MS_LT_EPILOGUE_BIAS || epilogue == MS_LT_EPILOGUE_GELU_BIAS) left.bias_dtype = -1;
  if (epilogue == MS_LT_EPILOGUE_GELU || epilogue == MS_LT_EPILOGUE_GELU_BIAS) left.activation = MS_ACT_NONE;
  return left;
}

int ms_matmul_cublaslt_new(const ms_product *product, ms_matmul_cublaslt **out, char *why) {
  int tf32;
  *out = NULL;
  MS_TRY(ms_matmul_tf32(&tf32));
  const ms_cublaslt *lt = ms_handles_load(&ms_cublaslt_handles, why);
  if (!lt) return MS_OK;
  ms_matmul_cublaslt *matmul = ms_calloc(1, sizeof *matmul);
  if (!matmul) return MS_ENOMEM;
  matmul->lt = lt;
  matmul->product = *product;
  matmul->tf32 = tf32;
  *out = matmul;
  return MS_OK;
}

void ms_matmul_cublaslt_free(ms_matmul_cublaslt *matmul) {
  if (!matmul) return;
  for (int i = 0; i < VARIANTS; i++)
    if (matmul->variant[i].bound) ms_lt_close(&matmul->variant[i].lt);
  free(matmul);
}

static int variant_of(const ms_kernel_call *call) {
  uintptr_t all = (uintptr_t)call->out_data[0];
  for (int i = 0; i < call->inputs; i++) all |= (uintptr_t)call->in_data[i];
  return all % 16 ? UNALIGNED : ALIGNED;
}

/* Binds the product with the given epilogue; our pass does the rest. *found 0: the library has no algorithm. */
static int try_epilogue(ms_matmul_cublaslt *matmul, int which, int epilogue, const ms_kernel_call *call, int *found) {
  variant *v = &matmul->variant[which];
  ms_lt_problem problem;
  memset(&problem, 0, sizeof problem);
  problem.product = matmul->product;
  if (ms_matmul_scratch_bytes(&matmul->product)) problem.product.c_dtype = MS_F32;
  problem.workspace_bytes = ms_matmul_library_bytes(&matmul->product);
  problem.epilogue = epilogue;
  problem.accumulate = matmul->product.accumulate;
  problem.tf32 = matmul->tf32;
  problem.alignment = which == ALIGNED ? 16 : 0;
  MS_TRY(ms_lt_processors(call, &problem.processors));
  MS_TRY(ms_lt_open(matmul->lt, &problem, &v->lt));
  int rc = ms_lt_expect(&v->lt, &(ms_lt_operands){.bias = (void *)call->in_data[2]});
  if (!rc) rc = ms_lt_choose(&v->lt, found);
  if (rc || !*found) ms_lt_close(&v->lt);
  v->bound = !rc && *found;
  v->left = left_by(&matmul->product, epilogue);
  return rc;
}

int ms_matmul_cublaslt_bind(ms_matmul_cublaslt *matmul, const ms_kernel_call *call) {
  const ms_product *p = &matmul->product;
  const int which = variant_of(call), epilogue = epilogue_of(p);
  int found = 0;
  if (matmul->variant[which].bound) return MS_OK;
  MS_TRY(try_epilogue(matmul, which, epilogue, call, &found));
  if (!found && epilogue != MS_LT_EPILOGUE_DEFAULT)
    MS_TRY(try_epilogue(matmul, which, MS_LT_EPILOGUE_DEFAULT, call, &found));
  if (found) return MS_OK;
  return MS_FAIL(MS_EUNSUPPORTED,
                 "matmul: cuBLASLt has no algorithm for a batch of %lld [%lld,%lld] x [%lld,%lld], %s to %s: "
                 "set MOONSHARD_CUDA_MATMUL=plain to use own kernels",
                 (long long)p->batch, (long long)p->m, (long long)p->k, (long long)p->k, (long long)p->n,
                 ms_dtype_name(p->dtype), ms_dtype_name(p->c_dtype));
}

int ms_matmul_cublaslt_run(const ms_matmul_cublaslt *matmul, const ms_kernel_call *call) {
  const ms_product *p = &matmul->product;
  const variant *v = &matmul->variant[variant_of(call)];
  if (!v->bound) return MS_FAIL(MS_EINTERNAL, "matmul: the call was not bound");
  char *workspace = ms_library_workspace(call->workspace);
  float *scratch = ms_matmul_scratch_bytes(p) ? (float *)(void *)workspace : NULL;
  const ms_lt_operands on = {.a = call->in_data[0],
                             .b = call->in_data[1],
                             .c = ms_matmul_added_to(call),
                             .d = scratch ? (void *)scratch : call->out_data[0],
                             .bias = (void *)call->in_data[2],
                             .workspace = workspace + ms_matmul_scratch_bytes(p)};
  MS_TRY(ms_lt_run(&v->lt, &v->lt.algo, &on, call->stream));
  const int finishes = scratch || v->left.bias_dtype >= 0 || v->left.activation != MS_ACT_NONE;
  return finishes ? ms_matmul_finish_run(call, &v->left, scratch) : MS_OK;
}
