/* stored_finish.c - completes parameters that were written as codes: checks that every rank has written all that it
 * owns, and gives those with late scales (ms_storage) their scales. Their mean is that of exact sums, and the scale of
 * a group of scales is a maximum; both have no order, so they are the same on every mesh. Groups are those of the whole
 * parameter: where a tensor dimension divides it, several ranks can have records of one.
 */
#include <stdlib.h>
#include <string.h>

#include "base/numbers/dtype.h"
#include "base/error.h"
#include "base/min.h"
#include "exec/tensors/moments.h"
#include "exec/tensors/stored.h"
#include "kernels/formats/storage_code.h"
#include "shard/divided.h"

/* An exact sum of f32 numbers that are not negative, in units of 2^-149: limb k counts 2^(32 k) of them. */
enum { LIMBS = 10 };
enum { UNTOUCHED, WHOLE, IN_PART };

typedef struct report {
  uint64_t limb[LIMBS];
  int32_t written;    /* UNTOUCHED, ... */
  int32_t owns;       /* 1: the rank owns elements of it */
  int32_t not_finite; /* 1: a scale is NaN or infinite */
  int32_t pad;
} report;

enum { BYTES = 4096 };                     /* of one gather */
enum { AT_ONCE = BYTES / sizeof(report) }; /* parameters whose reports fit one gather */

static void add(report *r, float x) {
  const uint32_t bits = ms_float8_bits(x), exponent = bits >> 23 & 0xff;
  if (exponent == 0xff) r->not_finite = 1;
  const uint32_t shift = exponent ? exponent - 1 : 0;
  const uint64_t number = (uint64_t)((bits & 0x7fffff) | (exponent ? 0x800000u : 0)) << shift % 32;
  r->limb[shift / 32] += number & 0xffffffffu;
  r->limb[shift / 32 + 1] += number >> 32;
}

static int64_t blocks_of(const ms_storage *storage, int64_t elements) {
  return (elements + storage->block - 1) / storage->block;
}

static void describe(const ms_state *state, int param, report *r) {
  const ms_param *p = &state->model->param[param];
  const struct ms_unfinished *u = state->unfinished ? state->unfinished[param] : NULL;
  *r = (report){.owns = p->owned > 0};
  if (!u) return;
  r->written = u->staged ? IN_PART : WHOLE;
  for (int64_t i = 0; i < u->records; i++)
    if (!u->done[i]) r->written = IN_PART;
  for (int64_t i = 0; p->storage.late && i < blocks_of(&p->storage, p->owned); i++) add(r, u->scale[i]);
}

/* 1 when a member of the model has elements of this rank's copy of the parameter. */
static int has_of_copy(const ms_model *m, const ms_param *p, int member) {
  int mine[MS_GRID_DIMS], at[MS_GRID_DIMS];
  ms_grid_position(m, m->member, mine);
  ms_grid_position(m, member, at);
  return at[MS_DIM_REPLICATE] == mine[MS_DIM_REPLICATE] &&
         (at[MS_DIM_SHARD] == mine[MS_DIM_SHARD] || !ms_unit_is_whole(m, &m->unit[p->unit])) &&
         (at[MS_DIM_TENSOR] == mine[MS_DIM_TENSOR] || ms_param_is_divided(m, p));
}

/* The mean over the ranks that have this rank's copy of the parameter. */
static float mean_of(const ms_state *state, int param, const report *all, int stride) {
  const ms_model *m = state->model;
  const ms_param *p = &m->param[param];
  report sum = {0};
  for (int i = 0; i < m->members; i++) {
    if (!has_of_copy(m, p, i)) continue;
    for (int k = 0; k < LIMBS; k++) sum.limb[k] += all[i * stride].limb[k];
    sum.not_finite |= all[i * stride].not_finite;
  }
  double units = 0;
  for (int k = LIMBS - 1; k >= 0; k--) units = units * 0x1p32 + (double)sum.limb[k];
  if (sum.not_finite) return ms_float8_value(0x7fc00000u);
  return (float)(units * 0x1p-149 / (double)blocks_of(&p->storage, ms_param_whole_numel(m, p)));
}

static int check_written(const ms_state *state, int param, const report *all, int stride, int *written) {
  const char *name = state->model->param[param].name;
  *written = 0;
  for (int i = 0; i < state->process_group.size; i++) *written |= all[i * stride].written != UNTOUCHED;
  for (int i = 0; i < state->process_group.size && *written; i++) {
    const report *r = &all[i * stride];
    if (r->owns && r->written != WHOLE)
      return MS_FAIL(MS_EINVAL,
                     "parameter '%s' is stored in %s and was written in part: rank %d has not written all that it owns "
                     "of it; write the whole parameter",
                     name, ms_dtype_name(state->model->param[param].config.storage_dtype),
                     state->process_group.rank[i]);
  }
  return MS_OK;
}

/* What set_scales needs of a parameter. */
typedef struct scaling {
  const struct ms_unfinished *u; /* NULL: this rank owns nothing of it */
  ms_elements to;
  ms_division part; /* of the parameter, that this rank has */
  float offset;
} scaling;

/* The number of scales of a record that belong to elements. */
static int64_t scales_in(const scaling *s, int64_t record) {
  const int64_t each = ms_scales_of(s->to.storage);
  return ms_min(each, blocks_of(s->to.storage, s->to.count) - record * each);
}

