/* matmul.c - see the header; and matmul_gelu, whose two kernels need the larger of their workspaces, which is also that
 * of cuBLASLt with an epilogue. */
#include "kernels/cuda/plan/products/matmul.h"

#include <string.h>

#include "base/env.h"
#include "base/error.h"
#include "kernels/cuda/plan/plan.h"
#include "kernels/cuda/plan/sizes.h"
#include "kernels/cuda/workspace.h"
#include "kernels/products/matmul_gelu.h"

/* Workspace for sums split along k: at most PARTS f32 parts of the result, and no more than NVIDIA recommends for
 * Hopper. */
enum { PARTS = 16, MAX_WORKSPACE = 32 << 20 };

int ms_matmul_choice(const ms_product *product, int *plain, int *demanded) {
  const char *choice = ms_env_string("MOONSHARD_CUDA_MATMUL", "auto");
  *demanded = !strcmp(choice, "cublaslt");
  *plain = !strcmp(choice, "plain") || product->batch * product->m * product->n * product->k == 0;
  if (*demanded || !strcmp(choice, "plain") || !strcmp(choice, "auto")) return MS_OK;
  return MS_FAIL(MS_EINVAL, "MOONSHARD_CUDA_MATMUL is \"%s\"; it must be auto, cublaslt or plain", choice);
}

int ms_matmul_tf32(int *allowed) { return ms_env_int("MOONSHARD_CUDA_MATMUL_TF32", 0, 0, 1, allowed); }

static int64_t result_bytes(const ms_product *p) { return p->batch * p->m * p->n * (int64_t)sizeof(float); }

int64_t ms_matmul_library_bytes(const ms_product *p) {
  const int64_t parts = PARTS * result_bytes(p);
  return parts < MAX_WORKSPACE ? ms_cuda_align(parts) : MAX_WORKSPACE;
}

int64_t ms_matmul_scratch_bytes(const ms_product *p) {
  return p->dtype == MS_F32 && p->c_dtype == MS_BF16 ? ms_cuda_align(result_bytes(p)) : 0;
}

int ms_matmul_plan(ms_kernel_call *call, ms_product *product, int *plain) {
  int demanded;
  MS_TRY(ms_product_of(call, product));
  MS_TRY(ms_matmul_choice(product, plain, &demanded));
  const int64_t library = ms_matmul_scratch_bytes(product) + ms_matmul_library_bytes(product) + MS_LIBRARY_SLACK;
  call->workspace_bytes = *plain ? 0 : library;
  return MS_OK;
}

int ms_cuda_prepare_matmul(ms_kernel_call *call) {
  ms_product product;
  int plain;
  return ms_matmul_plan(call, &product, &plain);
}

int ms_cuda_prepare_matmul_gelu(ms_kernel_call *call) {
  ms_gelu_steps steps;
  return ms_gelu_steps_prepare(call, ms_cuda_planned_kernel, &steps);
}
