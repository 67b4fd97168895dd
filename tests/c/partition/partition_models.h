/* partition_models.h - the language models of graph_models.h with the placements of tensor parallelism: the first
 * product of each branch divided by columns of its result, the second by columns of its input. GPT's table, which is
 * also its head, is divided by rows; Llama's table is whole and its head divided.
 */
#ifndef MS_TESTS_PARTITION_MODELS_H
#define MS_TESTS_PARTITION_MODELS_H

#include "tests/c/graph/graph_models.h"
#include "tests/c/partition/partition_trial.h"

typedef struct divided_model {
  const char *what;
  void (*build)(fixture *, const model_shape *);
  void (*place)(ms_placement *, const model_shape *, const fixture *);
} divided_model;

/* Parameters in front of the blocks, and those of a block. */
enum { GPT_FIRST = 2, GPT_BLOCK = 12, LLAMA_FIRST = 1, LLAMA_BLOCK = 9 };

static inline void place_gpt(ms_placement *p, const model_shape *m, const fixture *f) {
  (void)f;
  p[0] = ms_shard(0, 1); /* the rows of the table, which are the columns of the head */
  for (int layer = 0; layer < m->layers; layer++) {
    ms_placement *block = p + GPT_FIRST + layer * GPT_BLOCK;
    block[2] = block[3] = ms_shard(0, 3); /* q, k and v, one below the other */
    block[8] = block[9] = ms_shard(0, 1);
    block[4] = block[10] = ms_shard(1, 1);
  }
}

static inline void place_llama(ms_placement *p, const model_shape *m, const fixture *f) {
  for (int layer = 0; layer < m->layers; layer++) {
    ms_placement *block = p + LLAMA_FIRST + layer * LLAMA_BLOCK;
    block[1] = block[2] = block[3] = block[6] = block[7] = ms_shard(0, 1);
    block[4] = block[8] = ms_shard(1, 1);
  }
  for (int k = f->params - 2; k < f->params; k++) /* the head, in either order with the last norm */
    if (f->param[k].info.ndim == 2) p[k] = ms_shard(0, 1);
}

static const divided_model divided_gpt = {"GPT", gpt_model, place_gpt};
static const divided_model divided_llama = {"Llama", llama_model, place_llama};

/* Every divided axis has 2 or more indices on each rank. */
static inline model_shape divided_shape(int ranks, int kv_heads) {
  return (model_shape){.batch = 2,
                       .seq = 12,
                       .vocab = 5 * ranks,
                       .dim = 8 * ranks,
                       .heads = 2 * ranks,
                       .kv_heads = kv_heads,
                       .hidden = 6 * ranks,
                       .layers = 2};
}

static inline void divided_start(trial *t, const divided_model *model, const model_shape *m, int ranks, int sequence) {
  trial_start(t);
  model->build(&t->f, m);
  trial_add_dimension(t, "tensor", ranks)->sequence_parallel = sequence;
  model->place(t->params[0], m, &t->f);
}

#endif
