/* test_graph_axes.c - every op of the table computed in parts, along every axis that its row says can be divided: the
 * parts of the inputs give the parts of the outputs, or outputs that the row's join makes whole. */
#include "tests/c/support/check.h"

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "graph/axes.h"
#include "tests/c/graph/graph_gradient_cases.h"
#include "tests/c/graph/graph_interpreter.h"

enum { MAX_PARTS = 8 };

/* ---- cases ------------------------------------------------------------------------------------------------------ */

static int build_matmul_split_bias(fixture *f, int op, int dtype) {
  return op3(f, op, param(f, dtype, SHAPE(2, 4, 6)), param(f, dtype, SHAPE(6, 3)), param(f, dtype, SHAPE(3)), NULL);
}

static int build_one_key_head(fixture *f, int op, int dtype) { return attention(f, op, dtype, 6, 6, 1, NULL); }

static int build_folded(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(4, 3, 6)), ATTRS(.shape = {.d = {12, 2, 3, 1, 1, 1}, .ndim = 3}));
}

static int build_unfolded(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(12, 6)), ATTRS(.shape = {.d = {4, 3, 1, 6, 1, 1}, .ndim = 4}));
}

static int build_fill(fixture *f, int op, int dtype) {
  int out[MS_MAX_OUTPUTS];
  apply(f, op, 0, NULL, ATTRS(.out_dtype = 1 + dtype, .shape = {.d = {4, 6, 1, 1, 1, 1}, .ndim = 2, .value = 2.5}),
        out);
  return out[0];
}

static int build_sum_to_row(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(4, 6)), ATTRS(.shape = {.d = {1, 6, 1, 1, 1, 1}, .ndim = 2}));
}

static int build_conv_backward_input(fixture *f, int op, int dtype) {
  return op2(f, op, param(f, dtype, SHAPE(4, 6, 3, 2)), param(f, dtype, SHAPE(6, 2, 2, 3)),
             ATTRS(.windows = {.stride_h = 2,
                               .stride_w = 1,
                               .pad_h = 1,
                               .dilation_h = 1,
                               .dilation_w = 1,
                               .groups = 2,
                               .height = 5,
                               .width = 4}));
}

static int build_conv_backward_weight(fixture *f, int op, int dtype) {
  return op2(f, op, param(f, dtype, SHAPE(4, 4, 5, 4)), param(f, dtype, SHAPE(4, 6, 3, 2)),
             ATTRS(.out_dtype = 1 + MS_F32, .windows = {.stride_h = 2,
                                                        .stride_w = 1,
                                                        .pad_h = 1,
                                                        .dilation_h = 1,
                                                        .dilation_w = 1,
                                                        .groups = 2,
                                                        .height = 2,
                                                        .width = 3}));
}

static int build_max_pool_backward(fixture *f, int op, int dtype) {
  return op2(f, op, param(f, dtype, SHAPE(4, 2, 2, 2)), input(f, "tokens", MS_I32, SHAPE(4, 2, 2, 2)),
             ATTRS(.windows = {.kernel_h = 2, .kernel_w = 2, .height = 4, .width = 5}));
}

static int build_avg_pool_backward(fixture *f, int op, int dtype) {
  return op1(f, op, param(f, dtype, SHAPE(4, 2, 3, 2)),
             ATTRS(.windows = {.kernel_h = 2,
                               .kernel_w = 2,
                               .stride_h = 2,
                               .stride_w = 2,
                               .pad_h = 1,
                               .count_include_pad = 1,
                               .height = 5,
                               .width = 4}));
}

static int build_largest(fixture *f, int op, int dtype) {
  return op2(f, op, param(f, dtype, SHAPE(2, 6, 4, 8)), param(f, dtype, SHAPE(2, 6, 2, 8)), NULL);
}

static int build_largest_of_documents(fixture *f, int op, int dtype) {
  return op3(f, op, param(f, dtype, SHAPE(2, 12, 4, 8)), param(f, dtype, SHAPE(2, 12, 2, 8)),
             input(f, "tokens", MS_I32, SHAPE(2, 12)), ATTRS(.attention = {.start = 2, .window = 5}));
}

