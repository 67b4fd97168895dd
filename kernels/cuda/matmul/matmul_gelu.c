/* matmul_gelu.c - a product followed by gelu (tanh form) or gelu's gradient: one cuBLASLt call with an epilogue, or two
 * kernels. MOONSHARD_CUDA_EPILOGUES selects:
 *
 *   auto    the epilogue from compute capability 9.0 on, if the library has it, but two kernels if gradients of gelu
 * and of a bias are needed (the epilogue took twice as long on an H100); otherwise two kernels fused   the epilogue on
 * every GPU apart   two kernels
 *
 * matmul_gelu uses GELU_AUX_BIAS, whose auxiliary matrix is the product before gelu. The gradients use DGELU and
 * DGELU_BGRAD, which read it. The epilogue needs auxiliary matrices with rows of a multiple of 8 elements and tensors
 * aligned to 16 bytes; other calls run two kernels. If the library has no algorithm, a note reports it and two kernels
 * run.
 */
#include "kernels/products/matmul_gelu.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/error.h"
#include "kernels/cuda/matmul/cublaslt_product.h"
#include "kernels/cuda/matmul/matmul.h"
#include "kernels/cuda/plan/plan.h"
#include "kernels/cuda/table.h"
#include "kernels/cuda/workspace.h"

enum { ROW_UNIT = 8, ALIGNMENT = 16, OLDEST_MAJOR = 9 };
enum state { UNDECIDED, FUSED, APART };

typedef struct prepared_gelu {
  ms_gelu_steps steps;
  ms_product product;
  enum state state;
  ms_lt_product lt; /* set if state is FUSED */
} prepared_gelu;

static int epilogue_of(int op) {
  switch (op) {
    case MS_OP_matmul_gelu: return MS_LT_EPILOGUE_GELU_AUX_BIAS;
    case MS_OP_matmul_gelu_backward: return MS_LT_EPILOGUE_DGELU;
    default: return MS_LT_EPILOGUE_DGELU_BGRAD;
  }
}

/* Assigns the call's tensors to the library's operands, auxiliary matrix and bias (or bias gradient). */
static ms_lt_operands operands_of(const ms_kernel_call *call) {
  const int forward = call->op == MS_OP_matmul_gelu;
  return (ms_lt_operands){.a = call->in_data[0],
                          .b = call->in_data[1],
                          .d = forward ? call->out_data[1] : call->out_data[0],
                          .bias = forward ? (void *)call->in_data[2] : call->out_data[1],
                          .aux = forward ? call->out_data[0] : (void *)call->in_data[2],
                          .workspace = ms_library_workspace(call->workspace)};
}

/* The epilogue supports a single bf16 product, not a batch, with a bf16 bias. */
static int suits(const ms_kernel_call *call, const ms_product *p) {
  const int biased = call->op != MS_OP_matmul_gelu || p->bias_dtype == MS_BF16;
  return biased && p->dtype == MS_BF16 && p->c_dtype == MS_BF16 && p->batch == 1 && p->n % ROW_UNIT == 0 &&
         p->m * p->n * p->k > 0;
}

static int is_aligned(const ms_kernel_call *call) {
  uintptr_t all = 0;
  for (int i = 0; i < call->inputs; i++) all |= (uintptr_t)call->in_data[i];
  for (int o = 0; o < call->outputs; o++) all |= (uintptr_t)call->out_data[o];
  return all % ALIGNMENT == 0;
}

static int prepare(ms_kernel_call *call) {
  prepared_gelu *prepared = ms_calloc(1, sizeof *prepared);
  if (!prepared) return MS_ENOMEM;
  int rc = ms_gelu_steps_prepare(call, ms_cuda_kernel, &prepared->steps);
  if (!rc) {
    rc = ms_product_of(&prepared->steps.call[0], &prepared->product);
    if (rc) ms_gelu_steps_release(&prepared->steps);
  }
  if (!rc && !suits(call, &prepared->product)) prepared->state = APART;
  if (rc) free(prepared);
  else call->prepared = prepared;
  return rc;
}

