/* bench_elementwise.c - the kernels that are bound by memory, against memcpy of as many bytes in the same run, one
 * thread.
 *
 * One JSON line a kernel: {"name", "unit", "ours", "peer", "ratio"}; ours and peer are GB/s of bytes read and written.
 * bench_elementwise [WORD [ROWS]]: only what has WORD in its name; ROWS instead of 2048, few of them stay in cache.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers/bf16.h"
#include "base/clock.h"
#include "base/numbers/dtype.h"
#include "graph/graph.h"
#include "kernels/formats/moments.h"
#include "kernels/op.h"
#include "kernels/formats/storage.h"

/* The best of at least this many runs and this many seconds. */
enum { REPEATS = 30 };
static const double seconds = 0.02;

typedef struct row {
  const char *name;
  int op, inputs, outputs;
  const char *in, *out; /* one letter a tensor, see info_of */
  ms_op_attrs attrs;
} row;

static const row rows[] = {
    {"add", MS_OP_add, 2, 1, "xx", "x", {0}},
    {"add row vector", MS_OP_add, 2, 1, "xd", "x", {0}},
    {"scale", MS_OP_scale, 1, 1, "x", "x", {.scale = {.alpha = 2.0, .beta = 1.0}}},
    {"maximum", MS_OP_maximum, 2, 1, "xx", "x", {0}},
    {"abs", MS_OP_abs, 1, 1, "x", "x", {0}},
    {"clamp", MS_OP_clamp, 1, 1, "x", "x", {.clamp = {.min = -1.0, .max = 1.0}}},
    {"exp", MS_OP_exp, 1, 1, "x", "x", {0}},
    {"tanh", MS_OP_tanh, 1, 1, "x", "x", {0}},
    {"sigmoid", MS_OP_sigmoid, 1, 1, "x", "x", {0}},
    {"softplus", MS_OP_softplus, 1, 1, "x", "x", {0}},
    {"gelu", MS_OP_gelu, 1, 1, "x", "x", {0}},
    {"gelu_tanh", MS_OP_gelu_tanh, 1, 1, "x", "x", {0}},
    {"silu", MS_OP_silu, 1, 1, "x", "x", {0}},
    {"gelu_backward", MS_OP_gelu_backward, 2, 1, "xx", "x", {0}},
    {"gelu_tanh_backward", MS_OP_gelu_tanh_backward, 2, 1, "xx", "x", {0}},
    {"swiglu", MS_OP_swiglu, 2, 1, "xx", "x", {0}},
    {"swiglu_backward", MS_OP_swiglu_backward, 3, 2, "xxx", "xx", {0}},
    {"dropout", MS_OP_dropout, 1, 1, "x", "x", {.mask = {.p = 0.1}}},
    {"cast to f32", MS_OP_cast, 1, 1, "x", "f", {0}},
    {"cast from f32", MS_OP_cast, 1, 1, "f", "x", {0}},
    {"dequantise nf4", MS_OP_dequantise, 1, 1, "4", "x", {.stored = {.storage = MS_NF4}}},
    {"dequantise i8", MS_OP_dequantise, 1, 1, "8", "x", {.stored = {.storage = MS_I8}}},
    {"accumulate", MS_OP_accumulate, 1, 1, "x", "f", {.add = 1}},
    {"sum last axis", MS_OP_sum, 1, 1, "x", "r", {.reduce = {.axis = -1}}},
    {"max last axis", MS_OP_max, 1, 1, "x", "r", {.reduce = {.axis = -1}}},
    {"min last axis", MS_OP_min, 1, 1, "x", "r", {.reduce = {.axis = -1}}},
    {"sum_to row vector", MS_OP_sum_to, 1, 1, "x", "D", {.shape = {.d = {0}}}},
    {"softmax", MS_OP_softmax, 1, 1, "x", "x", {0}},
    {"softmax_backward", MS_OP_softmax_backward, 2, 1, "xx", "x", {0}},
    {"layer_norm", MS_OP_layer_norm, 3, 2, "xdd", "xs", {.norm = {.eps = 1e-5}}},
    {"add_layer_norm", MS_OP_add_layer_norm, 4, 3, "xxdd", "xsx", {.norm = {.eps = 1e-5}}},
    {"layer_norm_backward", MS_OP_layer_norm_backward, 4, 3, "xdsx", "xDD", {0}},
    {"layer_norm_backward and add", MS_OP_layer_norm_backward, 5, 3, "xdsxx", "xDD", {0}},
    {"rms_norm", MS_OP_rms_norm, 2, 2, "xd", "xs", {.norm = {.eps = 1e-5}}},
    {"rms_norm_backward", MS_OP_rms_norm_backward, 4, 2, "xdsx", "xD", {0}},
    {"activation_backward_bias relu",
     MS_OP_activation_backward_bias,
     2,
     2,
     "xx",
     "xD",
     {.product = {.activation = MS_ACT_RELU}}},
    {"activation_backward_bias gelu",
     MS_OP_activation_backward_bias,
     2,
     2,
     "xx",
     "xD",
     {.product = {.activation = MS_ACT_GELU}}},
    {"activation_backward_bias gelu_tanh",
     MS_OP_activation_backward_bias,
     2,
     2,
     "xx",
     "xD",
     {.product = {.activation = MS_ACT_GELU_TANH}}},
    {"activation_backward_bias silu",
     MS_OP_activation_backward_bias,
     2,
     2,
     "xx",
     "xD",
     {.product = {.activation = MS_ACT_SILU}}},
    {"transpose", MS_OP_transpose, 1, 1, "x", "t", {.permutation = {.p = {1, 0}}}},
    {"pow", MS_OP_pow, 2, 1, "pd", "x", {0}},
    {"roll", MS_OP_roll, 1, 1, "x", "x", {.cut = {.axis = 1, .by = 5}}},
    {"cumsum last axis", MS_OP_cumsum, 1, 1, "x", "x", {.cumsum = {.axis = -1}}},
    {"cumsum first axis", MS_OP_cumsum, 1, 1, "x", "x", {.cumsum = {.axis = 0}}},
    {"topk 2", MS_OP_topk, 1, 2, "x", "vj", {.topk = {.axis = -1, .k = 2, .largest = 1}}},
    {"gather", MS_OP_gather, 2, 1, "xi", "x", {.cut = {.axis = -1}}},
    {"scatter_add", MS_OP_scatter_add, 3, 1, "xix", "x", {.cut = {.axis = -1}}},
    {"rope", MS_OP_rope, 1, 1, "h", "h", {.rope = {.theta = 10000.0}}},
    {"sum_squares", MS_OP_sum_squares, 1, 1, "f", "l", {0}},
    {"adamw",
     MS_OP_adamw,
     3,
     3,
     "fn1",
     "fff",
     {.update = {.lr_scale = 1.0, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.999}}},
    {"adamw, 8 bits",
     MS_OP_adamw,
     3,
     3,
     "fn1",
     "fmm",
     {.update = {.moments = MS_ADAMW_I8, .lr_scale = 1.0, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.999}}},
    {"sgd momentum", MS_OP_sgd, 3, 2, "fn1", "ff", {.update = {.lr_scale = 1.0, .weight_decay = 0.1, .momentum = 0.9}}},
};

