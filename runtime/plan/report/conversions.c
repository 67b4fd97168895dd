/* conversions.c - what a plan tells of the changes of placement in its graph: which values, from where to where, and
 * what that moves. The graph is gone when people ask, so the plan keeps a list.
 */
#include "base/error.h"
#include "plan/lower/lower.h"

static int describe(ms_plan *plan, const ms_conversion *c, ms_plan_conversion *out) {
  MS_TRY(ms_plan_own_scope(plan, c->scope, &out->scope));
  out->mesh_dim = plan->model->dim[c->dim].mesh_dim;
  out->forward = ms_op_row_of(c->op)->name;
  out->backward = c->backward < 0 ? "" : ms_op_row_of(c->backward)->name;
  ms_placement_text(c->from, out->from);
  ms_placement_text(c->to, out->to);
  out->value = c->whole;
  out->forward_bytes = ms_across_bytes(c->op, &c->whole, c->ranks);
  out->backward_bytes = c->backward < 0 ? 0 : ms_across_bytes(c->backward, &c->whole, c->ranks);
  out->regathered = c->regathered;
  if (c->regathered) out->backward_bytes += out->forward_bytes;
  return MS_OK;
}

int ms_plan_keep_conversions(ms_plan *plan, const ms_graph *graph) {
  plan->conversion = ms_calloc(graph->n_conversions, sizeof *plan->conversion);
  if (!plan->conversion) return MS_ENOMEM;
  for (; plan->conversions < graph->n_conversions; plan->conversions++)
    MS_TRY(describe(plan, &graph->conversions[plan->conversions], &plan->conversion[plan->conversions]));
  return MS_OK;
}