/* Rows without a gradient, and shapes that the gradients' cases leave out. */
static const gradient_case more[] = {
    {MS_OP_less, "", NORMAL, build_broadcast},
    {MS_OP_attention_max, "", NORMAL, build_largest},
    {MS_OP_document_attention_max, "", NORMAL, build_largest_of_documents},
    {MS_OP_less_equal, "", NORMAL, build_binary},
    {MS_OP_equal, "", DISTINCT, build_square},
    {MS_OP_not_equal, "", NORMAL, build_scalar},
    {MS_OP_tanh_backward, "", NORMAL, build_binary},
    {MS_OP_sigmoid_backward, "", NORMAL, build_binary},
    {MS_OP_relu_backward, "", NORMAL, build_binary},
    {MS_OP_abs_backward, "", NORMAL, build_binary},
    {MS_OP_clamp_backward, "", NORMAL, build_binary},
    {MS_OP_gelu_backward, "", NORMAL, build_binary},
    {MS_OP_gelu_tanh_backward, "", NORMAL, build_binary},
    {MS_OP_silu_backward, "", NORMAL, build_binary},
    {MS_OP_softmax_backward, "", NORMAL, build_binary},
    {MS_OP_log_softmax_backward, "", NORMAL, build_binary},
    {MS_OP_fill, "", NORMAL, build_fill},
    {MS_OP_matmul, " sum bias", NORMAL, build_matmul_split_bias},
    {MS_OP_attention, " one key head", NORMAL, build_one_key_head},
    {MS_OP_reshape, " folded", NORMAL, build_folded},
    {MS_OP_unsplit, " alone", NORMAL, build_part_alone},
    {MS_OP_reshape, " unfolded", NORMAL, build_unfolded},
    {MS_OP_sum_to, " row", NORMAL, build_sum_to_row},
    {MS_OP_conv2d_backward_input, "", NORMAL, build_conv_backward_input},
    {MS_OP_conv2d_backward_weight, "", NORMAL, build_conv_backward_weight},
    {MS_OP_max_pool2d_backward, "", NORMAL, build_max_pool_backward},
    {MS_OP_avg_pool2d_backward, "", NORMAL, build_avg_pool_backward},
    {MS_OP_detach, "", NORMAL, build_unary},
    {MS_OP_to_local, " alone", NORMAL, build_part_alone},
    {MS_OP_from_local, " alone", NORMAL, build_part_alone},
};
enum { N_MORE = sizeof more / sizeof more[0] };

/* ---- parts ------------------------------------------------------------------------------------------------------ */

/* An operand: its shape, labels and data, and the same of a part. */
typedef struct operand {
  ms_value_info info;
  const int *labels;
  char *data;
} operand;

static int64_t elements(const ms_value_info *x, int from, int to) {
  int64_t n = 1;
  for (int d = from; d < to; d++) n *= x->dims[d];
  return n;
}

static int axis_of(const operand *x, int label) {
  int d = 0;
  while (d < x->info.ndim && x->labels[d] != label) d++;
  return d < x->info.ndim ? d : -1;
}

/* Part i of n along the label; the whole operand where it lacks the label. */
static operand part_of(const operand *x, int label, int64_t n, int64_t i) {
  const int axis = axis_of(x, label), size = ms_dtype_size(x->info.dtype);
  operand part = {x->info, x->labels, NULL};
  if (axis >= 0) part.info.dims[axis] /= n;
  const int64_t all = ms_numel(&part.info) * size;
  part.data = interpreter_allocate(all);
  if (axis < 0) {
    memcpy(part.data, x->data, (size_t)all);
    return part;
  }
  const int64_t outer = elements(&x->info, 0, axis), run = elements(&part.info, axis, x->info.ndim) * size;
  for (int64_t o = 0; o < outer; o++) memcpy(part.data + o * run, x->data + (o * n + i) * run, (size_t)run);
  return part;
}

static double get(const operand *x, int64_t i) {
  if (x->info.dtype == MS_U8) return ((uint8_t *)x->data)[i];
  if (x->info.dtype == MS_I32) return ((int32_t *)x->data)[i];
  return ((float *)x->data)[i];
}

