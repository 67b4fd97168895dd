/* lower_codes.c - weights that are multiplied in 8 bits with one scale (MS_FP8_TENSORWISE) are gathered as codes of
 * f8e4m3, a byte an element. The scale is that of the whole f32 parameter, so before the first gather the ranks that
 * own parts of it must agree on its largest magnitude:
 *
 *   largest_magnitude   of this rank's chunk of each such parameter
 *   all_reduce max      over the shards, then over the tensor dimension, of one f32 a parameter for the whole model
 *   f8_scales           448 / max(amax, 1e-12), as torchao's precompute_float8_dynamic_scale_for_fsdp has it
 *
 * FIRST and EVALUATE begin with this: between an update and the gathers that need the scales, and after whatever else
 * wrote parameters. Further micro-batches read the scales of FIRST. A maximum has no order, so every rank has the same
 * bits, on every mesh. Codes are made where other weights are cast: by the gather, of the master chunk that it sends,
 * or by a kernel if there is one shard.
 */
#include "plan/lower/lower.h"

/* Numbers the parameters that this phase gathers as codes. Returns how many there are. */
static int number_scales(ms_lowering *l) {
  int n = 0;
  for (int i = 0; i < l->model->params; i++) {
    const ms_param *p = &l->model->param[i];
    const ms_unit_use *use = &l->use[p->unit];
    const int used = use->forward_first >= 0 || use->backward_first >= 0;
    l->scale[i] = used && ms_param_is_coded(p) ? n++ : -1;
  }
  return n;
}

/* Padding is zero, so the whole chunk is read, and calls are the same on all ranks. */
static int find_magnitudes(ms_lowering *l, ms_ref magnitudes) {
  const ms_op_attrs none = {0};
  for (int i = 0; i < l->model->params; i++) {
    if (l->scale[i] < 0) continue;
    const ms_param *p = &l->model->param[i];
    const ms_segment *seg = &l->model->unit[p->unit].segment[p->segment];
    const ms_ref chunk = ms_plan_weights(l->plan, p->unit, p->segment, seg->local, seg->chunk);
    const ms_ref most = ms_ref_scalar(magnitudes.buffer, 4 * l->scale[i]);
    MS_TRY(ms_plan_kernel(l->plan, l->phase, MS_OP_largest_magnitude, &none, 1, &chunk, 1, &most,
                          l->model->unit[p->unit].name, 0));
  }
  return MS_OK;
}

static int join_magnitudes(ms_lowering *l, int stream, int dim, ms_ref magnitudes) {
  const ms_plan_part part = {
      .count = ms_numel(&magnitudes.info), .src.buffer = -1, .shared = magnitudes, .dst = magnitudes};
  if (l->model->dim[dim].size == 1) return MS_OK;
  MS_TRY(ms_plan_collective_of(l->plan, l->phase, stream, MS_COLL_ALL_REDUCE, dim, "weight scales", &part));
  ms_plan_takes_largest(l->plan, l->phase);
  return MS_OK;
}

static int compute_scales(ms_lowering *l, int64_t n) {
  const ms_op_attrs none = {0};
  const int joined = ms_model_shards(l->model) > 1 || l->model->dim[MS_DIM_TENSOR].size > 1;
  int buffer;
  MS_TRY(ms_plan_buffer(l->plan, l->phase, joined ? MS_ARENA_COMM : MS_ARENA_ACTIVATIONS,
                        joined ? MS_CAT_COMMUNICATION : MS_CAT_ACTIVATIONS, 4 * n, "magnitudes", &buffer));
  const ms_ref magnitudes = ms_ref_vector(buffer, 0, MS_F32, n), scales = ms_ref_vector(l->scales, 0, MS_F32, n);
  MS_TRY(find_magnitudes(l, magnitudes));
  MS_TRY(join_magnitudes(l, MS_STREAM_REDUCE, MS_DIM_SHARD, magnitudes));
  MS_TRY(join_magnitudes(l, MS_STREAM_TENSOR, MS_DIM_TENSOR, magnitudes));
  return ms_plan_kernel(l->plan, l->phase, MS_OP_f8_scales, &none, 1, &magnitudes, 1, &scales, "weight scales", 0);
}

int ms_lower_scales(ms_lowering *l) {
  const ms_plan_config *c = &l->plan->config;
  const int64_t n = number_scales(l);
  const int more = c->accumulate || c->sync != MS_SYNC_EVERY, first = l->phase == MS_PHASE_FIRST;
  l->scales = l->plan->weight_scales;
  if (!n || (!first && l->phase != MS_PHASE_EVALUATE)) return MS_OK;
  MS_TRY(ms_plan_buffer(l->plan, first && more ? -1 : l->phase, MS_ARENA_ACTIVATIONS, MS_CAT_ACTIVATIONS, 4 * n,
                        "weight scales", &l->scales));
  if (first) l->plan->weight_scales = l->scales;
  return compute_scales(l, n);
}

ms_ref ms_lower_scale(const ms_lowering *l, int param) { return ms_ref_scalar(l->scales, 4 * l->scale[param]); }

int ms_lower_codes(ms_lowering *l, int unit, int s, ms_ref in, ms_ref out) {
  const ms_unit *u = &l->model->unit[unit];
  const ms_op_attrs none = {0};
  const ms_ref given[] = {in, ms_lower_scale(l, u->order[u->segment[s].first_param])};
  return ms_plan_kernel(l->plan, l->phase, MS_OP_f8_codes, &none, 2, given, 1, &out, u->name, 0);
}

int ms_lower_coded_product(ms_lowering *l, const ms_node *n, const ms_ref *in, ms_ref out) {
  const int param = l->graph->values[l->root[n->in[1]]].param;
  const ms_ref given[] = {in[0], in[1], ms_lower_scale(l, param), in[n->inputs - 1]};
  return ms_plan_kernel(l->plan, l->phase, MS_OP_matmul_f8_codes, &n->attrs, n->inputs + 1, given, 1, &out, n->scope,
                        n->backward);
}
