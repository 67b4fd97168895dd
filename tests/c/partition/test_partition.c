/* test_partition.c - models and modules divided over ranks compute the loss and gradients of one rank. */
#include "tests/c/graph/graph_models.h"
#include "tests/c/partition/partition_models.h"
#include "tests/c/partition/partition_trial.h"

static const double close = 1e-5;

/* ---- language models -------------------------------------------------------------------------------------------- */

static void try_model(const divided_model *model, int grouped, double dropout, int dtype) {
  for (int ranks = 2; ranks <= 4; ranks++)
    for (int sequence = 0; sequence < 2; sequence++) {
      trial t;
      char what[64];
      model_shape m = divided_shape(ranks, grouped ? ranks : 2 * ranks);
      m.dropout = dropout, m.dtype = dtype;
      snprintf(what, sizeof what, "%s over %d ranks%s", model->what, ranks, sequence ? ", sequence parallel" : "");
      divided_start(&t, model, &m, ranks, sequence);
      must(trial_partition(&t));
      trial_run(&t, (int)m.vocab);
      trial_compare(&t, dtype == MS_BF16 ? 0.08 : close, what);
      trial_end(&t);
    }
}

static void T11_gpt_divided_computes_the_same(void **state) {
  (void)state;
  try_model(&divided_gpt, 0, 0, MS_F32);
}

static void T11_llama_divided_computes_the_same(void **state) {
  (void)state;
  try_model(&divided_llama, 0, 0, MS_F32);
}

static void T11_grouped_queries_are_divided_with_their_keys(void **state) {
  (void)state;
  try_model(&divided_llama, 1, 0, MS_F32);
}

/* Masks are those of one rank, whatever is divided around them. */
static void T11_dropout_drops_the_same_elements(void **state) {
  (void)state;
  try_model(&divided_gpt, 0, 0.2, MS_F32);
}

/* What ranks sum and gather is rounded to bf16. */
static void T11_bf16_models_are_divided(void **state) {
  (void)state;
  try_model(&divided_gpt, 0, 0, MS_BF16);
  try_model(&divided_llama, 0, 0, MS_BF16);
}

/* ---- modules ---------------------------------------------------------------------------------------------------- */

enum { BATCH = 3, SEQ = 12, DIM = 24, HEADS = 12, HIDDEN = 36 };

/* A trainable start: what follows has a gradient with respect to its input. */
static int stream(trial *t) {
  const int x = input(&t->f, "x", MS_F32, SHAPE(BATCH, SEQ, DIM));
  return op2(&t->f, MS_OP_mul, x, param(&t->f, MS_F32, SHAPE(DIM)), NULL);
}

static void finish(trial *t, int y) {
  const int square = op2(&t->f, MS_OP_mul, y, op1(&t->f, MS_OP_tanh, y, NULL), NULL);
  must(ms_graph_set_loss(t->f.graph, op1(&t->f, MS_OP_mean, square, ATTRS(.reduce = {.all = 1})), -1));
}

/* Linear layers with the weight [to,from] divided by columns of the result, or by those of the input. */
static int columns(trial *t, int x, int64_t from, int64_t to) {
  t->params[0][t->f.params] = t->params[0][t->f.params + 1] = ms_shard(0, 1);
  const int w = param(&t->f, MS_F32, SHAPE(to, from));
  return linear(&t->f, x, w, param(&t->f, MS_F32, SHAPE(to)));
}

static int rows(trial *t, int x, int64_t from, int64_t to) {
  t->params[0][t->f.params] = ms_shard(1, 1);
  const int w = param(&t->f, MS_F32, SHAPE(to, from));
  return linear(&t->f, x, w, param(&t->f, MS_F32, SHAPE(to)));
}

static void build_mlp(trial *t) {
  const int h = op1(&t->f, MS_OP_gelu, columns(t, stream(t), DIM, HIDDEN), NULL);
  finish(t, rows(t, h, HIDDEN, DIM));
}