static int64_t stored_words(int dtype, int64_t n) {
  ms_storage storage;
  if (ms_storage_find(dtype, 0, &storage)) abort();
  return ms_storage_words(&storage, n);
}

static ms_value_info info_of(char kind, int dtype, int64_t n, int64_t d) {
  switch (kind) {
    case 'p':
    case 'x': return (ms_value_info){dtype, 2, {n, d}};
    case 'f': return (ms_value_info){MS_F32, 2, {n, d}};
    case 'd': return (ms_value_info){dtype, 1, {d}};
    case 'D': return (ms_value_info){MS_F32, 1, {d}};
    case 's': return (ms_value_info){MS_F32, 2, {n, 2}};
    case 'v': return (ms_value_info){dtype, 2, {n, 2}};
    case 'j': return (ms_value_info){MS_I32, 2, {n, 2}};
    case 'i': return (ms_value_info){MS_I32, 2, {n, d}};
    case 'r': return (ms_value_info){dtype, 1, {n}};
    case 't': return (ms_value_info){dtype, 2, {d, n}};
    case 'h': return (ms_value_info){dtype, 4, {n / 256, 256, d / 64, 64}};
    case 'n': return (ms_value_info){MS_F32, 1, {4}};
    case '4': return (ms_value_info){MS_I32, 1, {stored_words(MS_NF4, n * d)}};
    case 'm': return (ms_value_info){MS_I32, 1, {ms_moment_words(n * d)}};
    case '8': return (ms_value_info){MS_I32, 1, {stored_words(MS_I8, n * d)}};
    default: return (ms_value_info){MS_F32, 0, {0}};
  }
}

static void *tensor(const ms_value_info *info) {
  int64_t n = ms_numel(info), size = ms_dtype_size(info->dtype);
  void *data = aligned_alloc(64, (size_t)((n * size + 63) / 64 * 64));
  for (int64_t i = 0; i < n; i++) {
    float value = (float)(i * 2654435761u % 4096) / 1024.0f - 2.0f;
    if (info->dtype == MS_F32) ((float *)data)[i] = value;
    else if (info->dtype == MS_I32) ((uint32_t *)data)[i] = (uint32_t)(i * 2654435761u) >> 4 | 0x30000000u;
    else ((ms_bf16 *)data)[i] = ms_f32_to_bf16(value);
  }
  return data;
}

