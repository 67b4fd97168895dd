/* cuda.h - declarations that the files of the CUDA device share. They are plain C over CUDA's runtime API; the kernels
 * are in kernels/cuda. */
#ifndef MS_DEVICE_CUDA_CUDA_H
#define MS_DEVICE_CUDA_CUDA_H

#include <cuda_runtime_api.h>
#include <stdatomic.h>

#include "base/error.h"
#include "device/device.h"
#include "kernels/cuda/places/mark.h"
#include "kernels/cuda/reductions/parts.h"

typedef struct ms_cuda_device {
  ms_device base;
  int index;    /* CUDA's index among the devices visible to this process */
  int nccl;     /* enum ms_nccl_option */
  int carveout; /* multiprocessors that products leave to collectives, or 0 */
  int ctas;     /* the most thread blocks of a collective's kernel (order.c) */
} ms_cuda_device;

/* error.c: sends errors and notes to this engine from now on. */
void ms_cuda_report_to(const ms_device_host *host);
/* Returns MS_OK, or raises an error that names the function:
 * "cudaMalloc: out of memory (cudaErrorMemoryAllocation)". */
#define MS_CUDA(call) ms_cuda_check((call), #call, __FILE__, __LINE__)
int ms_cuda_check(cudaError_t error, const char *call, const char *file, int line);
/* For calls that free something: an earlier error has been reported already. */
static inline void ms_cuda_ignore(cudaError_t error) { (void)error; }

static inline int ms_cuda_index(const ms_device *device) { return ((const ms_cuda_device *)device)->index; }
static inline int ms_cuda_nccl(const ms_device *device) { return ((const ms_cuda_device *)device)->nccl; }

/* Totals of the process, in bytes (allocations: a count), for ms_device_usage. */
extern struct ms_cuda_totals { _Atomic int64_t arenas, pinned, context, communicators, allocations; } ms_cuda_totals;

/* library.c */
extern const ms_device_api ms_cuda_api;

/* open.c */
int ms_cuda_open(int local_rank, int nccl, int carveout, ms_device **device);
void ms_cuda_close(ms_device *device);
int ms_cuda_attach(ms_device *device);
int ms_cuda_place(ms_device *device, char *text, int bytes);
/* 1 when MOONSHARD_CUDA_SHARE=1: several ranks can use one GPU. */
int ms_cuda_shares(void);
int ms_cuda_count(int *devices);
int ms_cuda_describe(int index, ms_device_info *info);
int ms_cuda_check_gpu(int index);
int ms_cuda_library(const char *name, char *version, int bytes);

/* code.c: MS_EUNSUPPORTED if the library contains no code that this GPU can run. */
int ms_cuda_check_code(int index);

/* memory.c */
int ms_cuda_allocate(ms_device *device, int64_t bytes, int communicated, const char *label, void **base);
void ms_cuda_release(ms_device *device, void *base, int64_t bytes, int communicated);
int ms_cuda_read(ms_device *device, void *host, const void *at, int64_t bytes);
int ms_cuda_write(ms_device *device, void *at, const void *host, int64_t bytes);
int ms_cuda_pin(ms_device *device, int64_t bytes, void **host);
void ms_cuda_unpin(ms_device *device, void *host, int64_t bytes);
int ms_cuda_usage(ms_device *device, ms_device_usage *usage);
int64_t ms_cuda_allocations(void);

/* stream.c */
int ms_cuda_stream_open(ms_device *device, int urgent, ms_device_stream **stream);
void ms_cuda_stream_close(ms_device *device, ms_device_stream *stream);
int ms_cuda_event_open(ms_device *device, int timed, ms_device_event **event);
void ms_cuda_event_close(ms_device *device, ms_device_event *event);
int ms_cuda_record(ms_device *device, ms_device_event *event, ms_device_stream *stream);
int ms_cuda_wait(ms_device *device, ms_device_stream *stream, ms_device_event *event);
int ms_cuda_query(ms_device *device, ms_device_event *event, int *done);
int ms_cuda_elapsed(ms_device *device, ms_device_event *from, ms_device_event *to, double *seconds);
int ms_cuda_copy_in(ms_device *device, ms_device_stream *stream, void *at, const void *pinned, int64_t bytes);
int ms_cuda_copy_out(ms_device *device, ms_device_stream *stream, void *pinned, const void *at, int64_t bytes);
int ms_cuda_copy_within(ms_device *device, ms_device_stream *stream, void *to, const void *from, int64_t bytes);
int ms_cuda_move_on(ms_device *device, ms_device_stream *stream, int moves, const ms_move *move);
int ms_cuda_mark_on(ms_device *device, ms_device_stream *stream, int64_t *pinned, const int64_t *value);
int ms_cuda_capture_begin(ms_device *device, ms_device_stream *stream);
int ms_cuda_capture_end(ms_device *device, ms_device_stream *stream, ms_device_graph **graph);
int ms_cuda_graph_run(ms_device *device, ms_device_graph *graph, ms_device_stream *stream);
void ms_cuda_graph_close(ms_device *device, ms_device_graph *graph);

/* communicator.c */
int ms_cuda_comm_id(ms_device *device, int at_once, void *id);
int ms_cuda_comm_open(ms_device *device, const void *id, int size, int rank, ms_device_comm **comm);
int ms_cuda_comm_split(ms_device *device, ms_device_comm *parent, int color, int key, ms_device_comm **comm);
int ms_cuda_comm_ready(ms_device *device, ms_device_comm *comm, int *ready);
int ms_cuda_window_open(ms_device *device, ms_device_comm *comm, void *base, int64_t bytes, ms_device_window **window);
void ms_cuda_window_close(ms_device *device, ms_device_comm *comm, ms_device_window *window);
int ms_cuda_collective(ms_device *device, ms_device_comm *comm, ms_device_stream *stream, int kind, int parts,
                       const ms_device_part *part);
void ms_cuda_comm_abort(ms_device *device, ms_device_comm **comm);
void ms_cuda_comm_close(ms_device *device, ms_device_comm *comm, double seconds);

/* order.c: prepares the process for communicators of which at_once run at the same time, before NCCL reads its
 * settings, and sets device->ctas. MS_EUNSUPPORTED if a setting of NCCL gives one more than its share of the
 * multiprocessors, or the GPU is a part of one. */
int ms_cuda_order_collectives(ms_cuda_device *device, int at_once);

/* The kernel of an op (kernels/cuda/table.cu). */
const ms_kernel *ms_cuda_kernel(int op);

#endif
