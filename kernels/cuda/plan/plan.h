/* plan.h - the CUDA kernels as plans see them: which outputs can overwrite which inputs, which calls they refuse, and
 * the workspace of the others. Plain C without CUDA, in the engine and in libmoonshard_cuda.so: a plan comes out the
 * same on a machine without that library. */
#ifndef MS_KERNELS_CUDA_PLAN_PLAN_H
#define MS_KERNELS_CUDA_PLAN_PLAN_H

#include "kernels/op.h"
#include "kernels/formats/storage.h"

/* in_place of each kernel. */
enum {
#define MS_CUDA_KERNEL(kernel, prepare, in_place, ...) MS_CUDA_OVER_##kernel = in_place,
#include "kernels/cuda/plan/kernels.def"
#undef MS_CUDA_KERNEL
};

/* The kernel of an op with only prepare, in_place and joins: it cannot run, and its calls have no prepared data.
 * NULL for aliases. */
const ms_kernel *ms_cuda_planned_kernel(int op);

int ms_cuda_prepare_binary(ms_kernel_call *call);
int ms_cuda_prepare_maximum_backward(ms_kernel_call *call);
int ms_cuda_prepare_max_backward(ms_kernel_call *call);
int ms_cuda_prepare_matmul(ms_kernel_call *call);
int ms_cuda_prepare_matmul_f8(ms_kernel_call *call);
int ms_cuda_prepare_conv2d(ms_kernel_call *call);
int ms_cuda_prepare_matmul_gelu(ms_kernel_call *call);
int ms_cuda_prepare_attention(ms_kernel_call *call);
int ms_cuda_prepare_attention_max(ms_kernel_call *call);
int ms_cuda_prepare_gated_delta_rule(ms_kernel_call *call);
int ms_cuda_prepare_reduce(ms_kernel_call *call);
int ms_cuda_prepare_sum_to(ms_kernel_call *call);
int ms_cuda_prepare_activation_backward_bias(ms_kernel_call *call);
int ms_cuda_prepare_norm_backward(ms_kernel_call *call);
int ms_cuda_prepare_group_norm(ms_kernel_call *call);
int ms_cuda_prepare_embedding_backward(ms_kernel_call *call);
int ms_cuda_prepare_scatter_add(ms_kernel_call *call);
int ms_cuda_prepare_cross_entropy(ms_kernel_call *call);
int ms_cuda_prepare_cross_entropy_step(ms_kernel_call *call);
int ms_cuda_prepare_linear_cross_entropy(ms_kernel_call *call);
int ms_cuda_prepare_sum_squares(ms_kernel_call *call);
int ms_cuda_prepare_adafactor(ms_kernel_call *call);
int ms_cuda_prepare_muon_orthogonalise(ms_kernel_call *call);
int ms_cuda_prepare_expert_order(ms_kernel_call *call);
int ms_cuda_prepare_grouped_matmul(ms_kernel_call *call);

int ms_cuda_update_joins(const ms_kernel_call *a, const ms_kernel_call *b);

#endif
