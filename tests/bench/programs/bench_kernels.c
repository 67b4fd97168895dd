/* bench_kernels.c - the kernels that are bound by arithmetic, on the shapes of a GPT: 8 sequences of 256 tokens, 384
 * wide, 6 heads of 64, a vocabulary of 256. For what memory bounds see bench_elementwise.c.
 *
 *   bench_kernels [WORD] [THREADS]    rows whose name contains WORD (default all), on THREADS (default 1)
 *
 * Prints a JSON line a row: GFLOP/s, best of several runs, and microseconds. Attention counts the products of visible
 * scores alone, which are half of all without a window: 2 B H T^2 D forward, 5 B H T^2 D backward; what has no products
 * counts bytes instead (GB/s read and written).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers/bf16.h"
#include "base/clock.h"
#include "base/numbers/dtype.h"
#include "base/numbers/philox.h"
#include "graph/graph.h"
#include "kernels/op.h"

enum {
  SEQUENCES = 8,
  LENGTH = 256,
  TOKENS = SEQUENCES * LENGTH,
  WIDTH = 384,
  HIDDEN = 4 * WIDTH,
  HEADS = 6,
  HEAD = 64,
  VOCABULARY = 256
};

typedef struct bench {
  ms_kernel_call call;
  double work; /* operations or bytes */
  const char *unit;
} bench;

static void *allocate(int64_t bytes) {
  void *data = aligned_alloc(64, (size_t)((bytes + 127) / 64 * 64));
  if (!data) exit(1);
  memset(data, 0, (size_t)bytes);
  return data;
}

static int64_t bytes_of(const ms_value_info *info) { return ms_numel(info) * ms_dtype_size(info->dtype); }

static ms_value_info tensor(int dtype, int ndim, const int64_t *dims) {
  ms_value_info info = {.dtype = dtype, .ndim = ndim};
  memcpy(info.dims, dims, (size_t)ndim * sizeof *dims);
  return info;
}

#define TENSOR(dtype, ...) \
  tensor((dtype), (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})

/* Normal numbers, or integers in [0, limit) for i32. */
static void add_input(bench *b, ms_value_info info, int limit) {
  int64_t n = ms_numel(&info);
  float *normal = allocate(n * 4);
  void *data = allocate(bytes_of(&info));
  ms_philox_normal(1, (uint64_t)b->call.inputs, 0, n, normal);
  for (int64_t i = 0; i < n; i++) {
    if (info.dtype == MS_F32) ((float *)data)[i] = normal[i];
    if (info.dtype == MS_BF16) ((ms_bf16 *)data)[i] = ms_f32_to_bf16(normal[i]);
    if (info.dtype == MS_I32) ((int32_t *)data)[i] = (int32_t)(i * 7919 % limit);
  }
  free(normal);
  b->call.in[b->call.inputs] = info;
  b->call.in_data[b->call.inputs++] = data;
}

static void add_output(bench *b, ms_value_info info) {
  b->call.out[b->call.outputs] = info;
  b->call.out_data[b->call.outputs++] = allocate(bytes_of(&info));
}

static void measure(const char *name, bench *b) {
  const ms_kernel *kernel = ms_cpu_kernel(b->call.op);
  if (kernel->prepare && kernel->prepare(&b->call)) {
    fprintf(stderr, "%s: %s\n", name, ms_error_message());
    exit(1);
  }
  b->call.workspace = allocate(b->call.workspace_bytes);
  double best = 1e9, end = ms_clock() + 0.3;
  for (int runs = 0; runs < 3 || ms_clock() < end; runs++) {
    double begin = ms_clock();
    if (kernel->run(&b->call)) exit(1);
    double seconds = ms_clock() - begin;
    if (seconds < best) best = seconds;
  }
  printf("{\"name\": \"%s\", \"unit\": \"%s\", \"ours\": %.1f, \"us\": %.1f}\n", name, b->unit, b->work / best * 1e-9,
         best * 1e6);
  if (kernel->release) kernel->release(b->call.prepared);
  for (int i = 0; i < b->call.inputs; i++) free((void *)b->call.in_data[i]);
  for (int i = 0; i < b->call.outputs; i++) free(b->call.out_data[i]);
  free(b->call.workspace);
}

