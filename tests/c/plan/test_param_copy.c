/* test_param_copy.c - weights that are kept in bf16 next to their masters: what plans read and write, and that whatever
 * changes a master changes its copy. */
#include <stdlib.h>

#include "base/numbers/bf16.h"
#include "comm/group/world.h"
#include "exec/tensors/params.h"
#include "plan/lower/lower.h"
#include "tests/c/support/networks/mlp_training.h"
#include "tests/c/support/networks/planned.h"

typedef struct layout_case {
  int replicate, shard, tensor, private_state, sliced, ragged, muon, balanced, frozen, optimizer, moments;
} layout_case;

static const layout_case cases[] = {
    {1, 1, 1, 0, 0, 0, 0, 0, 0, MS_OPT_ADAMW, MS_F32}, {1, 1, 1, 0, 0, 1, 1, 0, 1, MS_OPT_ADAMW, MS_BF16},
    {1, 3, 1, 0, 0, 0, 0, 1, 0, MS_OPT_SGD, MS_F32},   {1, 2, 1, 0, 0, 1, 1, 1, 1, MS_OPT_LION, MS_BF16},
    {2, 1, 1, 0, 0, 1, 0, 0, 1, MS_OPT_ADAM, MS_F32},  {2, 2, 1, 0, 0, 0, 1, 1, 0, MS_OPT_ADAMW, MS_I8},
    {2, 2, 1, 1, 0, 1, 0, 0, 1, MS_OPT_ADAMW, MS_F32}, {2, 2, 1, 1, 1, 0, 1, 0, 0, MS_OPT_ADAMW, MS_F32},
    {4, 1, 1, 1, 1, 1, 0, 1, 0, MS_OPT_SGD, MS_F32},   {1, 2, 2, 0, 0, 0, 0, 0, 0, MS_OPT_ADAMW, MS_F32},
};
enum { CASES = sizeof cases / sizeof *cases };

static training_config config_of(const layout_case *k) {
  training_config c =
      k->tensor > 1 ? training_divided(k->replicate, k->shard, k->tensor) : training_default(k->replicate, k->shard);
  ms_unit_config *units[] = {&c.net.block, &c.net.root};
  for (int i = 0; i < 2; i++) {
    units[i]->param_dtype = MS_BF16;
    units[i]->param_copy = 1;
    units[i]->shard_over_replicate = k->sliced;
    units[i]->layout = k->ragged ? MS_LAYOUT_RAGGED : MS_LAYOUT_ROWS;
  }
  c.net.muon = k->muon;
  c.net.balance = k->balanced ? 0.01 : 0;
  c.net.frozen_block = k->frozen ? 1 : -1;
  c.plan.optimizer = k->optimizer;
  set_moments(&c.plan, k->moments);
  c.plan.ema_decay = 0.5;
  c.plan.shared_masters = !k->private_state;
  return c;
}

/* ---- plans ---- */

static planned plan_of(const layout_case *k, int rank, int copy) {
  training_config c = config_of(k);
  c.net.batch = 8;
  c.net.rank = rank;
  c.net.block.param_copy = c.net.root.param_copy = copy;
  ms_plan_config config = planned_config();
  config.optimizer = c.plan.optimizer;
  config.adamw = c.plan.adamw;
  config.lion = c.plan.lion;
  config.shared_masters = c.plan.shared_masters;
  return plan_with(&c.net, &config);
}

/* Kernels of an op that read or write weights: masters, copies or what is gathered. */
static int count_of(const planned *p, int phase, int op) {
  const ms_plan_phase *of = &p->plan->phase[phase];
  int n = 0;
  for (int i = 0; i < of->n; i++) {
    const ms_instr *instr = &of->instr[i];
    if (instr->kind != MS_INSTR_KERNEL || instr->call->op != op) continue;
    const ms_buffer *in = &p->plan->buffer[instr->in[0].buffer];
    n += in->category == MS_CAT_PARAMETERS;
  }
  return n;
}

static int outputs_of_updates(const planned *p) {
  const ms_plan_phase *update = &p->plan->phase[MS_PHASE_UPDATE];
  int n = 0;
  for (int i = 0; i < update->n; i++) {
    const ms_instr *instr = &update->instr[i];
    if (instr->kind != MS_INSTR_KERNEL || !(ms_op_row_of(instr->call->op)->flags & MS_OP_COPIES)) continue;
    const int copy = instr->call->outputs - 1;
    assert_int_equal(copy, ms_op_row_of(instr->call->op)->outputs);
    assert_int_equal(instr->call->out[copy].dtype, MS_BF16);
    assert_int_equal(instr->call->out[copy].dims[0], instr->call->out[0].dims[0]);
    n++;
  }
  return n;
}

