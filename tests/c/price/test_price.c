/* test_price.c - plans in simulated time: the order that a plan demands, examples worked out by hand, one rank that
 * stands for all, and what a price says about its plan.
 */
#include "price/price.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/c/support/networks/planned.h"
#include "tests/c/support/networks/priced_cluster.h"

static const int phases[] = {MS_PHASE_FIRST, MS_PHASE_NEXT, MS_PHASE_NORM, MS_PHASE_UPDATE};
enum { PHASES = sizeof phases / sizeof *phases };

static int runs(const ms_instr *instr) { return instr->kind == MS_INSTR_KERNEL || instr->kind == MS_INSTR_COLLECTIVE; }

/* ---- order ------------------------------------------------------------------------------------------------------ */

/* Whatever the plan's events order before an instruction has ended when it begins; streams run one at a time. */
static void check_order(const ms_plan *plan, int phase, const ms_simulated *simulated) {
  const ms_plan_phase *p = &plan->phase[phase];
  int *clock = calloc((size_t)(p->n * plan->streams), sizeof *clock), *place = calloc((size_t)p->n, sizeof *place);
  int count[MS_NAMED_STREAMS] = {0};
  must(ms_plan_clocks(plan, phase, clock));
  for (int i = 0; i < p->n; i++) place[i] = ++count[p->instr[i].stream];
  for (int i = 0; i < p->n; i++) {
    const ms_moment *at = &simulated->moment[i];
    if (!runs(&p->instr[i])) continue;
    assert_true(at->begin >= at->issued && at->end >= at->begin && simulated->end >= at->end);
    for (int k = 0; k < p->n; k++) {
      if (!runs(&p->instr[k]) || k == i) continue;
      /* Collectives of one stream end in order: between nodes the next one begins while bytes are under way. */
      if (p->instr[k].stream == p->instr[i].stream && k < i) assert_true(simulated->moment[k].end <= at->end + 1e-12);
      else if (p->instr[k].stream != p->instr[i].stream && clock[i * plan->streams + p->instr[k].stream] >= place[k])
        assert_true(simulated->moment[k].end <= at->begin + 1e-12);
    }
  }
  free(clock);
  free(place);
}

static void simulate_streams(const ms_plan *plan, const ms_cluster *cluster, int phase, ms_simulated *out) {
  ms_cost *cost;
  must(ms_price_costs(plan, cluster, phase, &cost));
  const ms_cost *costs[] = {cost};
  must(ms_simulate_streams(&plan, 1, cluster, phase, costs, out));
  free(cost);
}

static void simulate_inline(const ms_plan *plan, const ms_cluster *cluster, int phase, ms_simulated *out) {
  ms_cost *cost;
  must(ms_price_costs(plan, cluster, phase, &cost));
  must(ms_simulate_inline(plan, phase, cost, NULL, out));
  free(cost);
}

static void E2_simulated_time_keeps_the_order_of_the_plan(void **state) {
  (void)state;
  static const int meshes[][3] = {{1, 4, 1}, {2, 2, 2}, {1, 8, 4}, {4, 2, 2}, {8, 1, 2}};
  for (int m = 0; m < 5; m++) {
    planned p = plan_on(meshes[m][0], meshes[m][1], 1, meshes[m][2]);
    ms_cluster gpu = cluster_of(MS_DEVICE_CUDA), cpu = cluster_of(MS_DEVICE_CPU);
    gpu.issue = 2e-6;
    gpu.overlap = 0.1;
    for (int k = 0; k < PHASES; k++) {
      ms_simulated streams = {0}, thread = {0};
      simulate_streams(p.plan, &gpu, phases[k], &streams);
      simulate_inline(p.plan, &cpu, phases[k], &thread);
      check_order(p.plan, phases[k], &streams);
      check_order(p.plan, phases[k], &thread);
      ms_simulated_free(&streams);
      ms_simulated_free(&thread);
    }
    drop(&p);
  }
}

