/* test_plan_peers.c - the verifier against mutants that let a rank read memory which it shares with others too early,
 * or write it too early: without a wait, a barrier, the sums of NORM, gathers, or what a collective hands over. Every
 * rank of every mesh has its own plan: what it owns of a parameter can be nothing.
 */
#include <stdlib.h>

#include "tests/c/support/networks/planned.h"
#include "plan/layout/state_layout.h"

enum { MAX_RANKS = 8 };

/* A mesh on nodes with so many ranks each; {0}: on one node. */
typedef struct place_case {
  mesh_case mesh;
  int node[3];
} place_case;

static const place_case places[] = {
    {{2, 1, 1, 0, 0, 0}, {0}},       {{2, 1, 1, 0, 0, 1}, {0}},       {{3, 1, 1, 0, 0, 1}, {0}},
    {{2, 1, 4, 0, 0, 0}, {0}},       {{2, 2, 1, 0, 0, 0}, {0}},       {{2, 2, 2, 0, 0, 0}, {0}},
    {{4, 1, 1, 0, 1, 0}, {2, 2, 0}}, {{4, 2, 1, 0, 1, 1}, {4, 4, 0}}, {{3, 1, 1, 0, 1, 0}, {2, 1, 0}},
    {{6, 1, 1, 0, 1, 0}, {4, 2, 0}},
};
enum { PLACES = sizeof places / sizeof *places };

/* What an optimizer leaves in the memory that replicas share. */
typedef struct update_case {
  int optimizer, muon, dtype, param_copy;
  double ema, balance;
} update_case;

static const update_case updates[] = {
    {.optimizer = MS_OPT_ADAMW},
    {.optimizer = MS_OPT_SGD, .ema = 0.9},
    {.optimizer = MS_OPT_LION, .dtype = MS_BF16, .param_copy = 1},
    {.optimizer = MS_OPT_ADAFACTOR},
    {.optimizer = MS_OPT_ADAFACTOR, .dtype = MS_BF16, .param_copy = 1},
    {.optimizer = MS_OPT_ADAMW, .muon = 1},
    {.optimizer = MS_OPT_ADAMW, .balance = 0.1, .ema = 0.9},
};
enum { UPDATES = sizeof updates / sizeof *updates };

static planned plan_of(const place_case *k, const update_case *u, int rank, int ragged) {
  mlp_config c = mlp_on_mesh(&k->mesh, rank, ragged);
  ms_plan_config config = planned_config();
  int node_of[MAX_RANKS], nodes = 0;
  assert_true(c.world <= MAX_RANKS);
  for (int r = 0; k->node[nodes];) {
    for (int end = r + k->node[nodes]; r < end; r++) node_of[r] = nodes;
    nodes++;
  }
  c.block.param_dtype = c.root.param_dtype = u->dtype;
  c.block.param_copy = c.root.param_copy = u->param_copy;
  c.muon = u->muon;
  c.balance = u->balance;
  c.sequence_parallel = k->mesh.tensor > 1;
  config.optimizer = u->optimizer;
  config.ema_decay = u->ema;
  config.nodes = nodes;
  config.node_of = nodes ? node_of : NULL;
  return plan_with(&c, &config);
}

static void take_out(ms_plan_phase *p, int at, ms_instr *kept) {
  *kept = p->instr[at];
  p->n--;
  memmove(&p->instr[at], &p->instr[at + 1], (size_t)(p->n - at) * sizeof *kept);
}

static void put_back(ms_plan_phase *p, int at, const ms_instr *kept) {
  memmove(&p->instr[at + 1], &p->instr[at], (size_t)(p->n - at) * sizeof *kept);
  p->n++;
  p->instr[at] = *kept;
}

static int said(const ms_plan *plan, int phase) {
  const int rc = ms_plan_verify(plan, phase);
  ms_error_clear();
  return rc;
}

