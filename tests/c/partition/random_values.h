/* random_values.h - the leaves of a random graph that is to be divided: parameters and inputs with random shapes and
 * random placements on every dimension of a trial, and choices among the values made so far.
 */
#ifndef MS_TESTS_RANDOM_VALUES_H
#define MS_TESTS_RANDOM_VALUES_H

#include "tests/c/partition/partition_trial.h"

enum { DRAW_POOL = 24, DRAW_INPUTS = 5, DRAW_INTEGERS = 11 /* limit of integer inputs */ };

typedef struct draw {
  trial *t;
  uint64_t seed, count;
  int pool[DRAW_POOL], values; /* of the fixture's graph, all f32; the first ones are its float inputs */
  int tokens, targets;         /* i32, of the first two axes of the first input */
  ms_placed_input inputs[TRIAL_DIMS][DRAW_INPUTS];
  unsigned char splits[TRIAL_DIMS][FIXTURE_PARAMS];
} draw;

static inline int below(draw *d, int n) {
  uint32_t words[4];
  ms_philox4x32(d->seed, 17, d->count++, words);
  return (int)(words[0] % (uint32_t)n);
}

static inline const ms_value_info *shape(const draw *d, int v) { return &d->t->f.graph->values[v].info; }

static inline int64_t last_size(const draw *d, int v) { return shape(d, v)->dims[shape(d, v)->ndim - 1]; }

/* ---- leaves ----------------------------------------------------------------------------------------------------- */

/* None, or a shard of some axis, in blocks sometimes. */
static inline ms_placement some_placement(draw *d, const ms_value_info *x) {
  if (!x->ndim || below(d, 5) < 2) return (ms_placement){0};
  return ms_shard(below(d, x->ndim), below(d, 6) ? 1 : 2);
}

/* 1 when a value can be divided so; sometimes 1 anyway, to be refused. */
static inline int fits(draw *d, const ms_value_info *x, ms_placement p, int64_t ranks) {
  return p.kind != MS_SHARD || x->dims[p.axis] % (p.outer * ranks) == 0 || below(d, 20) == 0;
}

static inline int some_param(draw *d, int ndim, const int64_t *dims) {
  fixture *f = &d->t->f;
  const int p = f->params, v = param(f, MS_F32, ndim, dims);
  ms_value_info now = f->param[p].info;
  f->param[p].frozen = below(d, 8) == 0;
  for (int k = 0; k < d->t->dims; k++) {
    ms_placement placement = some_placement(d, &now);
    if (!fits(d, &now, placement, d->t->spec[k].ranks)) placement = (ms_placement){0};
    d->t->params[k][p] = placement;
    d->splits[k][p] = below(d, 6) == 0;
    d->t->spec[k].splits = d->splits[k];
    now = ms_placement_local(&now, placement, d->t->spec[k].ranks);
  }
  return v;
}

/* As along a context dimension, folded and given whole, or in another way. */
static inline ms_placed_input some_input_placement(draw *d, const char *name, const ms_value_info *x, int divides) {
  if (divides && x->ndim > 1 && below(d, 3)) return (ms_placed_input){name, ms_shard_folded(1), below(d, 4) > 0};
  ms_placement placement = some_placement(d, x);
  if (placement.outer == 2) placement.folded = below(d, 2);
  return (ms_placed_input){name, placement, below(d, 3) == 0};
}

static inline int some_input(draw *d, const char *name, int dtype, int ndim, const int64_t *dims) {
  const int v = input(&d->t->f, name, dtype, ndim, dims);
  ms_value_info now = *shape(d, v);
  for (int k = 0; k < d->t->dims; k++) {
    ms_partition_spec *spec = &d->t->spec[k];
    const ms_placed_input placed = some_input_placement(d, name, &now, spec->divides_samples);
    if (placed.placement.kind != MS_SHARD || !fits(d, &now, placed.placement, spec->ranks)) continue;
    d->inputs[k][spec->n_inputs++] = placed;
    spec->inputs = d->inputs[k];
    if (!placed.given_whole) now = ms_placement_local(&now, placed.placement, spec->ranks);
  }
  return v;
}

/* ---- choices ---------------------------------------------------------------------------------------------------- */

/* The latest ones more often. */
static inline int any(draw *d) {
  const int recent = d->values > 3 && below(d, 2) ? d->values - 3 : 0;
  return d->pool[recent + below(d, d->values - recent)];
}

static inline int with_axes(draw *d, int at_least) {
  int v = any(d);
  for (int k = 0; k < 20 && shape(d, v)->ndim < at_least; k++) v = any(d);
  return v;
}

/* A value of x's shape, another one if there is; -1: none was found. */
static inline int any_like(draw *d, int x) {
  for (int k = 0; k < 12; k++) {
    const int v = any(d);
    if (ms_same_shape(shape(d, v), shape(d, x)) && (v != x || k > 8)) return v;
  }
  return -1;
}

#endif