/* With links that take no time a phase is the sum of its kernels. */
static void E2_without_communication_a_phase_is_the_sum_of_its_kernels(void **state) {
  (void)state;
  planned p = plan_on(2, 4, 3, 2);
  for (int device = MS_DEVICE_CPU; device <= MS_DEVICE_CUDA; device++)
    for (int k = 0; k < PHASES; k++) {
      ms_cluster cluster = cluster_of(device);
      ms_simulated simulated = {0};
      ms_cost *cost;
      double sum = 0;
      cluster.link[0] =
          (struct ms_link){.algorithm = cluster.link[0].algorithm, .kinds = 7, .inside = 1e18, .between = 1e18};
      must(ms_price_costs(p.plan, &cluster, phases[k], &cost));
      for (int i = 0; i < p.plan->phase[phases[k]].n; i++)
        if (p.plan->phase[phases[k]].instr[i].kind == MS_INSTR_KERNEL) sum += cost[i].work;
        else if (device == MS_DEVICE_CUDA) cost[i].work = cost[i].transfer = 0; /* casts around collectives */
      const ms_cost *costs[] = {cost};
      const ms_plan *plan = p.plan;
      if (device == MS_DEVICE_CPU) must(ms_simulate_inline(plan, phases[k], cost, NULL, &simulated));
      else must(ms_simulate_streams(&plan, 1, &cluster, phases[k], costs, &simulated));
      assert_true(fabs(simulated.end - sum) < 1e-11 + 1e-9 * sum);
      ms_simulated_free(&simulated);
      free(cost);
    }
  drop(&p);
}

/* ---- by hand ---------------------------------------------------------------------------------------------------- */

/* Costs of whole seconds: a kernel takes 1, a gather 10 and a sum 20. */
static ms_cost *seconds_of(const ms_plan_phase *p) {
  ms_cost *cost = calloc((size_t)p->n, sizeof *cost);
  for (int i = 0; i < p->n; i++) {
    const ms_instr *instr = &p->instr[i];
    if (instr->kind == MS_INSTR_KERNEL) cost[i].work = 1;
    if (instr->kind == MS_INSTR_COLLECTIVE) cost[i].work = instr->coll->kind == MS_COLL_ALL_GATHER ? 10 : 20;
  }
  return cost;
}

static int kernels_before(const ms_plan_phase *p, int i) {
  int n = 0;
  for (int k = 0; k < i; k++) n += p->instr[k].kind == MS_INSTR_KERNEL;
  return n;
}

/* Two shards and one block: the root and the block are gathered one after the other, in 20 seconds. The kernel before
 * the block runs meanwhile, at 10; from 20 on kernels never wait. The block's sum begins with the kernel that completes
 * its gradients, and the root's follows, since it ends later than all kernels. */