/* ---- matrix products -------------------------------------------------------------------------------------------- */

typedef struct product {
  const char *name;
  int64_t m, n, k;
  int trans_a, trans_b, wide; /* wide: f32 result whatever the operands */
} product;

static const product products[] = {
    {"cube", 1024, 1024, 1024, 0, 0, 0},
    {"qkv", TOKENS, 3 * WIDTH, WIDTH, 0, 1, 0},
    {"projection", TOKENS, WIDTH, WIDTH, 0, 1, 0},
    {"up", TOKENS, HIDDEN, WIDTH, 0, 1, 0},
    {"down", TOKENS, WIDTH, HIDDEN, 0, 1, 0},
    {"head", TOKENS, VOCABULARY, WIDTH, 0, 1, 0},
    {"dx of qkv", TOKENS, WIDTH, 3 * WIDTH, 0, 0, 0},
    {"dx of up", TOKENS, WIDTH, HIDDEN, 0, 0, 0},
    {"dx of down", TOKENS, HIDDEN, WIDTH, 0, 0, 0},
    {"dx of head", TOKENS, WIDTH, VOCABULARY, 0, 0, 0},
    {"dw of qkv", 3 * WIDTH, WIDTH, TOKENS, 1, 0, 1},
    {"dw of projection", WIDTH, WIDTH, TOKENS, 1, 0, 1},
    {"dw of up", HIDDEN, WIDTH, TOKENS, 1, 0, 1},
    {"dw of down", WIDTH, HIDDEN, TOKENS, 1, 0, 1},
    {"dw of head", VOCABULARY, WIDTH, TOKENS, 1, 0, 1},
};

static void make_product(bench *b, const product *p, int dtype) {
  b->call.op = MS_OP_matmul;
  b->call.attrs.product.trans_a = p->trans_a;
  b->call.attrs.product.trans_b = p->trans_b;
  add_input(b, p->trans_a ? TENSOR(dtype, p->k, p->m) : TENSOR(dtype, p->m, p->k), 0);
  add_input(b, p->trans_b ? TENSOR(dtype, p->n, p->k) : TENSOR(dtype, p->k, p->n), 0);
  add_output(b, TENSOR(p->wide ? MS_F32 : dtype, p->m, p->n));
  b->work = 2.0 * (double)(p->m * p->n * p->k);
  b->unit = "GFLOP/s";
}

/* The up projection of EXPERTS experts, of which rows have one: some many, others few. */
static void make_grouped(bench *b, int op, int dtype) {
  enum { EXPERTS = 8 };
  static const int32_t offsets[EXPERTS + 1] = {0, 500, 523, 800, 1001, 1400, 1412, 1790, TOKENS};
  const ms_value_info x = TENSOR(dtype, TOKENS, WIDTH), y = TENSOR(dtype, TOKENS, HIDDEN);
  const int to_w = op == MS_OP_grouped_matmul_backward_weight;
  b->call.op = op;
  b->call.attrs.product.trans_b = !to_w;
  add_input(b, to_w ? y : x, 0);
  add_input(b, to_w ? x : TENSOR(dtype, EXPERTS, HIDDEN, WIDTH), 0);
  add_input(b, TENSOR(MS_I32, EXPERTS + 1), 1);
  memcpy((void *)b->call.in_data[2], offsets, sizeof offsets);
  add_output(b, to_w ? TENSOR(MS_F32, EXPERTS, HIDDEN, WIDTH) : y);
  b->work = 2.0 * TOKENS * WIDTH * HIDDEN;
  b->unit = "GFLOP/s";
}

/* ---- attention, loss, embedding --------------------------------------------------------------------------------- */

