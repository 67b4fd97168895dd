/* muon_orthogonalise.c - the workspace of Muon's orthogonal matrix: its squares, and that of the kernels which it
 * consists of. */
#include "kernels/cuda/plan/plan.h"
#include "kernels/products/orthogonalise.h"

int ms_cuda_prepare_muon_orthogonalise(ms_kernel_call *call) {
  ms_orthogonalise made;
  return ms_orthogonalise_prepare(call, ms_cuda_planned_kernel, &made);
}