static void build_fused_mlp(trial *t) {
  const int x = stream(t);
  for (int p = 0; p < 2; p++) t->params[0][t->f.params + p] = ms_shard(0, 1);
  int w = param(&t->f, MS_F32, SHAPE(HIDDEN, DIM)), bias = param(&t->f, MS_F32, SHAPE(HIDDEN));
  const int h = op3(&t->f, MS_OP_matmul, x, w, bias, ATTRS(.product = {.trans_b = 1, .activation = MS_ACT_RELU}));
  t->params[0][t->f.params] = ms_shard(0, 1);
  w = param(&t->f, MS_F32, SHAPE(HIDDEN, DIM)), bias = param(&t->f, MS_F32, SHAPE(DIM));
  finish(t, op3(&t->f, MS_OP_matmul, h, w, bias, NULL));
}

static void build_swiglu(trial *t) {
  const int x = op2(&t->f, MS_OP_rms_norm, stream(t), param(&t->f, MS_F32, SHAPE(DIM)), NULL);
  const int gate = columns(t, x, DIM, HIDDEN), up = columns(t, x, DIM, HIDDEN);
  const int y = rows(t, op2(&t->f, MS_OP_swiglu, gate, up, NULL), HIDDEN, DIM);
  finish(t, op2(&t->f, MS_OP_add, x, y, NULL));
}

/* softmax(q k') v from products; q and k are normalised by head, with one gain for all heads. */
static void build_attention_by_hand(trial *t) {
  fixture *f = &t->f;
  const int x = stream(t);
  int part[3];
  for (int k = 0; k < 3; k++) {
    part[k] = reshape_to(f, columns(t, x, DIM, DIM), SHAPE(BATCH, SEQ, HEADS, -1));
    if (k < 2) part[k] = op2(f, MS_OP_rms_norm, part[k], param(f, MS_F32, SHAPE(DIM / HEADS)), NULL);
    part[k] = op1(f, MS_OP_transpose, part[k], ATTRS(.permutation = {.p = {0, 2, 1, 3, 4, 5}}));
  }
  int scores = op2(f, MS_OP_matmul, part[0], part[1], ATTRS(.product = {.trans_b = 1}));
  scores = op1(f, MS_OP_softmax, op1(f, MS_OP_scale, scores, ATTRS(.scale = {.alpha = 0.3})), NULL);
  int y = op2(f, MS_OP_matmul, scores, part[2], NULL);
  y = reshape_to(f, op1(f, MS_OP_transpose, y, ATTRS(.permutation = {.p = {0, 2, 1, 3, 4, 5}})), SHAPE(BATCH, SEQ, -1));
  finish(t, op2(f, MS_OP_add, x, rows(t, y, DIM, DIM), NULL));
}

/* The same weights twice, and with weights that are made of parameters. */
static void build_shared(trial *t) {
  fixture *f = &t->f;
  int x = stream(t);
  const int gain = param(f, MS_F32, SHAPE(DIM)), scaled = op1(f, MS_OP_tanh, gain, NULL);
  t->params[0][f->params] = ms_shard(0, 1);
  const int up = param(f, MS_F32, SHAPE(HIDDEN, DIM));
  t->params[0][f->params] = ms_shard(0, 1);
  const int down =
      op1(f, MS_OP_transpose, param(f, MS_F32, SHAPE(HIDDEN, DIM)), ATTRS(.permutation = {.p = {1, 0, 2, 3, 4, 5}}));
  for (int k = 0; k < 2; k++) {
    const int h = linear(f, op2(f, MS_OP_rms_norm, x, scaled, NULL), up, -1);
    x = op2(f, MS_OP_add, x, linear(f, op1(f, MS_OP_silu, h, NULL), down, -1), NULL);
  }
  finish(t, x);
}

