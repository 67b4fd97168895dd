/* emulated_window.h - memory registered with communicators of the emulated NCCL; connects its two files. */
#ifndef EMULATED_WINDOW_H
#define EMULATED_WINDOW_H

#include "device/cuda/nccl.h"

/* Returns 1 if the bytes are in a window of the communicator, at *offset; otherwise 0, with a line on stderr. */
int emulated_window_has(ms_nccl_comm comm, const void *at, size_t bytes, size_t *offset);
/* Whether the communicator has a window. */
int emulated_window_any(ms_nccl_comm comm);
/* Removes all windows of a communicator, when it is destroyed. */
void emulated_window_forget(ms_nccl_comm comm);

#endif