static void E2_gathers_and_sums_end_when_they_do_by_hand(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 2, 0);
  ms_plan_config config = planned_config();
  ms_cluster cluster = cluster_of(MS_DEVICE_CUDA);
  ms_simulated simulated = {0};
  c.blocks = 1;
  c.block.reshard = MS_RESHARD_KEEP;
  config.shared_masters = 0;
  config.max_norm = 0;
  planned p = plan_with(&c, &config);
  const ms_plan *plan = p.plan;
  const ms_plan_phase *phase = &plan->phase[MS_PHASE_FIRST];
  ms_cost *cost = seconds_of(phase);
  const ms_cost *costs[] = {cost};
  must(ms_simulate_streams(&plan, 1, &cluster, MS_PHASE_FIRST, costs, &simulated));
  /* Both gathers are on one stream: the second ends at 20, and every kernel that reads the block runs after that. */
  int gathers = 0, sums = 0, first_of_block = -1, last_kernel = -1;
  for (int i = 0; i < phase->n; i++) {
    const ms_instr *instr = &phase->instr[i];
    if (instr->kind == MS_INSTR_KERNEL && first_of_block < 0 && strstr(instr->scope, "layers.0")) first_of_block = i;
    if (instr->kind == MS_INSTR_KERNEL) last_kernel = i;
    if (instr->kind != MS_INSTR_COLLECTIVE) continue;
    if (instr->coll->kind == MS_COLL_ALL_GATHER) assert_true(simulated.moment[i].end == 10 * ++gathers);
    else sums++;
  }
  assert_int_equal(gathers, 2);
  assert_int_equal(sums, 2);
  assert_true(first_of_block > 0 && simulated.moment[first_of_block].begin == 20);
  /* From there on kernels never wait, so the last one ends after one second for each. */
  const int rest = kernels_before(phase, phase->n) - kernels_before(phase, first_of_block);
  assert_true(simulated.moment[last_kernel].end == 20 + rest);
  /* The first sum begins after the kernel that completes the block's gradients; the second one follows. */
  double begin = -1;
  for (int i = 0; i < phase->n; i++)
    if (phase->instr[i].kind == MS_INSTR_COLLECTIVE && phase->instr[i].coll->kind != MS_COLL_ALL_GATHER) {
      if (begin < 0) begin = simulated.moment[i].begin;
      else assert_true(simulated.moment[i].begin == fmax(begin + 20, simulated.moment[last_kernel].end));
    }
  assert_true(begin > 20 && begin < simulated.moment[last_kernel].end);
  assert_true(simulated.end == begin + 40);
  ms_simulated_free(&simulated);
  free(cost);
  drop(&p);
}

/* One layer of which nothing overlaps: kernels, and for each collective its latency and V / B. */
static void E5_one_layer_without_overlap_takes_bytes_by_rate_and_latency(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 4, 0);
  ms_plan_config config = planned_config();
  ms_cluster cluster = cluster_of(MS_DEVICE_CPU);
  ms_price price;
  double expected = 0;
  c.blocks = 0;
  config.shared_masters = 0;
  planned p = plan_with(&c, &config);
  must(ms_plan_price(p.plan, &cluster, 1, 1, &price, sizeof price));
  const ms_plan_phase *phase = &p.plan->phase[MS_PHASE_FIRST];
  for (int i = 0; i < phase->colls; i++)
    expected += 5e-6 + 3 * 1e-6 + phase->coll[i]->bytes / 10e9; /* a start, steps to three ranks, and the bytes */
  assert_true(phase->colls >= 2);
  assert_true(fabs(price.phase[MS_PHASE_FIRST].waiting[1] - expected) < 1e-12);
  assert_true(fabs(price.phase[MS_PHASE_FIRST].seconds - price.phase[MS_PHASE_FIRST].computing - expected) < 1e-12);
  drop(&p);
}

/* ---- symmetry --------------------------------------------------------------------------------------------------- */

/* A batch and widths that divide evenly, so all ranks have the same work. */
static void E3_one_rank_stands_for_all(void **state) {
  (void)state;
  static const int meshes[][3] = {{1, 4, 1}, {2, 2, 1}, {2, 4, 2}, {4, 2, 2}, {8, 1, 4}};
  for (int m = 0; m < 5; m++) {
    const int ranks = meshes[m][0] * meshes[m][1];
    planned p[MAX_RANKS];
    const ms_plan *plans[MAX_RANKS];
    for (int r = 0; r < ranks; r++) {
      p[r] = plan_on(meshes[m][0], meshes[m][1], r, meshes[m][2]);
      plans[r] = p[r].plan;
    }
    ms_cluster cluster = cluster_of(MS_DEVICE_CUDA);
    cluster.issue = 1e-6;
    cluster.overlap = 0.1;
    for (int phase = MS_PHASE_FIRST; phase <= MS_PHASE_NEXT; phase++) {
      ms_cost *cost[MAX_RANKS];
      ms_simulated all[MAX_RANKS] = {{0}}, one = {0};
      for (int r = 0; r < ranks; r++) must(ms_price_costs(plans[r], &cluster, phase, &cost[r]));
      must(ms_simulate_streams(plans, ranks, &cluster, phase, (const ms_cost *const *)cost, all));
      must(ms_simulate_streams(plans, 1, &cluster, phase, (const ms_cost *const *)cost, &one));
      assert_true(fabs(all[0].end - one.end) < 1e-9 * one.end);
      for (int r = 0; r < ranks; r++) {
        check_order(plans[r], phase, &all[r]);
        ms_simulated_free(&all[r]);
        free(cost[r]);
      }
      ms_simulated_free(&one);
    }
    for (int r = 0; r < ranks; r++) drop(&p[r]);
  }
}