/* Two branches whose sums are added before anything else reads them. */
static void build_branches(trial *t) {
  const int x = op2(&t->f, MS_OP_rms_norm, stream(t), param(&t->f, MS_F32, SHAPE(DIM)), NULL);
  const int a = rows(t, op1(&t->f, MS_OP_tanh, columns(t, x, DIM, HIDDEN), NULL), HIDDEN, DIM);
  const int b = rows(t, op1(&t->f, MS_OP_silu, columns(t, x, DIM, HIDDEN), NULL), HIDDEN, DIM);
  finish(t, op2(&t->f, MS_OP_add, x, op2(&t->f, MS_OP_add, a, b, NULL), NULL));
}

/* The loss averages a divided axis, one that others read whole. */
static void build_mean(trial *t) {
  fixture *f = &t->f;
  const int y = op1(f, MS_OP_tanh, columns(t, stream(t), DIM, HIDDEN), NULL);
  const int mean = op1(f, MS_OP_mean, y, ATTRS(.reduce = {.axis = 2, .keepdim = 1}));
  const int apart = op2(f, MS_OP_sub, y, mean, NULL),
            most = op1(f, MS_OP_max, y, ATTRS(.reduce = {.axis = 2, .keepdim = 1}));
  finish(t, op2(f, MS_OP_add, apart, most, NULL));
}

static void build_frozen(trial *t) {
  const int first = t->f.params + 1;
  int h = op1(&t->f, MS_OP_tanh, columns(t, stream(t), DIM, HIDDEN), NULL);
  h = rows(t, h, HIDDEN, DIM);
  for (int p = first; p < t->f.params; p++) t->f.param[p].frozen = 1;
  finish(t, h);
}

/* [B,T] folded to [B T] and back, as modules do for tokens. */
static void build_folded(trial *t) {
  const int x = op2(&t->f, MS_OP_rms_norm, stream(t), param(&t->f, MS_F32, SHAPE(DIM)), NULL);
  int h = reshape_to(&t->f, x, SHAPE(BATCH * SEQ, DIM));
  h = rows(t, op1(&t->f, MS_OP_gelu, columns(t, h, DIM, HIDDEN), NULL), HIDDEN, DIM);
  finish(t, op2(&t->f, MS_OP_add, x, reshape_to(&t->f, h, SHAPE(BATCH, SEQ, DIM)), NULL));
}

/* Attention of 12 heads of queries on 2 of keys and values, whose weights are not divided: ranks share a head. */
static void build_few_keys(trial *t) {
  fixture *f = &t->f;
  const int x = op2(f, MS_OP_rms_norm, stream(t), param(f, MS_F32, SHAPE(DIM)), NULL);
  int part[3], out[MS_MAX_OUTPUTS];
  part[0] = reshape_to(f, columns(t, x, DIM, DIM), SHAPE(BATCH, SEQ, HEADS, -1));
  for (int k = 1; k < 3; k++) {
    const int w = param(f, MS_F32, SHAPE(2 * DIM / HEADS, DIM));
    part[k] = reshape_to(f, linear(f, x, w, -1), SHAPE(BATCH, SEQ, 2, -1));
  }
  apply(f, MS_OP_attention, 3, part, NULL, out);
  const int y = rows(t, reshape_to(f, out[0], SHAPE(BATCH, SEQ, -1)), DIM, DIM);
  finish(t, op2(f, MS_OP_add, x, y, NULL));
}

/* A loss with a weight, which is a sum over a divided axis. */
static void build_weighted(trial *t) {
  const int x = stream(t), h = op1(&t->f, MS_OP_sigmoid, columns(t, x, DIM, HIDDEN), NULL);
  const int weight =
      op1(&t->f, MS_OP_scale, sum_all(&t->f, op1(&t->f, MS_OP_abs, h, NULL)), ATTRS(.scale = {.alpha = 0.01}));
  finish(t, rows(t, h, HIDDEN, DIM));
  must(ms_graph_set_loss(t->f.graph, t->f.graph->loss, weight));
}