static void run_kernel(const ms_node *node, const ms_op_attrs *attrs, const operand *in, operand *out) {
  static const ms_scalars scalars = {.lr = 1e-3, .step = 1, .micro_batches = 1, .seed = 7};
  const ms_kernel *kernel = ms_cpu_kernel(node->op);
  ms_kernel_call call = {
      .op = node->op, .attrs = *attrs, .inputs = node->inputs, .outputs = node->outputs, .threads = 1};
  call.scalars = &scalars;
  for (int i = 0; i < node->inputs; i++) call.in[i] = in[i].info, call.in_data[i] = in[i].data;
  for (int o = 0; o < node->outputs; o++) call.out[o] = out[o].info, call.out_data[o] = out[o].data;
  if (!kernel) {
    memcpy(out[0].data, in[0].data, (size_t)(ms_numel(&in[0].info) * ms_dtype_size(in[0].info.dtype)));
    return;
  }
  if (kernel->prepare) must(kernel->prepare(&call));
  if (call.workspace_bytes) call.workspace = interpreter_allocate(call.workspace_bytes);
  must(kernel->run(&call));
  if (kernel->release && call.prepared) kernel->release(call.prepared);
  free(call.workspace);
}

/* ---- a node in parts -------------------------------------------------------------------------------------------- */

typedef struct whole_node {
  const ms_node *node;
  const char *what;
  ms_axes axes;
  operand in[MS_MAX_INPUTS], out[MS_MAX_OUTPUTS];
} whole_node;

static void expect_near(const whole_node *w, int label, double got, double wanted) {
  if (fabs(got - wanted) <= 1e-5 * (1 + fabs(wanted))) return;
  fail_msg("%s divided along '%c': %g and not %g", w->what, w->axes.label[label].name, got, wanted);
}

static void add_to_join(const whole_node *w, double *joined, const operand *part, int64_t n, int64_t i) {
  for (int64_t k = 0; k < ms_numel(&part->info); k++) {
    const double x = get(part, k);
    if (w->axes.join == MS_JOIN_SUM) joined[k] += x;
    if (w->axes.join == MS_JOIN_MEAN) joined[k] += x / (double)n;
    if (w->axes.join == MS_JOIN_MAX) joined[k] = i ? fmax(joined[k], x) : x;
    if (w->axes.join == MS_JOIN_MIN) joined[k] = i ? fmin(joined[k], x) : x;
  }
}

/* Runs part i of n; joined: [outputs], sums and the like of the outputs that lack the label. */
static void run_part(const whole_node *w, int label, int64_t n, int64_t i, double **joined) {
  const ms_node *node = w->node;
  operand in[MS_MAX_INPUTS], out[MS_MAX_OUTPUTS];
  ms_value_info infos[MS_MAX_INPUTS], made[MS_MAX_OUTPUTS];
  ms_node part = *node;
  part.attrs = ms_axes_part_attrs(node, &w->axes, &w->out[0].info, label, n);
  for (int d = 0; d < w->in[0].info.ndim && (w->axes.placed == MS_AXES_ALL || w->axes.placed == label); d++)
    if (w->in[0].labels[d] == label)
      ms_axes_place(node->op, &w->axes, &w->in[0].info, d, 1, (ms_part){.ranks = (int)n, .place = (int)i}, &part.attrs);
  if (label == w->axes.contiguous) part.attrs.table.first = i * (w->in[0].info.dims[0] / n);
  for (int k = 0; k < node->inputs; k++) {
    in[k] = part_of(&w->in[k], label, n, i);
    infos[k] = in[k].info;
    if (i && w->axes.added >> k & 1 && axis_of(&w->in[k], label) < 0 && axis_of(&w->out[0], label) < 0)
      memset(in[k].data, 0, (size_t)(ms_numel(&in[k].info) * ms_dtype_size(in[k].info.dtype)));
  }
  must(ms_op_row_of(node->op)->infer(&part, infos, made));
  for (int o = 0; o < node->outputs; o++) {
    out[o] =
        (operand){made[o], w->out[o].labels, interpreter_allocate(ms_numel(&made[o]) * ms_dtype_size(made[o].dtype))};
  }
  run_kernel(node, &part.attrs, in, out);
  for (int o = 0; o < node->outputs; o++) {
    if (w->axes.statistics >> o & 1) continue;
    if (axis_of(&w->out[o], label) < 0) {
      add_to_join(w, joined[o], &out[o], n, i);
      continue;
    }
    operand wanted = part_of(&w->out[o], label, n, i);
    assert_int_equal(ms_numel(&wanted.info), ms_numel(&out[o].info));
    for (int64_t k = 0; k < ms_numel(&wanted.info); k++) expect_near(w, label, get(&out[o], k), get(&wanted, k));
    free(wanted.data);
  }
  for (int k = 0; k < node->inputs; k++) free(in[k].data);
  for (int o = 0; o < node->outputs; o++) free(out[o].data);
}

