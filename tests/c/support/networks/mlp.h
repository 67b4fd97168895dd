/* mlp.h - a small residual network through the public header: n blocks and a root, as units. For tests of plans and
 * runs.
 *
 *   h = x in'          x f32 [batch, inputs], in.weight [width, inputs]
 *   h = h + relu(h fc1' + b1) fc2' + b2     for each block; fc1.weight [hidden, width], fc2.weight [width, hidden]
 *   loss = cross_entropy(h out', y)         out.weight [classes, width], y i32 [batch]
 *
 * A tensor dimension divides `hidden`.
 */
#ifndef MS_TESTS_MLP_H
#define MS_TESTS_MLP_H

#include "comm/group/world.h"
#include "shard/model.h"
#include "tests/c/support/check.h"

#include <stdio.h>

typedef struct mlp_config {
  int blocks, batch, inputs, width, hidden, classes;
  int world, rank, replicate, shard; /* mesh replicate x shard */
  int tensor;                        /* above 1: mesh replicate x shard x tensor */
  int sequence_parallel;
  ms_unit_config block, root;
  int frozen_block;   /* index, or -1 */
  int frozen_weights; /* 1: fc1.weight of every block is frozen, among trainable parameters */
  int f32_biases;     /* 1: biases are read in f32 whatever their unit's dtype */
  int recompute;      /* 1: every block is made again in backward */
  int private_logits; /* 1: they are no output and are not read after the step */
  int muon;           /* 1: the weights of blocks take Muon */
  double balance;     /* above 0: the second bias of every block is balanced (ms_param_config.balance) */
} mlp_config;

typedef struct mlp {
  ms_mesh *mesh;
  ms_model *model;
  ms_graph *graph;
} mlp;

static inline mlp_config mlp_default(int replicate, int shard, int rank) {
  mlp_config c = {.blocks = 3,
                  .batch = 8,
                  .inputs = 12,
                  .width = 16,
                  .hidden = 32,
                  .classes = 10,
                  .world = replicate * shard,
                  .rank = rank,
                  .replicate = replicate,
                  .shard = shard,
                  .tensor = 1,
                  .frozen_block = -1};
  must(ms_config_default("ms_unit_config", &c.block, sizeof c.block));
  c.root = c.block;
  c.root.root = 1;
  return c;
}

/* The dtype of the moments of the plan's optimizer, which has some. */
static inline void set_moments(ms_plan_config *config, int dtype) {
  if (config->optimizer == MS_OPT_ADAMW) config->adamw.moments = dtype;
  if (config->optimizer == MS_OPT_ADAM) config->adam.moments = dtype;
  if (config->optimizer == MS_OPT_LION) config->lion.moments = dtype;
}

/* dtype: that it is read in, or -1; muon: 1: it takes Muon. */
static inline ms_param_config mlp_param_config(int frozen, int dtype, int muon) {
  ms_param_config config;
  must(ms_config_default("ms_param_config", &config, sizeof config));
  config.param_dtype = dtype;
  config.init_b = 0.2;
  config.frozen = frozen;
  config.optimizer = muon ? MS_OPT_MUON : MS_OPT_NONE;
  return config;
}

static inline int mlp_param_with(ms_model *model, int unit, const char *name, int rows, int columns,
                                 ms_param_config config) {
  config.group.weight_decay = columns ? 0.1 : 0;
  config.tensor_axis = strstr(name, "fc1") ? 0 : strstr(name, "fc2.weight") ? 1 : -1;
  int64_t dims[2] = {rows, columns};
  int param;
  must(ms_model_add_param(model, unit, name, columns ? 2 : 1, dims, &config, &param));
  return param;
}

static inline int mlp_param(ms_model *model, int unit, const char *name, int rows, int columns) {
  return mlp_param_with(model, unit, name, rows, columns, mlp_param_config(0, -1, 0));
}

static inline int mlp_value(ms_graph *graph, int param) {
  int value;
  must(ms_graph_param(graph, param, &value));
  return value;
}

static inline int mlp_op(ms_graph *graph, const char *op, int n, const int *in, const char *attrs) {
  int out[MS_MAX_OUTPUTS];
  must(ms_graph_op(graph, op, n, in, attrs, out));
  return out[0];
}

/* y = x w' (+ b) */
static inline int mlp_linear(ms_graph *graph, int x, int weight, int bias) {
  int in[3] = {x, mlp_value(graph, weight), bias >= 0 ? mlp_value(graph, bias) : -1};
  return mlp_op(graph, "matmul", bias >= 0 ? 3 : 2, in, "trans_b=1");
}

