/* conv2d.h - the implementations of convolutions on the CPU. */
#ifndef MS_KERNELS_CPU_CONV2D_H
#define MS_KERNELS_CPU_CONV2D_H

#include "kernels/window.h"

/* oneDNN (conv2d_onednn.c): each thread has some of the images. */
int ms_conv_onednn_prepare(ms_kernel_call *call, const ms_conv *conv, void **prepared);
int ms_conv_onednn_run(const ms_kernel_call *call, void *prepared);
void ms_conv_onednn_release(void *prepared);

/* Plain loops without a library, so that a sanitizer sees every memory access (conv2d_plain.c). */
int64_t ms_conv_plain_workspace(const ms_kernel_call *call);
void ms_conv_plain_run(const ms_kernel_call *call);

#endif
