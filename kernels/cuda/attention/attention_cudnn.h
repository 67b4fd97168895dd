/* attention_cudnn.h - attention by cuDNN, for attention.cu: created once the device is open, and then run. */
#ifndef MS_KERNELS_CUDA_ATTENTION_CUDNN_H
#define MS_KERNELS_CUDA_ATTENTION_CUDNN_H

#include "kernels/cuda/attention/cudnn_graph.h"
#include "kernels/op.h"

typedef struct ms_attention_cudnn ms_attention_cudnn;

/* Loads the library and finds a plan that fits in the workspace. *out NULL: there is none, and `why` says why not. */
int ms_attention_cudnn_new(const ms_dnn_attention *attention, float scale, ms_attention_cudnn **out,
                           char why[MS_LIBRARY_WHY_BYTES]);
/* Tensors must be aligned to 16 bytes. */
int ms_attention_cudnn_run(const ms_attention_cudnn *attention, const ms_kernel_call *call);
void ms_attention_cudnn_free(ms_attention_cudnn *attention);

#endif