static void divide(const whole_node *w, int label, int64_t n) {
  double *joined[MS_MAX_OUTPUTS];
  for (int o = 0; o < w->node->outputs; o++) {
    joined[o] = calloc((size_t)ms_numel(&w->out[o].info) + 1, sizeof **joined);
    assert_non_null(joined[o]);
  }
  for (int64_t i = 0; i < n; i++) run_part(w, label, n, i, joined);
  for (int o = 0; o < w->node->outputs; o++) {
    const int is_joined = !(w->axes.statistics >> o & 1) && axis_of(&w->out[o], label) < 0;
    for (int64_t k = 0; is_joined && k < ms_numel(&w->out[o].info); k++)
      expect_near(w, label, joined[o][k], get(&w->out[o], k));
    free(joined[o]);
  }
}

/* ---- all rows --------------------------------------------------------------------------------------------------- */

static int divided[MS_OP_COUNT]; /* the number of labels of the op that were divided */

static void try_node(const interpreter *it, const ms_node *node, const char *what) {
  whole_node w = {.node = node, .what = what};
  ms_value_info in[MS_MAX_INPUTS], out[MS_MAX_OUTPUTS];
  const ms_value *values = it->graph->values;
  for (int i = 0; i < node->inputs; i++) in[i] = values[node->in[i]].info;
  for (int o = 0; o < node->outputs; o++) out[o] = values[node->out[o]].info;
  must(ms_axes_of(node, in, out, &w.axes));
  for (int i = 0; i < node->inputs; i++) w.in[i] = (operand){in[i], w.axes.in[i], it->data[node->in[i]]};
  for (int o = 0; o < node->outputs; o++) w.out[o] = (operand){out[o], w.axes.out[o], it->data[node->out[o]]};
  for (int label = 0; label < w.axes.labels; label++)
    for (int64_t n = 2; n <= MAX_PARTS && (!w.axes.label[label].whole || label == w.axes.placed); n++)
      if (w.axes.label[label].parts % n == 0) divide(&w, label, n), divided[node->op]++;
}

static void try_case(const gradient_case *c) {
  fixture f;
  interpreter it;
  char what[96];
  fixture_start(&f);
  c->build(&f, c->op, MS_F32);
  interpreter_start(&it, f.graph);
  for (int v = 0; v < f.graph->n_values; v++) {
    const ms_value *value = &f.graph->values[v];
    if (value->kind == MS_VALUE_PARAM) interpreter_draw(&it, v, 10 + (uint64_t)v, c->domain == POSITIVE ? 6 : 0, 1);
    if (value->kind == MS_VALUE_INPUT) interpreter_draw_integers(&it, v, 2, value->info.dtype == MS_U8 ? 2 : 5);
  }
  interpreter_run(&it, 0, f.graph->n_nodes);
  for (int n = 0; n < f.graph->n_nodes; n++) {
    const ms_op_row *row = ms_op_row_of(f.graph->nodes[n].op);
    snprintf(what, sizeof what, "%s (case %s%s)", row->name, ms_op_row_of(c->op)->name, c->variant);
    if (ms_op_has_axes(f.graph->nodes[n].op)) try_node(&it, &f.graph->nodes[n], what);
  }
  interpreter_end(&it);
  fixture_end(&f);
}

