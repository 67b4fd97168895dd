/* emulated_window.h - memory that is registered with communicators of the emulated NCCL: between its two files. */
#ifndef EMULATED_WINDOW_H
#define EMULATED_WINDOW_H

#include "device/cuda/nccl.h"

/* 1: the bytes lie in a window of the communicator, at *offset of it; 0, with a line on stderr: they do not. */
int emulated_window_has(ms_nccl_comm comm, const void *at, size_t bytes, size_t *offset);
/* Whether the communicator has a window. */
int emulated_window_any(ms_nccl_comm comm);
/* A communicator that ends takes its windows with it. */
void emulated_window_forget(ms_nccl_comm comm);

#endif