static void S7_copies_are_read_without_a_cast_and_updates_write_them(void **state) {
  (void)state;
  for (int i = 0; i < CASES; i++) {
    const layout_case *k = &cases[i];
    uint64_t fingerprint = 0;
    for (int rank = 0; rank < k->replicate * k->shard * k->tensor; rank++) {
      planned without = plan_of(k, rank, 0), with = plan_of(k, rank, 1);
      const ms_plan *plan = with.plan;
      if (!rank) fingerprint = plan->fingerprint;
      assert_true(plan->fingerprint == fingerprint && without.plan->fingerprint != fingerprint);
      for (int phase = 0; phase <= MS_PHASE_NEXT; phase++) assert_int_equal(count_of(&with, phase, MS_OP_cast), 0);
      if (k->shard == 1) {
        assert_true(count_of(&without, MS_PHASE_FIRST, MS_OP_cast) > 0);
        assert_int_equal(plan->arena_bytes[MS_ARENA_GATHERED], 0);
      }
      for (int c = 0; c < plan->phase[MS_PHASE_FIRST].colls; c++) {
        const ms_plan_coll *coll = plan->phase[MS_PHASE_FIRST].coll[c];
        if (coll->kind != MS_COLL_ALL_GATHER || coll->unit < 0) continue;
        for (int s = 0; s < coll->parts; s++) {
          assert_int_equal(coll->part[s].src.info.dtype, MS_BF16);
          assert_int_equal(coll->part[s].src.buffer, ms_state_buffer(coll->unit, MS_SLOT_WEIGHTS));
        }
      }
      const int others = count_of(&with, MS_PHASE_UPDATE, MS_OP_copy_weights);
      assert_true(outputs_of_updates(&with) > 0 && (k->muon ? others > 0 : others == 0 || k->balanced));
      drop(&without);
      drop(&with);
    }
  }
}

/* A rank counts as many elements of copies as of masters, at 2 bytes instead of 4. */
static void S7_copies_take_half_of_what_masters_take(void **state) {
  (void)state;
  for (int i = 0; i < CASES; i++) {
    const layout_case *k = &cases[i];
    planned without = plan_of(k, 0, 0), with = plan_of(k, 0, 1);
    const int64_t masters = without.plan->category_bytes[MS_CAT_PARAMETERS],
                  both = with.plan->category_bytes[MS_CAT_PARAMETERS];
    if (k->sliced) assert_int_equal(both, masters); /* their chunks are in bf16 anyway */
    else assert_int_equal(2 * both, 3 * masters);
    drop(&without);
    drop(&with);
  }
}

/* ---- what changes masters ---- */

/* Whether each copy is the master, rounded; of sliced units, where this rank has the master. */
static void check_copies(ms_world *world, const ms_state *state) {
  const ms_model *model = state->model;
  must(ms_world_barrier(world));
  for (int i = 0; i < model->params; i++) {
    const ms_param *p = &model->param[i];
    const ms_unit *unit = &model->unit[p->unit];
    ms_tensor_info info;
    int dtype;
    assert_true(ms_segment_has_weights(model, unit, state->layout.replicas, p->segment));
    must(ms_state_describe(state, i, MS_TENSOR_PARAM, &info, sizeof info));
    const int64_t first = info.first, n = info.count;
    if (!n) continue;
    float *masters = calloc((size_t)n, sizeof *masters);
    must(ms_state_read(state, i, MS_TENSOR_PARAM, first, n, masters));
    const int64_t at =
        ms_weights_offset(model, unit, state->layout.replicas, p->segment, p->local + first - p->first, &dtype);
    const char *block = ms_state_block(state, ms_state_arena(model, &state->layout, p->unit, MS_SLOT_WEIGHTS));
    const ms_bf16 *copy = (const ms_bf16 *)(block + state->layout.unit[p->unit].at[MS_SLOT_WEIGHTS] + at);
    assert_int_equal(dtype, MS_BF16);
    for (int64_t e = 0; e < n; e++) assert_int_equal(copy[e], ms_f32_to_bf16(masters[e]));
    free(masters);
  }
  must(ms_world_barrier(world));
}

static void write_whole(const rank_engine *engine, int param) {
  const ms_param *p = &engine->net.model->param[param];
  int64_t n = 1;
  for (int d = 0; d < p->ndim; d++) n *= p->whole[d];
  float *values = calloc((size_t)n, sizeof *values);
  for (int64_t i = 0; i < n; i++) values[i] = 0.1f * (float)i - 1.0f;
  must(ms_state_scatter(engine->state, param, -1, values));
  free(values);
}

