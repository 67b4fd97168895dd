/* matmul.cu - the matrix product: chooses the implementation. MOONSHARD_CUDA_MATMUL selects:
 *
 *   auto      cuBLASLt; our own kernels for empty products, or, with a note, if cuBLASLt is not found
 *   cublaslt  cuBLASLt, or an error
 *   plain     our own kernels in f32 arithmetic
 *
 * MOONSHARD_CUDA_MATMUL_TF32=1 lets cuBLASLt round f32 operands to TF32 (10 bits of mantissa); by default it does not.
 */
#include "kernels/cuda/launch.h"

#include <stdlib.h>

extern "C" {
#include "base/library.h"
#include "base/error.h"
#include "kernels/cuda/matmul/matmul.h"
}

namespace {

struct prepared_product {
  ms_product product;
  int plain;
  const char *because;          /* why `plain` is set, a static string */
  ms_matmul_cublaslt *cublaslt; /* NULL before bind, or if `plain` is set */
};

int prepare(ms_kernel_call *call) {
  ms_product product;
  int plain;
  MS_TRY(ms_matmul_plan(call, &product, &plain));
  prepared_product *prepared = static_cast<prepared_product *>(ms_calloc(1, sizeof *prepared));
  if (!prepared) return MS_ENOMEM;
  prepared->product = product;
  prepared->plain = plain;
  prepared->because = plain ? "no elements, or MOONSHARD_CUDA_MATMUL=plain" : nullptr;
  call->prepared = prepared;
  return MS_OK;
}

/* Looks for cuBLASLt, which only the machine with the device needs to have. */
int find_library(prepared_product *prepared) {
  char why[MS_LIBRARY_WHY_BYTES];
  int plain, demanded;
  MS_TRY(ms_matmul_choice(&prepared->product, &plain, &demanded));
  MS_TRY(ms_matmul_cublaslt_new(&prepared->product, &prepared->cublaslt, why));
  if (prepared->cublaslt) return MS_OK;
  if (demanded) return MS_FAIL(MS_EUNSUPPORTED, "MOONSHARD_CUDA_MATMUL=cublaslt: %s", why);
  ms_note("%s; Moonshard's own kernels compute them, without tensor cores", why);
  prepared->plain = 1;
  prepared->because = "no cuBLASLt";
  return MS_OK;
}

int bind(const ms_kernel_call *call) {
  prepared_product *prepared = static_cast<prepared_product *>(call->prepared);
  if (!prepared->plain && !prepared->cublaslt) MS_TRY(find_library(prepared));
  return prepared->plain ? MS_OK : ms_matmul_cublaslt_bind(prepared->cublaslt, call);
}

int run(const ms_kernel_call *call) {
  const prepared_product *prepared = static_cast<const prepared_product *>(call->prepared);
  if (prepared->plain) return ms_matmul_plain_run(call, &prepared->product);
  if (prepared->cublaslt) return ms_matmul_cublaslt_run(prepared->cublaslt, call);
  return MS_FAIL(MS_EINTERNAL, "matmul: the call was not bound");
}

void release(void *data) {
  prepared_product *prepared = static_cast<prepared_product *>(data);
  if (prepared) ms_matmul_cublaslt_free(prepared->cublaslt);
  free(prepared);
}

ms_computed computed(const ms_kernel_call *call) {
  const prepared_product *prepared = static_cast<const prepared_product *>(call->prepared);
  return {prepared->plain ? "own kernels" : "cuBLASLt", prepared->because};
}

} // namespace

extern const ms_kernel ms_cuda_matmul = {prepare, run, release, MS_CUDA_OVER_matmul, bind, computed};
extern const ms_kernel ms_cuda_matmul_add = {prepare, run, release, MS_CUDA_OVER_matmul_add, bind, computed};