/* Hints along both dimensions that a trial can have: hidden features whole, then the sum in parts of another axis. */
static void build_hints(trial *t) {
  fixture *f = &t->f;
  int h = op1(f, MS_OP_gelu, columns(t, stream(t), DIM, HIDDEN), NULL);
  for (int dim = 2; dim <= 3; dim++) h = op1(f, MS_OP_redistribute, h, ATTRS(.across = {.dim = dim, .along = -1}));
  int y = rows(t, op1(f, MS_OP_tanh, h, NULL), HIDDEN, DIM);
  for (int dim = 2; dim <= 3; dim++) y = op1(f, MS_OP_redistribute, y, ATTRS(.across = {.dim = dim, .along = 2}));
  finish(t, y);
}

/* Rows of all sentences, which sequence parallelism divides where 2 or 4 ranks cannot divide the sentences. */
static void build_flat_rows(trial *t) {
  fixture *f = &t->f;
  const int x = stream(t), flat = reshape_to(f, x, SHAPE(BATCH * SEQ, DIM));
  const int h = op1(f, MS_OP_gelu, columns(t, flat, DIM, HIDDEN), NULL);
  const int y = op1(f, MS_OP_tanh, rows(t, h, HIDDEN, DIM), NULL);
  finish(t, op2(f, MS_OP_add, x, reshape_to(f, y, SHAPE(BATCH, SEQ, DIM)), NULL));
}

typedef struct module_case {
  const char *what;
  void (*build)(trial *);
} module_case;

static const module_case modules[] = {
    {"MLP", build_mlp},
    {"MLP with fused bias and relu", build_fused_mlp},
    {"SwiGLU", build_swiglu},
    {"attention by hand", build_attention_by_hand},
    {"shared block", build_shared},
    {"parallel branches", build_branches},
    {"mean", build_mean},
    {"frozen MLP", build_frozen},
    {"folded MLP", build_folded},
    {"weighted loss", build_weighted},
    {"hints", build_hints},
    {"flat rows", build_flat_rows},
};
enum { N_MODULES = sizeof modules / sizeof modules[0] };

/* Mode 0: as it is, 1: sequence parallel, 2: the input's positions divided, as along a context dimension, 3: folded. */
enum { MODES = 4 };

static void try_module(const module_case *c, int ranks, int mode) {
  static const ms_placed_input positions[] = {{"x", {MS_SHARD, 1, 1, 0}, 0}, {"x", {MS_SHARD, 1, 2, 1}, 0}};
  trial t;
  char what[96];
  snprintf(what, sizeof what, "%s over %d ranks, mode %d", c->what, ranks, mode);
  trial_start(&t);
  ms_partition_spec *spec = trial_add_dimension(&t, "tensor", ranks);
  spec->sequence_parallel = mode == 1;
  c->build(&t);
  if (mode >= 2) {
    spec->inputs = &positions[mode - 2], spec->n_inputs = 1, spec->divides_samples = 1;
    memset(t.params, 0, sizeof t.params);
  }
  must(trial_partition(&t));
  trial_run(&t, 2);
  trial_compare(&t, close, what);
  trial_end(&t);
}

/* 2 ranks have a head of keys each, and 4 share them. */
static void T11_ranks_share_heads_of_keys(void **state) {
  static const module_case few_keys = {"attention with 2 heads of keys", build_few_keys};
  (void)state;
  for (int ranks = 2; ranks <= 4; ranks += 2)
    for (int mode = 0; mode < MODES && (mode < 3 || SEQ % (2 * ranks) == 0); mode++) try_module(&few_keys, ranks, mode);
}

static void T11_modules_divided_compute_the_same(void **state) {
  (void)state;
  for (int c = 0; c < N_MODULES; c++)
    for (int ranks = 2; ranks <= 4; ranks++)
      for (int mode = 0; mode < MODES && (mode < 3 || SEQ % (2 * ranks) == 0); mode++)
        try_module(&modules[c], ranks, mode);
}

/* ---- two dimensions --------------------------------------------------------------------------------------------- */