/* Indices of elements of an axis of n. */
static void *indices(const ms_value_info *info, int64_t n) {
  int32_t *data = tensor(info);
  for (int64_t i = 0; i < ms_numel(info); i++) data[i] = (int32_t)((uint32_t)data[i] % (uint32_t)n);
  return data;
}

/* Positive numbers. */
static void *bases(const ms_value_info *info) {
  void *data = tensor(info);
  const int64_t size = ms_dtype_size(info->dtype);
  for (int64_t i = 0; i < ms_numel(info); i++) ((uint8_t *)data)[(i + 1) * size - 1] &= 0x7f; /* the sign */
  return data;
}

static void *input_of(char kind, const ms_value_info *info, int64_t d) {
  return kind == 'i' ? indices(info, d) : kind == 'p' ? bases(info) : tensor(info);
}

/* Best GB/s of copying half of `bytes`. */
static double copy_rate(double bytes) {
  size_t half = (size_t)(bytes / 2);
  char *from = malloc(half), *to = malloc(half);
  double best = 1e30;
  memset(from, 1, half);
  memset(to, 2, half);
  const double until = ms_clock() + seconds;
  for (int i = 0; i < REPEATS || ms_clock() < until; i++) {
    double start = ms_clock();
    memcpy(to, from, half);
    __asm__ volatile("" : : "r"(to) : "memory");
    double took = ms_clock() - start;
    if (took < best) best = took;
  }
  free(from);
  free(to);
  return bytes / best * 1e-9;
}

static int measure(const row *r, int dtype, int64_t n, int64_t d, const char *only) {
  char name[128];
  snprintf(name, sizeof name, "%s %s %dx%d", r->name, ms_dtype_name(dtype), (int)n, (int)d);
  if (!strstr(name, only)) return 0;
  static const ms_scalars scalars = {.lr = 1e-3, .step = 3, .micro_batches = 1, .seed = 42};
  ms_kernel_call call = {
      .op = r->op, .attrs = r->attrs, .inputs = r->inputs, .outputs = r->outputs, .threads = 1, .scalars = &scalars};
  const ms_kernel *kernel = ms_cpu_kernel(r->op);
  double bytes = 0.0;
  for (int i = 0; i < r->inputs; i++) {
    call.in[i] = info_of(r->in[i], dtype, n, d);
    call.in_data[i] = input_of(r->in[i], &call.in[i], d);
    bytes += (double)ms_numel(&call.in[i]) * ms_dtype_size(call.in[i].dtype);
  }
  const int updates = ms_op_reads_outputs(r->op, &r->attrs);
  for (int i = 0; i < r->outputs; i++) {
    call.out[i] = info_of(r->out[i], dtype, n, d);
    call.out_data[i] = tensor(&call.out[i]);
    bytes += (1 + updates) * (double)ms_numel(&call.out[i]) * ms_dtype_size(call.out[i].dtype);
  }
  if (kernel->prepare && kernel->prepare(&call)) return 1;
  call.workspace = aligned_alloc(64, (size_t)((call.workspace_bytes + 127) / 64 * 64));

  const double until = ms_clock() + seconds;
  double best = 1e30;
  for (int i = 0; i < REPEATS || ms_clock() < until; i++) {
    double start = ms_clock();
    if (kernel->run(&call)) return 1;
    double took = ms_clock() - start;
    if (took < best) best = took;
  }
  double ours = bytes / best * 1e-9, peer = copy_rate(bytes);
  printf("{\"name\": \"%s\", \"unit\": \"GB/s\", \"ours\": %.2f, \"peer\": %.2f, \"ratio\": %.2f}\n", name, ours, peer,
         ours / peer);

  for (int i = 0; i < r->inputs; i++) free((void *)call.in_data[i]);
  for (int i = 0; i < r->outputs; i++) free(call.out_data[i]);
  free(call.workspace);
  if (kernel->release) kernel->release(call.prepared);
  return 0;
}

int main(int argc, char **argv) {
  const char *only = argc > 1 ? argv[1] : "";
  const int64_t height = argc > 2 ? atoi(argv[2]) : 2048;
  static const int64_t columns[] = {384, 1536};
  for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
    for (int shape = 0; shape < 2; shape++)
      for (int dtype = MS_F32; dtype <= MS_BF16; dtype++)
        if (measure(&rows[r], dtype, height, columns[shape], only)) {
          fprintf(stderr, "%s: %s\n", rows[r].name, ms_error_message());
          return 1;
        }
  return 0;
}
