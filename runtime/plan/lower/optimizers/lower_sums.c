/* lower_sums.c - updates whose programs sum vectors over the mesh, such as Adafactor's: all parameters of a program go
 * through each step together, so that a buffer of vectors, of all of them, is one all_reduce.
 *
 * Where several ranks have the same elements (replicas with copies of their own, ranks of a tensor dimension that does
 * not divide a parameter), the first one alone contributes its own, so all sums are over the whole mesh.
 */
#include <stdlib.h>

#include "plan/layout/replica_slices.h"
#include "plan/layout/state_layout.h"
#include "plan/lower/optimizers/update.h"

enum { UPDATE = MS_PHASE_UPDATE, MAX_BUFFERS = 4 };

/* A parameter that has a gradient in this step. */
typedef struct summed {
  ms_update_item item;
  ms_ref vector[MS_VECTORS];
} summed;

typedef struct program {
  ms_plan *plan;
  const ms_optimizer *by;
  summed *list; /* [n] */
  int n;
  int buffer[MAX_BUFFERS + 1];    /* from 1 */
  int64_t count[MAX_BUFFERS + 1]; /* elements; 0: there is none */
} program;

static int list_params(program *a) {
  const ms_plan *plan = a->plan;
  a->list = ms_calloc(plan->model->params, sizeof *a->list);
  if (!a->list) return MS_ENOMEM;
  for (int u = 0; u < plan->model->units; u++)
    for (int i = 0; i < plan->model->unit[u].params; i++) {
      const int param = plan->model->unit[u].order[i];
      if (plan->has_gradient[param] && ms_param_optimizer(&plan->config, &plan->model->param[param]) == a->by)
        a->list[a->n++].item = ms_update_item_of(plan, param);
    }
  return MS_OK;
}

/* ---- vectors ----------------------------------------------------------------------------------------------------- */

static int is_summed(const program *a, int buffer) {
  for (const ms_update_step *s = a->by->step; s->kind; s++)
    if (s->kind == MS_STEP_SUM && s->buffer == buffer) return 1;
  return 0;
}

static int64_t count_of(const program *a, const ms_update_vector *v, int i) {
  return v->count ? v->count(a->plan, a->list[i].item.param) : 1;
}

/* The vectors of a parameter in one buffer are one after the other, and parameters follow one another. */
static int place_vectors(program *a) {
  for (const ms_update_vector *v = a->by->vector; v->buffer; v++)
    for (int i = 0; i < a->n; i++) a->count[v->buffer] += count_of(a, v, i);
  for (int b = 1; b <= MAX_BUFFERS && a->count[b]; b++) {
    const int exchanged = is_summed(a, b);
    MS_TRY(ms_plan_buffer(a->plan, UPDATE, exchanged ? MS_ARENA_COMM : MS_ARENA_ACTIVATIONS,
                          exchanged ? MS_CAT_COMMUNICATION : MS_CAT_ACTIVATIONS, 4 * a->count[b], a->by->scope,
                          &a->buffer[b]));
  }
  int64_t at[MAX_BUFFERS + 1] = {0};
  for (int i = 0; i < a->n; i++) {
    ms_ref *place = a->list[i].vector;
    for (const ms_update_vector *v = a->by->vector; v->buffer; v++) {
      const int64_t n = count_of(a, v, i), offset = 4 * at[v->buffer];
      *place++ = v->count ? ms_ref_vector(a->buffer[v->buffer], offset, MS_F32, n)
                          : ms_ref_scalar(a->buffer[v->buffer], offset);
      at[v->buffer] += n;
    }
  }
  return MS_OK;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* 1 when this rank is the first of those that have its elements of a parameter. */
static int contributes(const ms_plan *plan, const ms_update_item *item) {
  const ms_model *model = plan->model;
  const ms_unit *unit = &model->unit[item->unit];
  return (ms_unit_is_sliced(model, unit, plan->layout->replicas) ||
          model->dim[MS_DIM_REPLICATE].place < plan->layout->replicas) &&
         ms_unit_counts_here(model, unit, plan->layout->replicas) &&
         (ms_param_is_divided(model, &model->param[item->param]) || model->dim[MS_DIM_TENSOR].place == 0);
}

/* Every rank has the kernels of what is exchanged, also of parameters of which it has nothing: so vectors have the same
 * place on all of them. Of elements that it does not have it takes no step. */
static int kernel(const program *a, const ms_update_step *step, const summed *x) {
  ms_stretch own = x->item.own;
  if (step->kind == MS_STEP_KERNEL && own.end <= own.begin) return MS_OK;
  if (step->kind == MS_STEP_CONTRIBUTE && !contributes(a->plan, &x->item)) own.end = own.begin;
  return ms_lower_update_kernel(a->plan, UPDATE, a->by, step, &x->item, own, x->vector);
}

static int sum_over_mesh(const program *a, int buffer) {
  const ms_ref all = ms_ref_vector(a->buffer[buffer], 0, MS_F32, a->count[buffer]);
  MS_TRY(ms_lower_totals(a->plan, UPDATE, all, 1));
  if (a->plan->model->dim[MS_DIM_TENSOR].size == 1) return MS_OK;
  const ms_plan_part part = {.count = a->count[buffer], .src.buffer = -1, .shared = all, .dst = all};
  return ms_plan_collective(a->plan, UPDATE, MS_STREAM_TENSOR, MS_COLL_ALL_REDUCE, MS_DIM_TENSOR, 0, -1, 1, &part);
}

static int lower(program *a) {
  MS_TRY(list_params(a));
  if (!a->n) return MS_OK;
  MS_TRY(place_vectors(a));
  for (const ms_update_step *s = a->by->step; s->kind; s++) {
    if (s->kind == MS_STEP_SUM) MS_TRY(sum_over_mesh(a, s->buffer));
    for (int i = 0; i < a->n && s->kind != MS_STEP_SUM; i++) MS_TRY(kernel(a, s, &a->list[i]));
  }
  return MS_OK;
}

int ms_lower_summed_updates(ms_plan *plan) {
  program a = {.plan = plan, .by = ms_optimizer_of(&plan->config)};
  if (!a.by || !ms_optimizer_has(a.by, MS_STEP_SUM)) return MS_OK;
  const int rc = lower(&a);
  free(a.list);
  return rc;
}
