/* check_copies.c - whether a unit's parameters can be kept in bf16 next to their f32 masters
 * (ms_unit_config.param_copy). Codes cannot: they are made of masters, with scales that only a gather knows.
 */
#include "base/numbers/dtype.h"
#include "shard/model.h"

int ms_unit_keeps_copies(const ms_unit *unit) { return unit->config.param_copy; }

int ms_copies_check_param(const ms_model *model, int unit, const char *name, int ndim, const ms_param_config *config) {
  const ms_unit *u = &model->unit[unit];
  if (!ms_unit_keeps_copies(u) || config->storage_dtype != MS_F32) return MS_OK;
  if (config->gather_dtype >= 0)
    return MS_FAIL(
        MS_EUNSUPPORTED,
        "parameter '%s': its unit '%s' has param_copy, but it is gathered in blocks of %s, which are made of "
        "its f32 master: leave out gather_dtype or param_copy",
        name, u->name, ms_dtype_name(config->gather_dtype));
  if (ms_f8_gathers(config->fp8, ndim))
    return MS_FAIL(MS_EUNSUPPORTED,
                   "parameter '%s': its unit '%s' has param_copy, but fp8 tensorwise gathers it as codes of its f32 "
                   "master: take a rowwise recipe, or leave out param_copy",
                   name, u->name);
  return MS_OK;
}

/* A sliced unit's chunks are its copy; they have one dtype, and frozen parameters in f32
 * (plan/layout/replica_slices.h). */
static int check_slices(const ms_model *model, const ms_unit *u) {
  for (int s = 0; s < u->segments; s++) {
    const ms_segment *seg = &u->segment[s];
    const ms_param *p = &model->param[u->order[seg->first_param]];
    if (seg->frozen && !ms_segment_is_as_gathered(seg))
      return MS_FAIL(MS_EUNSUPPORTED,
                     "unit '%s' has param_copy and shard_over_replicate, but its parameter '%s' is frozen and has an "
                     "f32 master: store it in bf16 (storage), put it in another unit, or leave out param_copy",
                     u->name, p->name);
    if (!seg->frozen && seg->wire != u->segment[0].wire)
      return MS_FAIL(MS_EUNSUPPORTED,
                     "unit '%s' has param_copy and shard_over_replicate, by which its parameters need one dtype, but "
                     "'%s' is read in %s and '%s' in %s: give them one param_dtype, or leave out param_copy",
                     u->name, model->param[u->order[0]].name, ms_dtype_name(u->segment[0].wire), p->name,
                     ms_dtype_name(seg->wire));
  }
  return MS_OK;
}

int ms_copies_check_model(const ms_model *model) {
  for (int i = 0; i < model->units; i++) {
    const ms_unit *u = &model->unit[i];
    if (ms_unit_keeps_copies(u) && u->config.shard_over_replicate && ms_model_replicas(model) > 1)
      MS_TRY(check_slices(model, u));
  }
  return MS_OK;
}
