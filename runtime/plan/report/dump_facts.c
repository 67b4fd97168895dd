/* dump_facts.c - what the text of a plan and its JSON object both say (dump.h). */
#include "base/numbers/dtype.h"
#include "plan/report/dump.h"

int ms_plan_dims_in_order(const ms_plan *plan, int dim[MS_DIMS]) {
  const ms_model *model = plan->model;
  int n = 0;
  for (int at = 0; at < model->mesh_ndim; at++)
    for (int d = MS_DIMS - 1, found = 0; d >= 0 && !found; d--) {
      found = model->dim[d].size > 1 && model->dim[d].mesh_dim == at;
      if (found) dim[n++] = d;
    }
  return n;
}

double ms_plan_bytes_in(const ms_plan_coll *coll, int dtype) {
  double bytes = 0;
  for (int i = 0; i < coll->parts; i++) {
    const ms_value_info *info = &coll->part[i].shared.info;
    if (info->dtype == dtype) bytes += (double)ms_numel(info) * ms_dtype_size(dtype);
  }
  return bytes;
}

int64_t ms_plan_all_copies(const ms_plan *plan) {
  int64_t all = 0;
  for (int u = 0; u < plan->model->units; u++) all += ms_plan_copy_bytes(plan, u);
  return all;
}

int ms_plan_joins_nodes(const ms_plan *plan, const ms_plan_coll *coll) {
  if (!ms_plan_coll_is_between_nodes(coll)) return 0;
  const int *rank = plan->model->dim[coll->dim].ranks, *node_of = plan->topology.node_of;
  for (int i = 1; i < coll->ranks; i++)
    for (int j = 0; j < i; j++)
      if (node_of[rank[i * coll->stride]] == node_of[rank[j * coll->stride]]) return 0;
  return 1;
}

int ms_plan_listed_losses(const ms_plan *plan, ms_chunked_loss loss[MS_LISTED_LOSSES], int *n) {
  MS_TRY(ms_plan_list(plan, MS_PLAN_CHUNKED_LOSSES, loss, sizeof *loss, MS_LISTED_LOSSES, n));
  if (*n > MS_LISTED_LOSSES) *n = MS_LISTED_LOSSES;
  return MS_OK;
}
