/* document_attention.cu - attention within documents is computed on the CPU alone: a plan that has it is refused here. */
#include "kernels/cuda/launch.h"

namespace {

int refuse(ms_kernel_call *call) {
  (void)call;
  return MS_FAIL(MS_EUNSUPPORTED,
                 "cuda: attention within documents is there on the CPU alone: leave document_start out");
}

} // namespace

extern const ms_kernel ms_cuda_document_attention = {refuse, nullptr, nullptr, 0};
