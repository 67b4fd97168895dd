/* bench_matmul.c - matrix products on the device cuda, on the shapes of GPT-2 124M (32 x 1024 tokens) and of a Llama of 1B (4 x 4096):
** forward, the gradient of what went in, and that of the weight, which is f32.
**
**   bench_matmul [TOKENS]     so many tokens, and layers of a 256th of their size: a look at whether it works
**
** Prints a JSON line a product: TFLOP/s of the median of 20 runs. Algorithms are chosen as a training chooses them, so
** MOONSHARD_CUDA_MATMUL and MOONSHARD_CUDA_MATMUL_TUNE decide what is measured; NAME in the environment is the line's name.
*/
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "device/device.h"

enum { WARM_UP = 5, RUNS = 20, PIECE = 1 << 24 };

typedef struct layer {
  const char *name;
  int64_t tokens, in, out;
} layer;

static const layer layers[] = {
    {"gpt2 projection", 32768, 768, 768}, {"gpt2 up", 32768, 768, 3072},           {"gpt2 down", 32768, 3072, 768},
    {"gpt2 head", 32768, 768, 50304},     {"llama projection", 16384, 2048, 2048}, {"llama key", 16384, 2048, 512},
    {"llama up", 16384, 2048, 8192},      {"llama down", 16384, 8192, 2048},       {"llama head", 16384, 2048, 128256}};

enum { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, WAYS };
static const char *const ways[WAYS] = {"forward", "gradient", "weight gradient"};

static ms_value_info matrix(int dtype, int64_t rows, int64_t columns) {
  return (ms_value_info){.dtype = dtype, .ndim = 2, .dims = {rows, columns}};
}

/* y = x w'; dx = dy w; dw = dy' x: x [tokens,in], w [out,in]. */
static ms_kernel_call call_of(const layer *l, int way) {
  ms_kernel_call call = {.op = MS_OP_matmul, .inputs = 2, .outputs = 1, .threads = 1};
  const ms_value_info x = matrix(MS_BF16, l->tokens, l->in), y = matrix(MS_BF16, l->tokens, l->out);
  const ms_value_info w = matrix(MS_BF16, l->out, l->in);
  call.in[0] = way == FORWARD ? x : y;
  call.in[1] = way == WEIGHT_GRADIENT ? x : w;
  call.out[0] = way == FORWARD ? y : way == INPUT_GRADIENT ? x : matrix(MS_F32, l->out, l->in);
  call.attrs.i[0] = way == WEIGHT_GRADIENT;
  call.attrs.i[1] = way == FORWARD;
  return call;
}

typedef struct bench {
  const ms_device_api *api;
  ms_device *device;
  ms_device_stream *stream;
  ms_device_event *begin, *end;
} bench;

static int64_t bytes_of(const ms_value_info *info) { return ms_numel(info) * ms_dtype_size(info->dtype); }

/* Numbers between -1 and 1 whose bits are as mixed as in a training: power, and with it the clock, depends on them. */
static int fill(const bench *b, void *data, int64_t bytes) {
  static uint16_t piece[PIECE / 2];
  static int drawn;
  for (; drawn < PIECE / 2 && 2 * drawn < bytes; drawn++) piece[drawn] = (uint16_t)((rand() & 0x80ff) | 0x3e00);
  for (int64_t at = 0; at < bytes; at += PIECE)
    MS_TRY(b->api->write(b->device, (char *)data + at, piece, bytes - at < PIECE ? bytes - at : PIECE));
  return MS_OK;
}

static int time_once(const bench *b, const ms_kernel *kernel, const ms_kernel_call *call, double *seconds) {
  int done = 0;
  MS_TRY(b->api->record(b->device, b->begin, b->stream));
  MS_TRY(kernel->run(call));
  MS_TRY(b->api->record(b->device, b->end, b->stream));
  while (!done) MS_TRY(b->api->query(b->device, b->end, &done));
  return b->api->elapsed(b->device, b->begin, b->end, seconds);
}

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static int time_runs(const bench *b, const ms_kernel *kernel, const ms_kernel_call *call, double *median) {
  double seconds[WARM_UP + RUNS];
  for (int i = 0; i < WARM_UP + RUNS; i++) MS_TRY(time_once(b, kernel, call, &seconds[i]));
  qsort(seconds + WARM_UP, RUNS, sizeof *seconds, compare);
  *median = seconds[WARM_UP + RUNS / 2];
  return MS_OK;
}

static int measure(const bench *b, const layer *l, int way, double *seconds) {
  const ms_kernel *kernel = b->api->kernel(MS_OP_matmul);
  ms_kernel_call call = call_of(l, way);
  void *data[4] = {NULL};
  MS_TRY(kernel->prepare(&call));
  const int64_t bytes[4] = {bytes_of(&call.in[0]), bytes_of(&call.in[1]), bytes_of(&call.out[0]),
                            call.workspace_bytes + 1};
  int rc = MS_OK;
  for (int i = 0; i < 4 && !rc; i++) rc = b->api->allocate(b->device, bytes[i], "a matrix", &data[i]);
  for (int i = 0; i < 2 && !rc; i++) rc = fill(b, data[i], bytes[i]);
  call.in_data[0] = data[0];
  call.in_data[1] = data[1];
  call.out_data[0] = data[2];
  call.workspace = data[3];
  call.stream = b->stream;
  if (!rc && kernel->bind) rc = kernel->bind(&call);
  if (!rc) rc = time_runs(b, kernel, &call, seconds);
  for (int i = 0; i < 4; i++)
    if (data[i]) b->api->release(b->device, data[i], bytes[i]);
  if (kernel->release) kernel->release(call.prepared);
  return rc;
}

static int measure_all(const bench *b, int64_t tokens) {
  const char *name = getenv("NAME");
  for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
    for (int way = 0; way < WAYS; way++) {
      layer l = layers[i];
      double seconds;
      if (tokens) l.tokens = tokens, l.in /= 256, l.out /= 256;
      MS_TRY(measure(b, &l, way, &seconds));
      printf("{\"product\":\"%s, %s\",\"name\":\"%s\",\"tokens\":%lld,\"in\":%lld,\"out\":%lld,\"us\":%.2f,"
             "\"tflops\":%.4f}\n",
             l.name, ways[way], name ? name : "moonshard", (long long)l.tokens, (long long)l.in, (long long)l.out,
             seconds * 1e6, 2e-12 * (double)l.tokens * (double)l.in * (double)l.out / seconds);
      fflush(stdout);
    }
  return MS_OK;
}

int main(int argc, char **argv) {
  bench b = {0};
  int rc = ms_device_find(MS_DEVICE_CUDA, &b.api);
  if (!rc) rc = b.api->open(0, &b.device);
  if (!rc) rc = b.api->stream_open(b.device, 0, &b.stream);
  if (!rc) rc = b.api->event_open(b.device, 1, &b.begin);
  if (!rc) rc = b.api->event_open(b.device, 1, &b.end);
  if (!rc) rc = measure_all(&b, argc > 1 ? atoll(argv[1]) : 0);
  if (rc) fprintf(stderr, "bench_matmul: %s\n", ms_error_message());
  for (const char *note = ms_note_next(); note; note = ms_note_next()) fprintf(stderr, "bench_matmul: %s\n", note);
  return rc != MS_OK;
}