typedef struct attention_size {
  int sequences, length, heads, window, d, e; /* d, e: columns of keys and of values */
} attention_size;

static void make_attention(bench *b, int dtype, attention_size a, int backward) {
  ms_value_info x = TENSOR(dtype, a.sequences, a.length, a.heads, a.d),
                y = TENSOR(dtype, a.sequences, a.length, a.heads, a.e),
                lse = TENSOR(MS_F32, a.sequences, a.heads, a.length);
  b->call.op = backward ? MS_OP_attention_backward : MS_OP_attention;
  b->call.attrs.attention.causal = 1;
  b->call.attrs.attention.window = a.window;
  add_input(b, x, 0), add_input(b, x, 0), add_input(b, y, 0);
  if (backward) {
    add_input(b, y, 0), add_input(b, lse, 0), add_input(b, y, 0);
    for (int64_t i = 0; i < ms_numel(&lse); i++) ((float *)b->call.in_data[4])[i] = 12;
    add_output(b, x), add_output(b, x), add_output(b, y);
  } else {
    add_output(b, y), add_output(b, lse);
  }
  const double length = a.length, hidden = a.window ? length - a.window : 0; /* keys of the last query */
  const double columns = backward ? 3 * a.d + 2 * a.e : a.d + a.e;
  b->work = columns * a.sequences * a.heads * (length * length - hidden * hidden);
  b->unit = "GFLOP/s";
}

static const struct {
  const char *name;
  attention_size size;
} attentions[] = {
    {"attention", {SEQUENCES, LENGTH, HEADS, 0, HEAD, HEAD}},
    {"attention of one head", {1, LENGTH, 1, 0, HEAD, HEAD}},
    {"attention of 2048", {1, 2048, HEADS, 0, HEAD, HEAD}},
    {"attention of 2048 in windows of 256", {1, 2048, HEADS, 256, HEAD, HEAD}},
    {"attention of keys of 192, values of 128", {1, LENGTH, HEADS, 0, 192, 128}},
    {"attention of keys and values of 160", {1, LENGTH, HEADS, 0, 160, 160}}, /* as many operations */
};

static void count_bytes(bench *b) {
  for (int i = 0; i < b->call.inputs; i++) b->work += (double)bytes_of(&b->call.in[i]);
  for (int i = 0; i < b->call.outputs; i++) b->work += (double)bytes_of(&b->call.out[i]);
  b->unit = "GB/s";
}

static void make_sinks(bench *b, int dtype) {
  const ms_value_info x = TENSOR(dtype, SEQUENCES, LENGTH, HEADS, HEAD), lse = TENSOR(MS_F32, SEQUENCES, HEADS, LENGTH);
  b->call.op = MS_OP_attention_sink;
  b->call.attrs.attention.causal = 1;
  for (int i = 0; i < 4; i++) add_input(b, x, 0);
  add_input(b, lse, 0), add_input(b, TENSOR(dtype, HEADS), 0);
  add_output(b, x), add_output(b, lse);
  b->work = 2.0 * (double)(bytes_of(&x) + bytes_of(&lse));
  b->unit = "GB/s";
}

static void multiply(bench *b, int input, float factor) {
  void *data = (void *)b->call.in_data[input];
  for (int64_t i = 0; i < ms_numel(&b->call.in[input]); i++)
    if (b->call.in[input].dtype == MS_F32) ((float *)data)[i] *= factor;
    else ((ms_bf16 *)data)[i] = ms_f32_to_bf16(factor * ms_bf16_to_f32(((ms_bf16 *)data)[i]));
}