/* The placements that a model was built with become those of the tensor dimension, inside a context dimension along
 * which positions are divided. Sequence parallelism then divides what is left of the same axis. */
static void try_inside_context(trial *t, const ms_placed_input *positions, int n, int ranks, const char *model) {
  char what[96];
  snprintf(what, sizeof what, "%s over context 2 x tensor %d", model, ranks);
  ms_partition_spec *context = &t->spec[0], *tensor = trial_add_dimension(t, "tensor", ranks);
  memcpy(t->params[1], t->params[0], sizeof t->params[0]);
  memset(t->params[0], 0, sizeof t->params[0]);
  context->sequence_parallel = 0, context->divides_samples = 1;
  context->inputs = positions, context->n_inputs = n;
  tensor->sequence_parallel = 1;
  must(trial_partition(t));
  trial_run(t, 8);
  trial_compare(t, close, what);
  trial_end(t);
}

/* Whole, as trainers give them to all ranks of a context dimension; plain and folded. */
static const ms_placed_input given_tokens[][2] = {
    {{"tokens", {MS_SHARD, 1, 1, 0}, 1}, {"targets", {MS_SHARD, 1, 1, 0}, 1}},
    {{"tokens", {MS_SHARD, 1, 2, 1}, 1}, {"targets", {MS_SHARD, 1, 2, 1}, 1}},
};

static void T11_two_dimensions_divide_one_after_the_other(void **state) {
  static const ms_placed_input x[] = {{"x", {MS_SHARD, 1, 1, 0}, 0}};
  static const divided_model *const models[] = {&divided_gpt, &divided_llama};
  trial t;
  (void)state;
  for (int ranks = 2; ranks <= 4; ranks++) {
    for (int k = 0; k < 4; k++) {
      model_shape m = divided_shape(ranks, 2 * ranks);
      m.dropout = 0.2;
      divided_start(&t, models[k / 2], &m, 2, 0);
      try_inside_context(&t, given_tokens[k % 2], 2, ranks, models[k / 2]->what);
    }
    for (int c = 0; c < N_MODULES; c++) {
      trial_start(&t);
      trial_add_dimension(&t, "context", 2);
      modules[c].build(&t);
      try_inside_context(&t, x, 1, ranks, modules[c].what);
    }
  }
}

/* A rank has a part of each sample, by its attention's queries, its dropout's elements and its positions. */
static void C1_positions_divided_compute_the_same(void **state) {
  static const divided_model *const models[] = {&divided_gpt, &divided_llama};
  (void)state;
  for (int ranks = 2; ranks <= 6; ranks++)
    for (int k = 0; k < 4; k++) {
      char what[64];
      trial t;
      model_shape m = divided_shape(4, 2);
      m.dropout = 0.2;
      if (m.seq % (ranks * (1 + k % 2))) continue;
      snprintf(what, sizeof what, "%s over context %d%s", models[k / 2]->what, ranks, k % 2 ? ", folded" : "");
      divided_start(&t, models[k / 2], &m, ranks, 0);
      memset(t.params[0], 0, sizeof t.params[0]);
      t.spec[0].inputs = given_tokens[k % 2], t.spec[0].n_inputs = 2, t.spec[0].divides_samples = 1;
      must(trial_partition(&t));
      trial_run(&t, (int)m.vocab);
      trial_compare(&t, close, what);
      trial_end(&t);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(T11_gpt_divided_computes_the_same),
      TEST(T11_llama_divided_computes_the_same),
      TEST(T11_grouped_queries_are_divided_with_their_keys),
      TEST(T11_dropout_drops_the_same_elements),
      TEST(T11_bf16_models_are_divided),
      TEST(T11_ranks_share_heads_of_keys),
      TEST(T11_modules_divided_compute_the_same),
      TEST(T11_two_dimensions_divide_one_after_the_other),
      TEST(C1_positions_divided_compute_the_same),
  };
  return cmocka_run_group_tests_name("partition", tests, NULL, NULL);
}
