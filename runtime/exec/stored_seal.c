/* stored_seal.c - completes parameters that were written in i8 or nf4: checks that every rank has written all that it
 * owns, and gives nf4 its scales. Their mean is that of exact sums, which have no order, so it is the same on every
 * mesh.
 */
#include <stdlib.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/least.h"
#include "exec/moments.h"
#include "exec/stored.h"
#include "kernels/storage_code.h"

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

enum { AT_ONCE = 4096 / sizeof(report) }; /* parameters whose reports fit one gather */

static void add(report *r, float x) {
  const uint32_t bits = ms_float8_bits(x), exponent = bits >> 23 & 0xff;
  if (exponent == 0xff) r->not_finite = 1;
  const uint32_t shift = exponent ? exponent - 1 : 0;
  const uint64_t number = (uint64_t)((bits & 0x7fffff) | (exponent ? 0x800000u : 0)) << shift % 32;
  r->limb[shift / 32] += number & 0xffffffffu;
  r->limb[shift / 32 + 1] += number >> 32;
}

static int64_t blocks_of(int64_t elements) { return (elements + MS_STORED_BLOCK_NF4 - 1) / MS_STORED_BLOCK_NF4; }

static void describe(const ms_state *state, int param, report *r) {
  const ms_param *p = &state->model->param[param];
  const struct ms_unsealed *u = state->unsealed ? state->unsealed[param] : NULL;
  *r = (report){.owns = p->owned > 0};
  if (!u) return;
  r->written = u->staged ? IN_PART : WHOLE;
  for (int64_t i = 0; i < u->records; i++)
    if (!u->done[i]) r->written = IN_PART;
  for (int64_t i = 0; p->config.storage_dtype == MS_NF4 && i < blocks_of(p->owned); i++) add(r, u->scale[i]);
}

/* The mean over the ranks that have this rank's copy of the parameter. */
static float mean_of(const ms_state *state, int param, const report *all, int stride) {
  const ms_model *m = state->model;
  report sum = {0};
  int mine[MS_GRID_DIMS], at[MS_GRID_DIMS];
  ms_grid_position(m, m->member, mine);
  for (int i = 0; i < m->members; i++) {
    ms_grid_position(m, i, at);
    if (at[MS_DIM_REPLICATE] != mine[MS_DIM_REPLICATE] || at[MS_DIM_TENSOR] != mine[MS_DIM_TENSOR]) continue;
    for (int k = 0; k < LIMBS; k++) sum.limb[k] += all[i * stride].limb[k];
    sum.not_finite |= all[i * stride].not_finite;
  }
  double units = 0;
  for (int k = LIMBS - 1; k >= 0; k--) units = units * 0x1p32 + (double)sum.limb[k];
  if (sum.not_finite) return ms_float8_value(0x7fc00000u);
  return (float)(units * 0x1p-149 / (double)blocks_of(m->param[param].numel));
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

static int set_scales(ms_state *state, int param, float offset) {
  const struct ms_unsealed *u = state->unsealed[param];
  ms_elements to;
  MS_TRY(ms_params_find(state, param, MS_TENSOR_PARAM, &to));
  const int64_t blocks = blocks_of(to.count);
  char record[MS_NF4_RECORD] = {0};
  for (int64_t i = 0; i < u->records; i++) {
    ms_storage_set_scales(record, u->scale + i * MS_STORED_SCALES,
                          ms_least(MS_STORED_SCALES, blocks - i * MS_STORED_SCALES), offset);
    MS_TRY(ms_state_copy_in(state, ms_stored_record(&to, i) + MS_NF4_SCALE_CODES, record + MS_NF4_SCALE_CODES,
                            MS_NF4_RECORD - MS_NF4_SCALE_CODES));
  }
  return MS_OK;
}

static int complete(ms_state *state, int param, const report *all, int stride) {
  int written;
  MS_TRY(check_written(state, param, all, stride, &written));
  struct ms_unsealed *u = state->unsealed ? state->unsealed[param] : NULL;
  if (!u) return MS_OK;
  if (state->model->param[param].config.storage_dtype == MS_NF4)
    MS_TRY(set_scales(state, param, mean_of(state, param, all, stride)));
  ms_stored_forget(state, param);
  return MS_OK;
}

/* Seals n parameters, at most AT_ONCE. */
static int seal(ms_state *state, int n, const int *param) {
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

int ms_stored_seal(ms_state *state, int first, int end) {
  int list[AT_ONCE], n = 0;
  for (int i = first; i < end; i++) {
    if (!ms_storage_is_coded(state->model->param[i].config.storage_dtype)) continue;
    list[n++] = i;
    if (n < AT_ONCE) continue;
    MS_TRY(seal(state, n, list));
    n = 0;
  }
  return n ? seal(state, n, list) : MS_OK;
}

int ms_state_seal(ms_state *state) {
  MS_HANDLE(state, STATE);
  MS_TRY(ms_state_settle(state));
  MS_TRY(ms_moments_seal(state));
  MS_TRY(ms_rests_clear(state));
  return ms_stored_seal(state, 0, state->model->params);
}