/* Returns how many mutants were tried. */
static int each_plan(void check(planned *p, int *tried)) {
  int tried = 0;
  for (int k = 0; k < PLACES; k++)
    for (int u = 0; u < UPDATES; u++)
      for (int rank = 0; rank < ranks_of(&places[k].mesh); rank++) {
        planned p = plan_of(&places[k], &updates[u], rank, (k + u) % 2);
        check(&p, &tried);
        for (int phase = 0; phase < MS_PHASES; phase++)
          if (p.plan->phase[phase].present) must(ms_plan_verify(p.plan, phase));
        drop(&p);
      }
  return tried;
}

/* ---- the end of an update ------------------------------------------------------------------------------------ */

/* 1 when kernels of the update write memory that ranks of the node have together: a rank can own nothing that it
 * updates. before_meeting: those before the first collective. */
static int writes_shared(const ms_plan *plan, int before_meeting) {
  const ms_plan_phase *update = &plan->phase[MS_PHASE_UPDATE];
  ms_access access[16];
  int writes = 0;
  for (int i = 0; i < update->n; i++) {
    const ms_instr *instr = &update->instr[i];
    if (before_meeting && instr->kind == MS_INSTR_COLLECTIVE) break;
    const int n = instr->kind == MS_INSTR_KERNEL ? ms_instr_accesses(plan, instr, access, 16) : 0;
    for (int a = 0; a < n; a++)
      writes |= access[a].write && (access[a].arena == MS_ARENA_MASTERS || access[a].arena == MS_ARENA_REPLICATED ||
                                    (access[a].arena == MS_ARENA_CHUNKS && plan->layout->replicas_here > 1));
  }
  return writes;
}

static void drop_waits_and_barriers(planned *p, int *tried) {
  ms_plan_phase *update = &p->plan->phase[MS_PHASE_UPDATE];
  for (int i = 0; i < update->n; i++) {
    ms_instr kept;
    const int barrier = update->instr[i].kind == MS_INSTR_COLLECTIVE && update->instr[i].coll->kind == MS_COLL_BARRIER;
    if (update->instr[i].kind != MS_INSTR_WAIT && !barrier) continue;
    take_out(update, i, &kept);
    const int rc = said(p->plan, MS_PHASE_UPDATE);
    put_back(update, i, &kept);
    if (rc != MS_ERACE && (!barrier || writes_shared(p->plan, 0)))
      fail_msg("rank %d: the %s at %d is not missed", p->plan->model->rank, barrier ? "barrier" : "wait", i);
    *tried += rc == MS_ERACE;
  }
}

static void M4_every_wait_and_barrier_of_every_update_is_needed(void **state) {
  (void)state;
  const int tried = each_plan(drop_waits_and_barriers);
  if (tried < 100) fail_msg("only %d were tried", tried);
}

/* A barrier that comes before what it is for is none. */
static void begin_with_barrier(planned *p, int *tried) {
  ms_plan_phase *update = &p->plan->phase[MS_PHASE_UPDATE];
  ms_instr barrier;
  if (p->plan->layout->replicas == 1 || !writes_shared(p->plan, 0)) return;
  take_out(update, update->n - 1, &barrier);
  assert_int_equal(barrier.coll->kind, MS_COLL_BARRIER);
  put_back(update, 0, &barrier);
  const int opened = barrier.coll->opened, rc = said(p->plan, MS_PHASE_UPDATE);
  barrier.coll->opened = 0;
  const int alone = said(p->plan, MS_PHASE_UPDATE);
  barrier.coll->opened = opened;
  take_out(update, 0, &barrier);
  put_back(update, update->n, &barrier);
  assert_int_equal(rc, MS_ERACE);
  assert_int_equal(alone, MS_ERACE);
  ++*tried;
}

static void M4_a_barrier_that_comes_too_early_is_refused(void **state) {
  (void)state;
  const int tried = each_plan(begin_with_barrier);
  if (tried < 100) fail_msg("only %d were tried", tried);
}