/* Whether the user requires two kernels, or they are faster. */
static int wants_apart(int op, const ms_product *product, int *apart) {
  const char *choice = ms_env_string("MOONSHARD_CUDA_EPILOGUES", "auto");
  const int fused = !strcmp(choice, "fused");
  int demanded, device = 0, major = 0;
  MS_TRY(ms_matmul_choice(product, apart, &demanded));
  if (!fused && strcmp(choice, "auto") && strcmp(choice, "apart"))
    return MS_FAIL(MS_EINVAL, "MOONSHARD_CUDA_EPILOGUES is \"%s\"; it must be auto, fused or apart", choice);
  *apart |= !fused && op == MS_OP_matmul_gelu_backward_bias;
  if (*apart || fused) return MS_OK;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error != cudaSuccess) return MS_FAIL(MS_EDEVICE, "cudaDeviceGetAttribute: %s", cudaGetErrorString(error));
  *apart = !strcmp(choice, "apart") || major < OLDEST_MAJOR;
  return MS_OK;
}

/* Opens the product with its epilogue. *found 0: the library has no algorithm. */
static int open_fused(prepared_gelu *prepared, const ms_cublaslt *lt, const ms_kernel_call *call, int *found) {
  const ms_lt_operands on = operands_of(call);
  ms_lt_problem problem;
  memset(&problem, 0, sizeof problem);
  problem.product = prepared->product;
  problem.workspace_bytes = ms_matmul_library_bytes(&prepared->product);
  problem.epilogue = epilogue_of(call->op);
  problem.alignment = ALIGNMENT;
  MS_TRY(ms_lt_processors(call, &problem.processors));
  MS_TRY(ms_lt_open(lt, &problem, &prepared->lt));
  int rc = ms_lt_expect(&prepared->lt, &on);
  if (!rc) rc = ms_lt_choose(&prepared->lt, found);
  if (rc || !*found) ms_lt_close(&prepared->lt);
  return rc;
}

static int decide(prepared_gelu *prepared, const ms_kernel_call *call) {
  const ms_product *p = &prepared->product;
  char why[MS_LIBRARY_WHY_BYTES];
  int apart, found = 0;
  MS_TRY(wants_apart(call->op, p, &apart));
  const ms_cublaslt *lt = apart ? NULL : ms_handles_load(&ms_cublaslt_handles, why);
  if (lt) MS_TRY(open_fused(prepared, lt, call, &found));
  if (lt && !found)
    ms_note("cuBLASLt has no algorithm with %s for [%" PRId64 ",%" PRId64 "] x [%" PRId64 ",%" PRId64
            "]: a separate kernel after the product computes it",
            call->op == MS_OP_matmul_gelu ? "gelu" : "gelu's gradient", p->m, p->k, p->k, p->n);
  prepared->state = found ? FUSED : APART;
  return MS_OK;
}

static int bind(const ms_kernel_call *call) {
  prepared_gelu *prepared = call->prepared;
  if (!is_aligned(call)) return ms_gelu_steps_bind(&prepared->steps, call);
  if (prepared->state == UNDECIDED) MS_TRY(decide(prepared, call));
  return prepared->state == FUSED ? MS_OK : ms_gelu_steps_bind(&prepared->steps, call);
}

static int run(const ms_kernel_call *call) {
  const prepared_gelu *prepared = call->prepared;
  if (prepared->state == FUSED && is_aligned(call)) {
    const ms_lt_operands on = operands_of(call);
    return ms_lt_run(&prepared->lt, &prepared->lt.algo, &on, call->stream);
  }
  return ms_gelu_steps_run(&prepared->steps, call);
}

static void release(void *data) {
  prepared_gelu *prepared = data;
  if (!prepared) return;
  ms_gelu_steps_release(&prepared->steps);
  if (prepared->state == FUSED) ms_lt_close(&prepared->lt);
  free(prepared);
}

const ms_kernel ms_cuda_matmul_gelu = {
    .prepare = prepare, .run = run, .release = release, .in_place = MS_CUDA_OVER_matmul_gelu, .bind = bind};
