/* device_bench.h - shared by the benchmarks of kernels on the device cuda: a stream, random tensors, and the median
 * time of a call.
 */
#ifndef MS_TESTS_GPU_DEVICE_BENCH_H
#define MS_TESTS_GPU_DEVICE_BENCH_H

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "device/device.h"

enum { WARM_UP = 5, RUNS = 20, FEW_RUNS = 3, PIECE = 1 << 24 };

typedef struct bench {
  const ms_device_api *api;
  ms_device *device;
  ms_device_stream *stream;
  ms_device_event *begin, *end;
  int warm_up, runs;                                                        /* of a call; the warm-up is not timed */
  void (*integers)(const ms_kernel_call *call, int32_t *values, int64_t n); /* writes an input of i32 */
} bench;

static inline int64_t bytes_of(const ms_value_info *info) { return ms_numel(info) * ms_dtype_size(info->dtype); }

/* Writes random bf16 numbers between -1 and 1. Power, and with it the clock, depends on the data, so zeros would be
 * faster than training. */
static inline int fill(const bench *b, void *data, int64_t bytes) {
  static uint16_t piece[PIECE / 2];
  static int drawn;
  for (; drawn < PIECE / 2 && 2 * drawn < bytes; drawn++) piece[drawn] = (uint16_t)((rand() & 0x80ff) | 0x3e00);
  for (int64_t at = 0; at < bytes; at += PIECE)
    MS_TRY(b->api->write(b->device, (char *)data + at, piece, bytes - at < PIECE ? bytes - at : PIECE));
  return MS_OK;
}

static inline int fill_integers(const bench *b, const ms_kernel_call *call, void *data, int64_t n) {
  int32_t *values = calloc((size_t)n, sizeof *values);
  if (!values) return MS_FAIL(MS_ENOMEM, "no memory for %lld integers", (long long)n);
  b->integers(call, values, n);
  const int rc = b->api->write(b->device, data, values, n * (int64_t)sizeof *values);
  free(values);
  return rc;
}

static inline int time_once(const bench *b, const ms_kernel *kernel, const ms_kernel_call *call, double *seconds) {
  int done = 0;
  MS_TRY(b->api->record(b->device, b->begin, b->stream));
  MS_TRY(kernel->run(call));
  MS_TRY(b->api->record(b->device, b->end, b->stream));
  while (!done) MS_TRY(b->api->query(b->device, b->end, &done));
  return b->api->elapsed(b->device, b->begin, b->end, seconds);
}

static inline int compare_times(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static inline int time_runs(const bench *b, const ms_kernel *kernel, const ms_kernel_call *call, double *median) {
  double seconds[RUNS], untimed;
  for (int i = 0; i < b->warm_up; i++) MS_TRY(time_once(b, kernel, call, &untimed));
  for (int i = 0; i < b->runs; i++) MS_TRY(time_once(b, kernel, call, &seconds[i]));
  qsort(seconds, (size_t)b->runs, sizeof *seconds, compare_times);
  *median = seconds[b->runs / 2];
  return MS_OK;
}

/* Allocates the tensors and workspace of a call, fills its inputs, and measures the median time in seconds. */
static inline int measure_call(const bench *b, ms_kernel_call *call, double *seconds) {
  enum { MAX = MS_MAX_INPUTS + MS_MAX_OUTPUTS + 1 };
  const ms_kernel *kernel = b->api->kernel(call->op);
  const int tensors = call->inputs + call->outputs;
  void *data[MAX] = {NULL};
  int64_t bytes[MAX];
  MS_TRY(kernel->prepare(call));
  for (int i = 0; i < tensors; i++) bytes[i] = bytes_of(i < call->inputs ? &call->in[i] : &call->out[i - call->inputs]);
  bytes[tensors] = call->workspace_bytes + 1;
  int rc = MS_OK;
  for (int i = 0; i <= tensors && !rc; i++) rc = b->api->allocate(b->device, bytes[i], 0, "a tensor", &data[i]);
  for (int i = 0; i < call->inputs && !rc; i++)
    rc = call->in[i].dtype == MS_I32 ? fill_integers(b, call, data[i], ms_numel(&call->in[i]))
                                     : fill(b, data[i], bytes[i]);
  for (int i = 0; i < call->inputs; i++) call->in_data[i] = data[i];
  for (int i = 0; i < call->outputs; i++) call->out_data[i] = data[call->inputs + i];
  call->workspace = data[tensors];
  call->stream = b->stream;
  if (!rc && kernel->bind) rc = kernel->bind(call);
  if (!rc) rc = time_runs(b, kernel, call, seconds);
  for (int i = 0; i <= tensors; i++)
    if (data[i]) b->api->release(b->device, data[i], bytes[i], 0);
  if (kernel->release) kernel->release(call->prepared);
  return rc;
}

/* Prints the line of a product: of a layer's way, in one run that computes `flop` operations. */
static inline void print_product(const char *layer, const char *way, double flop, double seconds) {
  const char *name = getenv("NAME");
  printf("{\"product\":\"%s, %s\",\"name\":\"%s\",\"us\":%.2f,\"tflops\":%.4f}\n", layer, way,
         name ? name : "moonshard", seconds * 1e6, 1e-12 * flop / seconds);
  fflush(stdout);
}

/* Opens the first GPU; the process never closes it. */
static inline int open_bench(bench *b) {
  MS_TRY(ms_device_find(MS_DEVICE_CUDA, &b->api));
  MS_TRY(b->api->open(0, 0, 0, &b->device));
  MS_TRY(b->api->stream_open(b->device, 0, &b->stream));
  MS_TRY(b->api->event_open(b->device, 1, &b->begin));
  return b->api->event_open(b->device, 1, &b->end);
}

/* Prints the error and notes, and returns the exit status. */
static inline int end_bench(const char *name, int rc) {
  if (rc) fprintf(stderr, "%s: %s\n", name, ms_error_message());
  for (const char *note = ms_note_next(); note; note = ms_note_next()) fprintf(stderr, "%s: %s\n", name, note);
  return rc != MS_OK;
}

/* The main function of a benchmark; its argument is a number that `measure` takes, by default 0. With another number it
 * only checks that everything works, so a few runs do. */
static inline int run_bench(const char *name, int (*measure)(const bench *b, int64_t number), int argc, char **argv) {
  const int64_t number = argc > 1 ? atoll(argv[1]) : 0;
  bench b = {.warm_up = number ? 1 : WARM_UP, .runs = number ? FEW_RUNS : RUNS};
  int rc = open_bench(&b);
  if (!rc) rc = measure(&b, number);
  return end_bench(name, rc);
}

#endif