/* ---- the start of an update: others may still read ----------------------------------------------------------- */

static void update_without_sums(planned *p, int *tried) {
  ms_plan_phase *norm = &p->plan->phase[MS_PHASE_NORM];
  const int n = norm->n;
  if (!writes_shared(p->plan, 1)) return;
  norm->n = 0;
  const int rc = said(p->plan, MS_PHASE_UPDATE);
  norm->n = n;
  assert_int_equal(rc, MS_ERACE);
  ++*tried;
}

static void M4_an_update_without_a_meeting_before_it_is_refused(void **state) {
  (void)state;
  const int tried = each_plan(update_without_sums);
  if (tried < 100) fail_msg("only %d were tried", tried);
}

/* ---- forward, after an update ------------------------------------------------------------------------------- */

/* Takes all gathers of units out of a phase, with the events that they record. */
static int without_gathers(ms_plan *plan, int phase) {
  ms_plan_phase *p = &plan->phase[phase], kept = *p;
  p->instr = ms_calloc(kept.n, sizeof *p->instr);
  assert_non_null(p->instr);
  p->n = 0;
  for (int i = 0; i < kept.n; i++) {
    const ms_instr *instr = &kept.instr[i];
    const int gathers = instr->kind == MS_INSTR_COLLECTIVE && instr->stream == MS_STREAM_GATHER;
    if (!gathers) p->instr[p->n++] = *instr;
  }
  assert_true(p->n < kept.n);
  const int rc = ms_plan_verify(plan, phase);
  free(p->instr);
  *p = kept;
  return rc;
}

static void M4_masters_of_other_shards_are_read_behind_a_gather_alone(void **state) {
  (void)state;
  static const mesh_case shared[] = {{1, 2, 1, 0, 0, 0}, {2, 2, 1, 0, 0, 0}, {1, 3, 1, 0, 0, 1}, {1, 2, 2, 0, 0, 0}};
  for (int k = 0; k < 4; k++)
    for (int rank = 0; rank < ranks_of(&shared[k]); rank++) {
      const place_case place = {.mesh = shared[k]};
      planned p = plan_of(&place, &updates[0], rank, k % 2);
      for (int i = 0; i < 2; i++) {
        assert_fails(without_gathers(p.plan, i ? MS_PHASE_FIRST : MS_PHASE_EVALUATE), MS_ERACE, "masters");
      }
      drop(&p);
    }
}

/* ---- what ranks gather together ------------------------------------------------------------------------------ */

static void M4_what_no_collective_has_handed_over_is_refused(void **state) {
  (void)state;
  int tried = 0;
  for (int rank = 0; rank < 4; rank++) {
    const place_case place = {.mesh = {1, 2, 2, 0, 0, 0}};
    planned p = plan_of(&place, &updates[0], rank, 0);
    for (int c = 0; c < p.plan->phase[MS_PHASE_FIRST].colls; c++) {
      ms_plan_coll *coll = p.plan->phase[MS_PHASE_FIRST].coll[c];
      const int opened = coll->opened;
      if (!opened) continue;
      coll->opened = 0;
      assert_fails(ms_plan_verify(p.plan, MS_PHASE_FIRST), MS_ERACE, "grouped");
      coll->opened = opened;
      tried++;
    }
    must(ms_plan_verify(p.plan, MS_PHASE_FIRST));
    drop(&p);
  }
  assert_true(tried > 4);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(M4_every_wait_and_barrier_of_every_update_is_needed),
      TEST(M4_a_barrier_that_comes_too_early_is_refused),
      TEST(M4_an_update_without_a_meeting_before_it_is_refused),
      TEST(M4_masters_of_other_shards_are_read_behind_a_gather_alone),
      TEST(M4_what_no_collective_has_handed_over_is_refused),
  };
  return cmocka_run_group_tests_name("plan peers", tests, NULL, NULL);
}