static int change_masters(ms_world *world, void *context) {
  const training_config *config = context;
  const int rank = ms_world_rank(world);
  rank_engine engine;
  ms_step_outputs out;
  abort_on_failed_checks();
  engine_open(world, config, &engine);
  check_copies(world, engine.state);
  for (int step = 0; step < 2; step++) {
    engine_step(&engine, config, rank, step, &out);
    check_copies(world, engine.state);
  }
  for (int swap = 0; swap < 2; swap++) {
    must(ms_state_swap_ema(engine.state, 0));
    check_copies(world, engine.state);
  }
  write_whole(&engine, 1);
  check_copies(world, engine.state);
  if (!config->net.block.shard_over_replicate) {
    ms_elements found;
    must(ms_params_find(engine.state, 2, MS_TENSOR_PARAM, &found));
    const int64_t first = found.first, n = found.count;
    float *masters = found.data;
    /* An update that failed has changed masters. */
    for (int64_t i = 0; i < n; i++) masters[i] = 0.7f * (float)(first + i);
    ms_progress_set(engine.state, MS_COPIES_BEHIND, 1);
    engine_feed(&engine, config, rank, 0, 0);
    must(ms_exec_run(engine.exec, MS_PHASE_EVALUATE, NULL, NULL, 0));
    check_copies(world, engine.state);
    assert_false(ms_progress_has(engine.state, MS_COPIES_BEHIND));
  }
  engine_step(&engine, config, rank, 2, &out);
  check_copies(world, engine.state);
  engine_close(&engine);
  return MS_OK;
}

static void S7_whatever_changes_masters_changes_their_copies(void **state) {
  (void)state;
  for (int i = 0; i < CASES; i++) {
    training_config c = config_of(&cases[i]);
    run_ranks_as_processes(cases[i].replicate * cases[i].shard * cases[i].tensor, change_masters, &c);
  }
}

/* ---- refusals ---- */

static void S7_parameters_that_are_gathered_as_codes_have_no_copy(void **state) {
  (void)state;
  ms_model *model;
  ms_unit_config unit;
  ms_param_config param;
  const int64_t dims[] = {32, 32};
  int index;
  must(ms_model_new(1, &model));
  must(ms_config_default("ms_unit_config", &unit, sizeof unit));
  assert_int_equal(unit.param_copy, 0);
  unit.param_copy = 2;
  assert_fails(ms_model_add_unit(model, "block", &unit, &index), MS_EINVAL, "'block' | param_copy | 2");
  unit.param_copy = 1;
  unit.param_dtype = MS_BF16;
  must(ms_model_add_unit(model, "block", &unit, &index));
  must(ms_config_default("ms_param_config", &param, sizeof param));
  param.gather_dtype = MS_I8;
  assert_fails(ms_model_add_param(model, index, "w", 2, dims, &param, &index), MS_EUNSUPPORTED,
               "'w' | 'block' | param_copy | i8 | gather_dtype");
  param.gather_dtype = -1;
  param.fp8 = MS_FP8_TENSORWISE;
  assert_fails(ms_model_add_param(model, index, "w", 2, dims, &param, &index), MS_EUNSUPPORTED,
               "'w' | 'block' | param_copy | tensorwise | rowwise");
  param.fp8 = MS_FP8_ROWWISE;
  must(ms_model_add_param(model, index, "w", 2, dims, &param, &index));
  ms_free(model);
}

/* Fails to divide a model whose second parameter is read in a dtype, or frozen, and then divides it without a copy. */
static void refuse_slices(int dtype, int frozen, const char *wanted) {
  ms_model *model;
  ms_mesh *mesh;
  ms_unit_config unit;
  ms_param_config param;
  ms_model_dims roles;
  const int64_t dims[] = {32, 32};
  const int sizes[] = {2, 1};
  const char *const names[] = {"replicate", "shard"};
  int index;
  must(ms_mesh_new(MS_DEVICE_CPU, 2, sizes, names, 2, 0, NULL, &mesh));
  must(ms_model_new(1, &model));
  must(ms_config_default("ms_unit_config", &unit, sizeof unit));
  unit.param_dtype = MS_BF16;
  unit.param_copy = unit.shard_over_replicate = 1;
  must(ms_model_add_unit(model, "block", &unit, &index));
  must(ms_config_default("ms_param_config", &param, sizeof param));
  must(ms_model_add_param(model, 0, "a", 2, dims, &param, &index));
  param.param_dtype = dtype;
  param.frozen = frozen;
  must(ms_model_add_param(model, 0, "b", 2, dims, &param, &index));
  must(ms_config_default("ms_model_dims", &roles, sizeof roles));
  roles.replicate = 0;
  roles.shard = 1;
  assert_fails(ms_model_shard(model, mesh, 0, &roles), MS_EUNSUPPORTED, wanted);
  ms_free(model);
  ms_free(mesh);
}

static void S7_replicas_shard_copies_of_one_dtype(void **state) {
  (void)state;
  refuse_slices(MS_F32, 0, "'block' | param_copy | shard_over_replicate | 'a' | bf16 | 'b' | f32");
  refuse_slices(MS_BF16, 1, "'block' | param_copy | shard_over_replicate | 'b' | frozen | bf16");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(S7_copies_are_read_without_a_cast_and_updates_write_them),
      TEST(S7_copies_take_half_of_what_masters_take),
      TEST(S7_whatever_changes_masters_changes_their_copies),
      TEST(S7_parameters_that_are_gathered_as_codes_have_no_copy),
      TEST(S7_replicas_shard_copies_of_one_dtype),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