/* A rank that computes twice as long holds up the others at every collective that they share. */
static void E3_the_slowest_rank_holds_up_the_others(void **state) {
  (void)state;
  planned p[2];
  const ms_plan *plans[2];
  ms_cost *cost[2];
  ms_simulated all[2] = {{0}}, alone = {0};
  const ms_cluster cluster = cluster_of(MS_DEVICE_CUDA);
  for (int r = 0; r < 2; r++) {
    p[r] = plan_on(1, 2, r, 1);
    plans[r] = p[r].plan;
    must(ms_price_costs(plans[r], &cluster, MS_PHASE_FIRST, &cost[r]));
  }
  for (int i = 0; i < plans[1]->phase[MS_PHASE_FIRST].n; i++)
    if (plans[1]->phase[MS_PHASE_FIRST].instr[i].kind == MS_INSTR_KERNEL) cost[1][i].work *= 2;
  must(ms_simulate_streams(plans, 2, &cluster, MS_PHASE_FIRST, (const ms_cost *const *)cost, all));
  const ms_cost *slow[] = {cost[1]};
  must(ms_simulate_streams(&plans[1], 1, &cluster, MS_PHASE_FIRST, slow, &alone));
  assert_true(fabs(all[0].end - alone.end) < 1e-9 * alone.end);
  for (int r = 0; r < 2; r++) {
    ms_simulated_free(&all[r]);
    free(cost[r]);
    drop(&p[r]);
  }
  ms_simulated_free(&alone);
}

/* ---- prices ----------------------------------------------------------------------------------------------------- */

static void E4_a_price_has_the_memory_and_work_of_its_plan(void **state) {
  (void)state;
  planned p = plan_on(2, 2, 0, 2);
  const ms_cluster cluster = cluster_of(MS_DEVICE_CPU);
  ms_plan_summary summary;
  ms_price one, three;
  must(ms_plan_summarize(p.plan, &summary, sizeof summary));
  must(ms_plan_price(p.plan, &cluster, 1, 1, &one, sizeof one));
  must(ms_plan_price(p.plan, &cluster, 3, 1, &three, sizeof three));
  assert_true(one.bytes == (double)summary.peak_bytes);
  assert_int_equal(three.phase[MS_PHASE_NEXT].runs, 2);
  assert_int_equal(one.phase[MS_PHASE_NEXT].runs, 0);
  assert_true(fabs(three.step - one.step - 2 * three.phase[MS_PHASE_NEXT].seconds) < 1e-12);
  double parts = one.gaps;
  for (int i = 0; i < MS_PHASES; i++) {
    const struct ms_price_phase *phase = &one.phase[i];
    double sum = phase->computing + phase->issuing;
    for (int d = 0; d < MS_MAX_MESH_DIMS; d++) sum += phase->waiting[d];
    assert_true(fabs(sum - phase->seconds) < 1e-12);
    parts += phase->runs * phase->seconds;
  }
  assert_true(fabs(parts - one.step) < 1e-12);
  drop(&p);
}