/* Keys and betas so small that the state does not grow. */
static void make_delta_rule(bench *b, int dtype, int backward) {
  const ms_value_info x = TENSOR(dtype, SEQUENCES, LENGTH, HEADS, HEAD),
                      number = TENSOR(MS_F32, SEQUENCES, LENGTH, HEADS);
  const ms_cost_case cost = {.op = MS_OP_gated_delta_rule, .attrs = &b->call.attrs, .inputs = 5, .in = b->call.in};
  b->call.op = backward ? MS_OP_gated_delta_rule_backward : MS_OP_gated_delta_rule;
  for (int i = 0; i < 3; i++) add_input(b, x, 0);
  for (int i = 0; i < 2; i++) add_input(b, number, 0);
  multiply(b, 1, 1.0f / HEAD), multiply(b, 3, 1e-3f), multiply(b, 4, 0.1f);
  b->work = (backward ? 2 : 1) * ms_op_flops(&cost);
  if (backward) add_input(b, x, 0);
  for (int i = 0; i < (backward ? 5 : 0); i++) add_output(b, b->call.in[i]);
  if (!backward) add_output(b, x), add_output(b, TENSOR(MS_F32, SEQUENCES, HEADS, HEAD, HEAD));
  b->unit = "GFLOP/s";
}

static void make_loss_step(bench *b, int dtype, int classes) {
  const int64_t rows = TOKENS * VOCABULARY / classes;
  ms_value_info logits = TENSOR(dtype, rows, classes), scalar = {.dtype = MS_F32};
  b->call.op = MS_OP_cross_entropy_step;
  b->call.attrs.loss.ignore_index = -100;
  add_input(b, logits, 0);
  add_input(b, TENSOR(MS_I32, rows), classes);
  add_input(b, scalar, 0), add_input(b, scalar, 0);
  *(float *)b->call.in_data[2] = *(float *)b->call.in_data[3] = 1;
  add_output(b, logits), add_output(b, scalar);
  count_bytes(b);
}

static void make_loss(bench *b, int dtype, int classes, int backward) {
  const int64_t rows = TOKENS * VOCABULARY / classes;
  ms_value_info logits = TENSOR(dtype, rows, classes), row = TENSOR(MS_F32, rows), scalar = {.dtype = MS_F32};
  b->call.op = backward ? MS_OP_cross_entropy_backward : MS_OP_cross_entropy;
  b->call.attrs.loss.ignore_index = -100;
  add_input(b, logits, 0);
  add_input(b, TENSOR(MS_I32, rows), classes);
  if (backward) {
    add_input(b, row, 0), add_input(b, scalar, 0), add_input(b, scalar, 0), add_output(b, logits);
    for (int64_t r = 0; r < rows; r++) ((float *)b->call.in_data[2])[r] = 6;
    *(float *)b->call.in_data[3] = *(float *)b->call.in_data[4] = 1;
  } else {
    add_output(b, scalar), add_output(b, row), add_output(b, scalar);
  }
  count_bytes(b);
}

static void make_embedding(bench *b, int dtype, int backward) {
  ms_value_info table = TENSOR(backward ? MS_F32 : dtype, VOCABULARY, WIDTH), rows = TENSOR(dtype, TOKENS, WIDTH);
  ms_value_info tokens = TENSOR(MS_I32, TOKENS);
  b->call.op = backward ? MS_OP_embedding_backward : MS_OP_embedding;
  if (backward) add_input(b, tokens, VOCABULARY), add_input(b, rows, 0), add_output(b, table);
  else add_input(b, table, 0), add_input(b, tokens, VOCABULARY), add_output(b, rows);
  count_bytes(b);
  if (!backward) b->work = 2.0 * (double)bytes_of(&rows);
}

/* ---- convolutions ------------------------------------------------------------------------------------------------ */

