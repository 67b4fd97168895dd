/* check_muon.c - which parameters can take Muon: matrices, and stacks of them, of which ranks own parts, and whose
 * replicas have the same weights. */
#include "shard/model.h"

int ms_muon_check_param(const char *name, int ndim, const ms_param_config *config) {
  if (config->optimizer == MS_OPT_NONE) return MS_OK;
  if (config->optimizer != MS_OPT_MUON)
    return MS_FAIL(MS_EINVAL, "parameter '%s': optimizer must be 0 (the plan's) or muon (%d), not %d", name,
                   MS_OPT_MUON, config->optimizer);
  if (ndim != 2 && ndim != 3)
    return MS_FAIL(MS_ESHAPE,
                   "parameter '%s': muon takes matrices, and stacks of them [matrices,rows,columns]; it has %d "
                   "dimension%s: give it adamw",
                   name, ndim, ndim == 1 ? "" : "s");
  return MS_OK;
}

/* Of weights that differ between replicas, the parts that a replica keeps do not make up a matrix of another. */
int ms_muon_check_model(const ms_model *model) {
  for (int i = 0; i < model->params; i++) {
    const ms_param *p = &model->param[i];
    if (ms_param_takes_muon(p) && model->unit[p->unit].config.fragment)
      return MS_FAIL(
          MS_EUNSUPPORTED,
          "parameter '%s' takes muon, and its unit '%s' takes local steps (local SGD): muon's work is divided "
          "among replicas with equal weights; give it adamw",
          p->name, model->unit[p->unit].name);
    if (ms_param_takes_muon(p) && ms_unit_is_whole(model, &model->unit[p->unit]))
      return MS_FAIL(MS_EUNSUPPORTED,
                     "parameter '%s' takes muon, and its unit '%s' is whole on every rank (shard = 0): muon's work is "
                     "divided among ranks that own parts; shard the unit, or give the parameter adamw",
                     p->name, model->unit[p->unit].name);
  }
  return MS_OK;
}