static void E4_a_price_has_the_critical_paths_of_its_phases(void **state) {
  (void)state;
  planned p = plan_on(2, 2, 0, 2);
  const ms_cluster cluster = cluster_of(MS_DEVICE_CPU);
  ms_price price;
  must(ms_plan_price(p.plan, &cluster, 3, 1, &price, sizeof price));
  double kernels = 0, collectives = 0, seconds = 0;
  for (int phase = 0; phase < MS_PHASES; phase++) {
    ms_price_event event[4096];
    int n;
    const int runs = price.phase[phase].runs;
    if (!runs) continue;
    must(ms_plan_timeline(p.plan, &cluster, phase, event, sizeof *event, 4096, &n));
    assert_true(n <= 4096);
    for (int i = 0; i < n; i++)
      if (event[i].critical) *(event[i].kind ? &collectives : &kernels) += runs * (event[i].end - event[i].begin);
  }
  for (int dim = 0; dim < MS_MAX_MESH_DIMS; dim++) seconds += price.critical.collectives[dim];
  assert_true(fabs(price.critical.kernels - kernels) <= 1e-9 * kernels && kernels > 0);
  assert_true(fabs(seconds + price.critical.others - collectives) <= 1e-9 * (kernels + collectives));
  assert_fails(ms_plan_price(p.plan, &cluster, 3, 1.5, &price, sizeof price), MS_EINVAL, "outer | 1.5");
  drop(&p);
}

/* From the end of the phase each cause leads back to an instruction that was only issued. */
static void E2_the_critical_path_has_no_gaps_but_those_of_the_host(void **state) {
  (void)state;
  planned p = plan_on(2, 2, 0, 2);
  const ms_cluster cluster = cluster_of(MS_DEVICE_CPU);
  ms_price_event event[512];
  int n, critical = 0;
  must(ms_plan_timeline(p.plan, &cluster, MS_PHASE_FIRST, event, sizeof *event, 512, &n));
  assert_true(n > 10 && n <= 512);
  for (int i = 0; i < n; i++) {
    critical += event[i].critical;
    assert_true(event[i].end >= event[i].begin && event[i].name && event[i].scope);
    if (event[i].cause < 0) continue;
    for (int k = 0; k < n; k++)
      if (event[k].instruction == event[i].cause) {
        assert_true(event[k].end <= event[i].begin + 1e-12);
        if (event[i].critical) assert_true(event[k].critical);
      }
  }
  assert_true(critical > 2 && critical <= n);
  drop(&p);
}

static void E1_a_plan_is_priced_on_its_own_kind_of_device(void **state) {
  (void)state;
  planned p = plan_on(1, 4, 0, 1);
  ms_cluster gpu = cluster_of(MS_DEVICE_CUDA), small = cluster_of(MS_DEVICE_CPU);
  ms_price price;
  assert_fails(ms_plan_price(p.plan, &gpu, 1, 1, &price, sizeof price), MS_EINVAL, "device cpu | devices cuda");
  small.ranks_per_node = 2;
  assert_fails(ms_plan_price(p.plan, &small, 1, 1, &price, sizeof price), MS_EINVAL, "4 ranks | 2");
  small.ranks_per_node = 4;
  assert_fails(ms_plan_price(p.plan, &small, 0, 1, &price, sizeof price), MS_EINVAL, "0 micro-batches");
  drop(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(E2_simulated_time_keeps_the_order_of_the_plan),
      TEST(E2_without_communication_a_phase_is_the_sum_of_its_kernels),
      TEST(E2_gathers_and_sums_end_when_they_do_by_hand),
      TEST(E2_the_critical_path_has_no_gaps_but_those_of_the_host),
      TEST(E5_one_layer_without_overlap_takes_bytes_by_rate_and_latency),
      TEST(E3_one_rank_stands_for_all),
      TEST(E3_the_slowest_rank_holds_up_the_others),
      TEST(E4_a_price_has_the_memory_and_work_of_its_plan),
      TEST(E4_a_price_has_the_critical_paths_of_its_phases),
      TEST(E1_a_plan_is_priced_on_its_own_kind_of_device),
  };
  return cmocka_run_group_tests_name("price", tests, NULL, NULL);
}