static inline void mlp_trace(mlp *m, const mlp_config *c, int first_block_param, int in_weight, int out_weight) {
  int x, y, h;
  must(ms_graph_new(m->model, &m->graph));
  must(ms_graph_input(m->graph, "x", c->root.param_dtype, 2, (int64_t[]){c->batch, c->inputs}, -1, &x));
  must(ms_graph_input(m->graph, "y", MS_I32, 1, (int64_t[]){c->batch}, -1, &y));
  h = mlp_linear(m->graph, x, in_weight, -1);
  for (int b = 0; b < c->blocks; b++) {
    char scope[32];
    int p = first_block_param + 4 * b;
    snprintf(scope, sizeof scope, "layers.%d", b);
    must(ms_graph_set_scope(m->graph, scope));
    if (c->recompute) must(ms_graph_set_recompute(m->graph, b + 1, NULL));
    int inner = mlp_op(m->graph, "relu", 1, (int[]){mlp_linear(m->graph, h, p, p + 1)}, NULL);
    h = mlp_op(m->graph, "add", 2, (int[]){h, mlp_linear(m->graph, inner, p + 2, p + 3)}, NULL);
  }
  must(ms_graph_set_scope(m->graph, "head"));
  if (c->recompute) must(ms_graph_set_recompute(m->graph, 0, NULL));
  int logits = mlp_linear(m->graph, h, out_weight, -1);
  if (!c->private_logits) must(ms_graph_output(m->graph, "logits", logits));
  must(ms_graph_set_loss(m->graph, mlp_op(m->graph, "cross_entropy", 2, (int[]){logits, y}, NULL), -1));
}

static inline ms_mesh *mlp_mesh(const mlp_config *c) {
  static const char *const names[] = {"replicate", "shard", "tensor"};
  const int sizes[] = {c->replicate, c->shard, c->tensor};
  ms_mesh *mesh;
  must(ms_mesh_new(MS_DEVICE_CPU, c->tensor > 1 ? 3 : 2, sizes, names, c->world, 0, NULL, &mesh));
  return mesh;
}

/* replicate, shard: dimensions of the mesh, or -1 */
static inline void mlp_shard(ms_model *model, const ms_mesh *mesh, int rank, int replicate, int shard) {
  ms_model_dims dims;
  must(ms_config_default("ms_model_dims", &dims, sizeof dims));
  dims.replicate = replicate;
  dims.shard = shard;
  must(ms_model_shard(model, mesh, rank, &dims));
}

static inline mlp mlp_make(const mlp_config *c) {
  mlp m = {0};
  int root, unit, in_weight, out_weight;
  ms_model_dims dims;
  m.mesh = mlp_mesh(c);
  must(ms_model_new(1234, &m.model));
  must(ms_model_add_unit(m.model, "root", &c->root, &root));
  in_weight = mlp_param(m.model, root, "in.weight", c->width, c->inputs);
  out_weight = mlp_param(m.model, root, "out.weight", c->classes, c->width);
  for (int b = 0; b < c->blocks; b++) {
    char name[64];
    int frozen = b == c->frozen_block, bias = c->f32_biases ? MS_F32 : -1;
    snprintf(name, sizeof name, "layers.%d", b);
    must(ms_model_add_unit(m.model, name, &c->block, &unit));
    snprintf(name, sizeof name, "layers.%d.fc1.weight", b);
    mlp_param_with(m.model, unit, name, c->hidden, c->width,
                   mlp_param_config(frozen || c->frozen_weights, -1, c->muon));
    snprintf(name, sizeof name, "layers.%d.fc1.bias", b);
    mlp_param_with(m.model, unit, name, c->hidden, 0, mlp_param_config(frozen, bias, 0));
    snprintf(name, sizeof name, "layers.%d.fc2.weight", b);
    mlp_param_with(m.model, unit, name, c->width, c->hidden, mlp_param_config(frozen, -1, c->muon));
    snprintf(name, sizeof name, "layers.%d.fc2.bias", b);
    ms_param_config last = mlp_param_config(frozen, bias, 0);
    last.balance = frozen ? 0 : c->balance;
    mlp_param_with(m.model, unit, name, c->width, 0, last);
  }
  must(ms_config_default("ms_model_dims", &dims, sizeof dims));
  dims.replicate = 0;
  dims.shard = 1;
  dims.tensor = c->tensor > 1 ? 2 : -1;
  dims.sequence_parallel = c->sequence_parallel;
  must(ms_model_shard(m.model, m.mesh, c->rank, &dims));
  mlp_trace(&m, c, out_weight + 1, in_weight, out_weight);
  return m;
}

static inline void mlp_free(mlp *m) {
  ms_free(m->graph);
  ms_free(m->model);
  ms_free(m->mesh);
}

#endif