static void T3_every_op_is_computed_in_parts_along_its_axes(void **state) {
  (void)state;
  for (int c = 0; c < N_CASES; c++) try_case(&cases[c]);
  for (int c = 0; c < N_MORE; c++) try_case(&more[c]);
  /* A mean over targets depends on all of them, as a scale does on all elements, and an order on all choices. */
  for (int op = 0; op < MS_OP_COUNT; op++)
    if (ms_op_has_axes(op) && op != MS_OP_cross_entropy && op != MS_OP_matmul_f8 && op != MS_OP_expert_order &&
        !divided[op])
      fail_msg("no case divides %s", ms_op_row_of(op)->name);
}

/* ---- what rows say ---------------------------------------------------------------------------------------------- */

static ms_axes axes_of_case(fixture *f, int (*build)(fixture *, int, int), int op) {
  ms_value_info in[MS_MAX_INPUTS], out[MS_MAX_OUTPUTS];
  ms_axes axes;
  const int value = build(f, op, MS_F32);
  const ms_node *node = &f->graph->nodes[f->graph->values[value].node];
  for (int i = 0; i < node->inputs; i++) in[i] = f->graph->values[node->in[i]].info;
  for (int o = 0; o < node->outputs; o++) out[o] = f->graph->values[node->out[o]].info;
  must(ms_axes_of(node, in, out, &axes));
  return axes;
}

static void T3_heads_are_divided_by_those_of_the_keys(void **state) {
  fixture f;
  (void)state;
  fixture_start(&f);
  ms_axes axes = axes_of_case(&f, build_attention_grouped, MS_OP_attention);
  assert_int_equal(axes.in[0][2], axes.in[1][2]);
  assert_int_equal(axes.label[axes.in[0][2]].parts, 2); /* 4 heads, 2 of keys */
  assert_true(axes.label[axes.in[0][1]].whole);         /* positions */
  axes = axes_of_case(&f, build_one_key_head, MS_OP_attention);
  assert_int_equal(axes.in[1][2], MS_AXIS_REPEATED);
  assert_int_equal(axes.label[axes.in[0][2]].parts, 4);
  fixture_end(&f);
}

static void T3_a_reshape_divides_the_first_axis_of_a_run(void **state) {
  fixture f;
  (void)state;
  fixture_start(&f);
  ms_axes axes = axes_of_case(&f, build_unfolded, MS_OP_reshape); /* [12,6] to [4,3,1,6] */
  assert_int_equal(axes.in[0][0], axes.out[0][0]);
  assert_int_equal(axes.label[axes.in[0][0]].parts, 4);
  assert_int_equal(axes.out[0][1], MS_AXIS_REPEATED);
  assert_int_equal(axes.in[0][1], axes.out[0][3]);
  fixture_end(&f);
}

static void T3_linearity_depends_on_attributes(void **state) {
  fixture f;
  (void)state;
  fixture_start(&f);
  assert_int_equal(axes_of_case(&f, build_scale, MS_OP_scale).linear, 0); /* beta is 0.25 */
  assert_int_equal(axes_of_case(&f, build_matmul_bias, MS_OP_matmul).linear, 3);
  assert_int_equal(axes_of_case(&f, build_matmul_bias, MS_OP_matmul).added, 4);
  ms_axes axes = axes_of_case(&f, build_matmul_relu, MS_OP_matmul);
  assert_int_equal(axes.linear, 0);
  assert_true(axes.label[axes.in[0][1]].whole);
  assert_true(axes_of_case(&f, build_binary, MS_OP_add).linear_together);
  assert_int_equal(axes_of_case(&f, build_folded, MS_OP_reshape).linear, 1);
  assert_int_equal(axes_of_case(&f, build_middle, MS_OP_max).join, MS_JOIN_MAX);
  fixture_end(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(T3_every_op_is_computed_in_parts_along_its_axes),
      TEST(T3_heads_are_divided_by_those_of_the_keys),
      TEST(T3_a_reshape_divides_the_first_axis_of_a_run),
      TEST(T3_linearity_depends_on_attributes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
