/* test_price_processor.c - the processor time of bytes that move between nodes, on the CPU: which cores it takes, and
 * how much slower kernels are meanwhile.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "price/price.h"
#include "tests/c/support/networks/planned.h"
#include "tests/c/support/networks/priced_cluster.h"

/* Between two nodes a gather moves bytes for 10 seconds and a sum for 20, and takes a part of each core meanwhile. */
static ms_cost *between_nodes(const ms_plan_phase *p, double taken) {
  ms_cost *cost = calloc((size_t)p->n, sizeof *cost);
  for (int i = 0; i < p->n; i++) {
    const ms_instr *instr = &p->instr[i];
    if (instr->kind == MS_INSTR_KERNEL) cost[i].work = 1;
    if (instr->kind != MS_INSTR_COLLECTIVE) continue;
    cost[i] = (ms_cost){.transfer = instr->coll->kind == MS_COLL_ALL_GATHER ? 10 : 20, .taken = taken, .between = 1};
  }
  return cost;
}

/* Two shards on two nodes, and one block. The thread sleeps until 10, when the root is there; the kernel before the
 * block runs while the block's bytes move, from 10 to 20, and takes 1 / (1 - taken). From 20 on nothing moves, until a
 * kernel has completed the block's gradients; those after it are slower again. */
static void check_moving_bytes(const ms_plan *plan, double taken, double *end) {
  const ms_plan_phase *phase = &plan->phase[MS_PHASE_FIRST];
  const double slow = 1 / (1 - taken);
  ms_cost *cost = between_nodes(phase, taken);
  ms_simulated simulated = {0};
  int first_of_block = -1, sum_of_block = -1, kernels = 0, before_sum = 0, last = -1;
  must(ms_simulate_inline(plan, MS_PHASE_FIRST, cost, NULL, &simulated));
  for (int i = 0; i < phase->n; i++) {
    const ms_instr *instr = &phase->instr[i];
    const ms_moment *at = &simulated.moment[i];
    if (instr->kind == MS_INSTR_COLLECTIVE && instr->coll->kind != MS_COLL_ALL_GATHER && sum_of_block < 0)
      sum_of_block = i;
    if (instr->kind != MS_INSTR_KERNEL) continue;
    if (first_of_block < 0 && strstr(instr->scope, "layers.0")) first_of_block = i;
    if (first_of_block < 0) assert_true(at->begin >= 10 && fabs(at->end - at->begin - slow) < 1e-12);
    else kernels++;
    last = i;
  }
  assert_true(first_of_block > 0 && sum_of_block > 0 && simulated.moment[first_of_block].begin == 20);
  const double sum_begins = simulated.moment[sum_of_block].begin;
  for (int i = first_of_block; i < phase->n; i++)
    if (phase->instr[i].kind == MS_INSTR_KERNEL) before_sum += simulated.moment[i].end <= sum_begins + 1e-9;
  assert_true(before_sum > 0 && before_sum < kernels && (kernels - before_sum) * slow < 20);
  assert_true(fabs(sum_begins - (20 + before_sum)) < 1e-9);
  assert_true(fabs(simulated.moment[last].end - (sum_begins + (kernels - before_sum) * slow)) < 1e-9);
  assert_true(fabs(simulated.end - (sum_begins + 40)) < 1e-9); /* both sums, one after the other */
  *end = simulated.moment[last].end;
  ms_simulated_free(&simulated);
  free(cost);
}

static void E2_moving_bytes_slow_kernels_on_busy_cores_by_hand(void **state) {
  (void)state;
  static const int node_of[] = {0, 1};
  mlp_config c = mlp_default(1, 2, 0);
  ms_plan_config config = planned_config();
  double free_of_cost, costly, dearer;
  c.blocks = 1;
  c.block.reshard = MS_RESHARD_KEEP;
  config.shared_masters = 0;
  config.max_norm = 0;
  config.nodes = 2;
  config.node_of = node_of;
  planned p = plan_with(&c, &config);
  check_moving_bytes(p.plan, 0, &free_of_cost);
  check_moving_bytes(p.plan, 0.25, &costly);
  check_moving_bytes(p.plan, 0.5, &dearer);
  assert_true(free_of_cost < costly && costly < dearer);
  drop(&p);
}

/* The part of a core that a transfer takes, by hand: its node's processor time over its seconds is the number of cores
 * that it wants. Idle ones come first; the rest is divided among those that compute. */
static void E5_links_take_idle_cores_first(void **state) {
  (void)state;
  planned p = plan_on(1, 4, 1, 2); /* two ranks on a node, of one thread each */
  static const struct {
    double cores, processor; /* processor: in seconds per byte of the link's 4 GB/s */
  } cases[] = {{8, 0.25e-9}, {2, 0}, {2, 0.05e-9}, {2.5, 0.25e-9}, {1, 0.05e-9}, {2, 1e-9}};
  for (int k = 0; k < 6; k++) {
    ms_cluster cluster = cluster_of(MS_DEVICE_CPU);
    const ms_plan_phase *phase = &p.plan->phase[MS_PHASE_FIRST];
    ms_cost *cost;
    int between = 0;
    cluster.cores = cases[k].cores;
    cluster.link[0].processor = cases[k].processor;
    must(ms_price_costs(p.plan, &cluster, MS_PHASE_FIRST, &cost));
    for (int i = 0; i < phase->n; i++) {
      if (phase->instr[i].kind != MS_INSTR_COLLECTIVE || !cost[i].between) continue;
      const double wire = fmax(phase->instr[i].coll->moved.sent, phase->instr[i].coll->moved.received) * 2;
      const double wants = cases[k].processor * wire / cost[i].transfer, idle = fmax(0, cases[k].cores - 2);
      const double expected = fmin(0.5, fmax(0, wants - idle) / fmin(2, cases[k].cores));
      assert_true(fabs(cost[i].taken - expected) < 1e-12);
      between += wire > 0;
    }
    assert_true(between > 0);
    free(cost);
  }
  drop(&p);
}

/* More processor time, or fewer cores for it, never makes a step faster. */
static void E1_processor_time_of_links_is_monotone(void **state) {
  (void)state;
  static const int meshes[][2] = {{1, 4}, {2, 2}, {4, 1}};
  for (int m = 0; m < 3; m++) {
    planned p = plan_on(meshes[m][0], meshes[m][1], 0, 2);
    double before = 0, first = 0;
    for (int k = 0; k < 6; k++) {
      ms_cluster cluster = cluster_of(MS_DEVICE_CPU);
      ms_price busy, idle;
      cluster.link[0].processor = k * 0.04e-9;
      cluster.peak[MS_F32] = 1e9; /* kernels take as long as collectives */
      must(ms_plan_price(p.plan, &cluster, 2, 1, &idle, sizeof idle));
      cluster.cores = 2;
      must(ms_plan_price(p.plan, &cluster, 2, 1, &busy, sizeof busy));
      assert_true(busy.step >= before && busy.step >= idle.step - 1e-15);
      if (!k) first = busy.step;
      before = busy.step;
    }
    assert_true(before > first);
    drop(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(E2_moving_bytes_slow_kernels_on_busy_cores_by_hand),
      TEST(E5_links_take_idle_cores_first),
      TEST(E1_processor_time_of_links_is_monotone),
  };
  return cmocka_run_group_tests_name("price_processor", tests, NULL, NULL);
}