/* Of [16,64,28,28] with 3 x 3 windows, as in the first blocks of a ResNet, or of their patches of 4 x 4. */
static void make_convolution(bench *b, int op, int dtype, int patches) {
  const int64_t images = 16, channels = 64, size = 28, window = patches ? 4 : 3, out = patches ? size / window : size;
  const ms_value_info x = TENSOR(dtype, images, channels, size, size), y = TENSOR(dtype, images, channels, out, out);
  const ms_value_info w = TENSOR(dtype, channels, channels, window, window);
  const int to_x = op == MS_OP_conv2d_backward_input, to_w = op == MS_OP_conv2d_backward_weight;
  b->call.op = op;
  b->call.attrs =
      patches ? (ms_op_attrs){.windows = {.stride_h = 4, .stride_w = 4, .dilation_h = 1, .dilation_w = 1, .groups = 1}}
              : (ms_op_attrs){.windows = {.stride_h = 1,
                                          .stride_w = 1,
                                          .pad_h = 1,
                                          .pad_w = 1,
                                          .dilation_h = 1,
                                          .dilation_w = 1,
                                          .groups = 1}};
  add_input(b, to_x ? y : x, 0);
  add_input(b, to_w ? y : w, 0);
  add_output(b, to_x ? x : to_w ? TENSOR(MS_F32, channels, channels, window, window) : y);
  b->work = 2.0 * (double)(ms_numel(&y) * channels * window * window);
  b->unit = "GFLOP/s";
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

static const char *wanted = "";
static int threads = 1;

#define ROW(title, dtype, make)                                          \
  do {                                                                   \
    char name[64];                                                       \
    snprintf(name, sizeof name, "%s %s", (title), ms_dtype_name(dtype)); \
    if (!strstr(name, wanted)) break;                                    \
    bench b = {.call = {.threads = threads}};                            \
    make;                                                                \
    measure(name, &b);                                                   \
  } while (0)

int main(int count, char **words) {
  char title[48];
  if (count > 1) wanted = words[1];
  if (count > 2) threads = atoi(words[2]);
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) {
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
      ROW(products[i].name, dtype, make_product(&b, &products[i], dtype));
    ROW("up of 8 experts", dtype, make_grouped(&b, MS_OP_grouped_matmul, dtype));
    ROW("dw of up of 8 experts", dtype, make_grouped(&b, MS_OP_grouped_matmul_backward_weight, dtype));
    for (size_t i = 0; i < sizeof attentions / sizeof *attentions; i++)
      for (int backward = 0; backward < 2; backward++) {
        snprintf(title, sizeof title, "%s%s", attentions[i].name, backward ? " backward" : "");
        ROW(title, dtype, make_attention(&b, dtype, attentions[i].size, backward));
      }
    ROW("sinks of attention", dtype, make_sinks(&b, dtype));
    ROW("gated delta rule", dtype, make_delta_rule(&b, dtype, 0));
    ROW("gated delta rule backward", dtype, make_delta_rule(&b, dtype, 1));
    ROW("cross entropy of 256", dtype, make_loss(&b, dtype, 256, 0));
    ROW("cross entropy of 256 backward", dtype, make_loss(&b, dtype, 256, 1));
    ROW("cross entropy of 256 step", dtype, make_loss_step(&b, dtype, 256));
    ROW("cross entropy of 8192", dtype, make_loss(&b, dtype, 8192, 0));
    ROW("cross entropy of 8192 backward", dtype, make_loss(&b, dtype, 8192, 1));
    ROW("cross entropy of 8192 step", dtype, make_loss_step(&b, dtype, 8192));
    for (int patches = 0; patches < 2; patches++) {
      ROW(patches ? "conv2d 4x4 patches" : "conv2d 3x3", dtype, make_convolution(&b, MS_OP_conv2d, dtype, patches));
      ROW(patches ? "dx of conv2d 4x4 patches" : "dx of conv2d 3x3", dtype,
          make_convolution(&b, MS_OP_conv2d_backward_input, dtype, patches));
      ROW(patches ? "dw of conv2d 4x4 patches" : "dw of conv2d 3x3", dtype,
          make_convolution(&b, MS_OP_conv2d_backward_weight, dtype, patches));
    }
    ROW("embedding", dtype, make_embedding(&b, dtype, 0));
    ROW("embedding backward", dtype, make_embedding(&b, dtype, 1));
  }
  return 0;
}