static const float *scales_at(const scaling *s, int64_t record) {
  return s->u->scale + record * ms_scales_of(s->to.storage);
}

/* The group of scales, in the whole parameter, that a record's belong to. */
static int64_t group_of(const scaling *s, int64_t record) {
  int64_t run;
  return ms_division_index(&s->part, s->to.first + record * s->to.storage->elements, &run) / s->to.storage->group;
}

/* most[groups]: of this rank's scales the largest magnitudes, by group from `first` on. */
static void find_max(const scaling *s, int64_t first, int64_t groups, uint32_t *most) {
  memset(most, 0, (size_t)groups * sizeof *most);
  for (int64_t i = 0; s->u && i < s->u->records; i++) {
    const int64_t group = group_of(s, i) - first;
    if (group < 0 || group >= groups) continue;
    const uint32_t found = ms_storage_max(scales_at(s, i), scales_in(s, i), s->offset);
    if (found > most[group]) most[group] = found;
  }
}

/* The largest over the ranks that have this rank's copy; all [members][groups]. */
static int agree_on_max(ms_state *state, const ms_param *p, int64_t groups, uint32_t *most, uint32_t *all) {
  MS_TRY(ms_group_all_gather_bytes(&state->process_group, most, (int)groups * (int)sizeof *most, all));
  for (int i = 0; i < state->model->members; i++)
    for (int64_t g = 0; g < groups && has_of_copy(state->model, p, i); g++)
      if (all[i * groups + g] > most[g]) most[g] = all[i * groups + g];
  return MS_OK;
}

static int set_record(ms_state *state, const scaling *s, int64_t i, uint32_t most) {
  const ms_storage *storage = s->to.storage;
  char record[MS_MAX_STORED] = {0};
  const int64_t from = storage->scales;
  ms_storage_set_scales(storage, record, scales_at(s, i), scales_in(s, i), s->offset, most);
  return ms_state_copy_in(state, ms_stored_record(&s->to, i) + from, record + from, 4 * storage->words - from);
}

/* Records that are not divided have a group each. */
static int set_whole_scales(ms_state *state, const scaling *s) {
  for (int64_t i = 0; s->u && i < s->u->records; i++)
    MS_TRY(set_record(state, s, i, ms_storage_max(scales_at(s, i), scales_in(s, i), s->offset)));
  return MS_OK;
}

/* Collective, as several ranks can have records of one group. */
static int set_divided_scales(ms_state *state, const ms_param *p, const scaling *s) {
  enum { GROUPS = BYTES / sizeof(uint32_t) };
  const int64_t whole = ms_param_whole_numel(state->model, p), each = p->storage.group;
  const int64_t groups = (whole + each - 1) / each;
  uint32_t most[GROUPS], *all = ms_calloc((int64_t)state->process_group.size * GROUPS, sizeof *all);
  int rc = all ? MS_OK : MS_ENOMEM;
  for (int64_t n, first = 0; first < groups && !rc; first += n) {
    n = ms_min(GROUPS, groups - first);
    find_max(s, first, n, most);
    rc = agree_on_max(state, p, n, most, all);
    for (int64_t i = 0; s->u && i < s->u->records && !rc; i++) {
      const int64_t group = group_of(s, i) - first;
      if (group >= 0 && group < n) rc = set_record(state, s, i, most[group]);
    }
  }
  free(all);
  return rc;
}

static int set_scales(ms_state *state, int param, float offset) {
  const ms_model *m = state->model;
  const ms_param *p = &m->param[param];
  scaling s = {.u = state->unfinished ? state->unfinished[param] : NULL,
               .part = ms_param_division(m, p, m->dim[MS_DIM_TENSOR].place),
               .offset = offset};
  MS_TRY(ms_params_find(state, param, MS_TENSOR_PARAM, &s.to));
  return ms_param_is_divided(m, p) ? set_divided_scales(state, p, &s) : set_whole_scales(state, &s);
}

static int complete(ms_state *state, int param, const report *all, int stride) {
  int written;
  MS_TRY(check_written(state, param, all, stride, &written));
  if (!written) return MS_OK;
  if (state->model->param[param].storage.late) MS_TRY(set_scales(state, param, mean_of(state, param, all, stride)));
  ms_stored_forget(state, param);
  return MS_OK;
}

/* Finishes n parameters, at most AT_ONCE. */
static int finish(ms_state *state, int n, const int *param) {
  int rc = MS_OK;
  report mine[AT_ONCE], *all = ms_calloc((int64_t)state->process_group.size * n, sizeof *all);
  if (!all) return MS_ENOMEM;
  for (int i = 0; i < n; i++) describe(state, param[i], &mine[i]);
  MS_GOTO(ms_group_all_gather_bytes(&state->process_group, mine, n * (int)sizeof *mine, all));
  for (int i = 0; i < n; i++) MS_GOTO(complete(state, param[i], all + i, n));
fail:
  free(all);
  return rc;
}

int ms_stored_finish(ms_state *state, int first, int end) {
  int list[AT_ONCE], n = 0;
  for (int i = first; i < end; i++) {
    if (!ms_storage_is_coded(state->model->param[i].config.storage_dtype)) continue;
    list[n++] = i;
    if (n < AT_ONCE) continue;
    MS_TRY(finish(state, n, list));
    n = 0;
  }
  return n ? finish(state, n, list) : MS_OK;
}
