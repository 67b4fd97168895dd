/* test_plan_nodes.c - what ranks share is decided by the nodes they are on, which a plan is given and never guesses. */
#include "moonshard.h"
#include "plan/layout/state_layout.h"
#include "plan/report/dump.h"
#include "tests/c/support/ranks/hosts.h"
#include "tests/c/support/networks/planned.h"
#include "tests/c/support/ranks/ranks.h"

/* Nodes of so many ranks in their order, the last with what is left; 0: one. */
static void fill_nodes(int ranks, int ranks_per_node, int *node_of, ms_plan_config *config) {
  for (int rank = 0; rank < ranks && ranks_per_node; rank++) node_of[rank] = rank / ranks_per_node;
  config->nodes = ranks_per_node ? 1 + node_of[ranks - 1] : 0;
  config->node_of = ranks_per_node ? node_of : NULL;
}

static planned plan_on(int replicate, int shard, int rank, int ranks_per_node, int sync) {
  mlp_config c = mlp_default(replicate, shard, rank);
  ms_plan_config config = planned_config();
  int node_of[128];
  fill_nodes(replicate * shard, ranks_per_node, node_of, &config);
  config.sync = sync;
  return plan_with(&c, &config);
}

static void check_sharing(int replicate, int shard, int ranks_per_node, int together, int shares_masters) {
  planned p = plan_on(replicate, shard, 0, ranks_per_node, MS_SYNC_EVERY);
  assert_int_equal(p.plan->layout->replicas, together);
  assert_int_equal(p.plan->arena_bytes[MS_ARENA_MASTERS] > 0, shares_masters);
  drop(&p);
}

static void M6_replicas_share_within_a_node_and_masters_within_a_shard_group_of_a_node(void **state) {
  (void)state;
  check_sharing(64, 1, 0, 64, 0);
  check_sharing(64, 1, 64, 64, 0);
  check_sharing(64, 1, 8, 8, 0);
  check_sharing(65, 1, 13, 13, 0);
  check_sharing(64, 1, 1, 1, 0);
  check_sharing(8, 8, 16, 2, 1);
  check_sharing(8, 8, 8, 1, 1);
  check_sharing(2, 32, 8, 1, 0);
  check_sharing(6, 1, 4, 2, 0); /* nodes of 4 and 2: the most that all replicas can be divided into */
}

static void M6_every_node_of_replicas_counts_one_whole_state(void **state) {
  (void)state;
  planned alone = plan_on(1, 1, 0, 0, MS_SYNC_EVERY);
  const int64_t whole = alone.plan->category_bytes[MS_CAT_OPTIMIZER];
  drop(&alone);
  for (int per_node = 1; per_node <= 8; per_node *= 2) {
    int64_t sum = 0;
    for (int rank = 0; rank < 8; rank++) {
      planned p = plan_on(8, 1, rank, per_node, MS_SYNC_EVERY);
      sum += p.plan->category_bytes[MS_CAT_OPTIMIZER];
      drop(&p);
    }
    const int copies = 8 / per_node;
    assert_true(sum >= copies * whole);
    assert_true(sum < copies * whole + 8 * 64 * 16); /* a rank's part of a unit's state is rounded up */
  }
}

static const ms_plan_coll *sum_between_nodes(const ms_plan *plan, int phase, int unit) {
  const ms_plan_coll *found = NULL;
  for (int i = 0; i < plan->phase[phase].colls; i++) {
    const ms_plan_coll *coll = plan->phase[phase].coll[i];
    if (!ms_plan_coll_is_between_nodes(coll) || coll->unit != unit) continue;
    assert_null(found);
    found = coll;
  }
  return found;
}

/* Within its node each rank sums a slice of a unit's chunks, which it then sums with its like on the other nodes. */
static int64_t elements_of(const ms_plan_coll *coll) {
  int64_t n = 0;
  for (int i = 0; i < coll->parts; i++) n += coll->part[i].count;
  return n;
}

/* Elements of the rank's slice of a unit's chunks, without the bytes between its segments. */
static int64_t elements_in_slice(const ms_model *model, int unit, int replicas) {
  const ms_unit *u = &model->unit[unit];
  int64_t first, end = ms_unit_slice(model, u, replicas, &first) + first, n = 0;
  for (int s = 0; s < u->segments; s++) {
    const int64_t from = u->segment[s].local, to = from + u->segment[s].chunk;
    const int64_t begin = from > first ? from : first, stop = to < end ? to : end;
    if (!u->segment[s].frozen && stop > begin) n += stop - begin;
  }
  return n;
}

static void M6_slices_are_summed_between_nodes(void **state) {
  (void)state;
  static const int shapes[][3] = {{8, 1, 4}, {4, 2, 4}, {4, 2, 8}, {2, 4, 4}};
  for (int i = 0; i < 4; i++)
    for (int sync = MS_SYNC_EVERY; sync <= MS_SYNC_LAST; sync++) {
      const int replicate = shapes[i][0], shard = shapes[i][1];
      planned p = plan_on(replicate, shard, 0, shapes[i][2], sync);
      const ms_plan *plan = p.plan;
      const int nodes = replicate / plan->layout->replicas, sums = plan->layout->replicas > 1 && nodes > 1;
      const int phase = sync == MS_SYNC_EVERY ? MS_PHASE_FIRST : MS_PHASE_LAST;
      for (int u = 0; u < p.net.model->units; u++) {
        const ms_plan_coll *coll = sum_between_nodes(plan, phase, u);
        assert_int_equal(coll != NULL, sums);
        if (!coll) continue;
        assert_int_equal(coll->ranks, nodes);
        assert_int_equal(elements_of(coll), elements_in_slice(p.net.model, u, plan->layout->replicas));
      }
      assert_int_equal(sum_between_nodes(plan, MS_PHASE_NORM, -1) != NULL, sums && shard > 1);
      for (int rank = 1; rank < replicate * shard; rank++) {
        planned other = plan_on(replicate, shard, rank, shapes[i][2], sync);
        assert_true(other.plan->fingerprint == plan->fingerprint);
        drop(&other);
      }
      drop(&p);
    }
}

static void M6_more_ranks_than_a_node_takes_have_to_be_on_several(void **state) {
  (void)state;
  mlp_config c = mlp_default(65, 1, 0);
  mlp net = mlp_make(&c);
  ms_plan_config config = planned_config();
  ms_plan *plan;
  assert_fails(ms_plan_compile(net.graph, &config, &plan), MS_EINVAL, "65 | node | 64");
  int node_of[65] = {0};
  node_of[7] = 1;
  config.nodes = 2;
  assert_fails(ms_plan_compile(net.graph, &config, &plan), MS_EINVAL, "2 nodes | node_of");
  config.node_of = node_of;
  must(ms_plan_compile(net.graph, &config, &plan));
  ms_free(plan);
  node_of[7] = 2;
  assert_fails(ms_plan_compile(net.graph, &config, &plan), MS_EINVAL, "7 | 2 | 0 | 1");
  mlp_free(&net);
}

/* The plan of 8 replicas. */
static planned plan_on_two_nodes(const int node_of[8]) {
  mlp_config c = mlp_default(8, 1, 0);
  ms_plan_config config = planned_config();
  config.nodes = 2;
  config.node_of = node_of;
  return plan_with(&c, &config);
}

/* Replicas are together where all blocks of so many neighbours are, whatever the nodes' order and sizes. */
static void M6_nodes_may_have_different_numbers_of_ranks_in_any_order(void **state) {
  (void)state;
  static const struct {
    int node_of[8], together;
  } cases[] = {
      {{0, 0, 0, 0, 1, 1, 1, 1}, 4}, {{1, 1, 1, 1, 0, 0, 0, 0}, 4}, {{0, 0, 0, 0, 0, 0, 1, 1}, 2},
      {{0, 0, 0, 1, 1, 1, 1, 1}, 1}, {{0, 1, 0, 1, 0, 1, 0, 1}, 1}, {{0, 0, 1, 1, 0, 0, 1, 1}, 2},
  };
  for (int i = 0; i < 6; i++) {
    planned p = plan_on_two_nodes(cases[i].node_of);
    assert_int_equal(p.plan->layout->replicas, cases[i].together);
    drop(&p);
  }
}

/* Groups of ranks that have summed are not always on nodes of their own: JSON says which are. */
static void M6_json_tells_nodes_from_groups_that_share_them(void **state) {
  (void)state;
  static const struct {
    int node_of[8];
    const char *stride, *between;
  } cases[] = {
      {{0, 0, 0, 0, 1, 1, 1, 1}, "\"stride\":4", "\"between_nodes\":true"},
      {{0, 0, 1, 1, 0, 0, 1, 1}, "\"stride\":2", "\"between_nodes\":false"},
      {{0, 1, 0, 1, 0, 1, 0, 1}, NULL, NULL},
  };
  for (int i = 0; i < 3; i++) {
    planned p = plan_on_two_nodes(cases[i].node_of);
    ms_text text = {0};
    must(ms_plan_json(p.plan, &text));
    if (cases[i].stride) {
      assert_non_null(strstr(text.data, cases[i].stride));
      assert_non_null(strstr(text.data, cases[i].between));
    } else {
      assert_null(strstr(text.data, "stride"));
      assert_null(strstr(text.data, "between_nodes"));
    }
    ms_text_free(&text);
    drop(&p);
  }
}

static void M6_the_most_of_a_category_is_never_less_than_its_part_of_the_peak(void **state) {
  (void)state;
  planned p = plan_on(2, 2, 0, 0, MS_SYNC_EVERY);
  ms_plan_summary summary;
  must(ms_plan_summarize(p.plan, &summary, sizeof summary));
  for (int c = 0; c < MS_CATEGORIES; c++) assert_true(summary.fullest[c] >= summary.peak.bytes[c]);
  assert_true(summary.fullest[MS_CAT_PARAMETERS] == summary.bytes[MS_CAT_PARAMETERS]);
  assert_true(summary.fullest[MS_CAT_OPTIMIZER] == summary.bytes[MS_CAT_OPTIMIZER]);
  /* Activations of backward lie where gradients and what is communicated leave room: their arena says less. */
  assert_true(summary.fullest[MS_CAT_ACTIVATIONS] > summary.bytes[MS_CAT_ACTIVATIONS]);
  drop(&p);
}

static int make_state(ms_world *world, void *context) {
  mlp_config c = mlp_default(4, 1, ms_world_rank(world));
  mlp net = mlp_make(&c);
  ms_plan_config config = planned_config();
  ms_state *made;
  int node_of[4];
  fill_nodes(4, *(const int *)context, node_of, &config);
  const int spans = ms_world_nodes(world) > 1; /* the topology that is given can be another */
  if (spans && !*(const int *)context)
    EXPECT_FAILS(ms_state_new(world, net.model, &config, 1, &made), MS_EINVAL, "ranks 0 and 2 | hosts | node_of");
  else {
    MS_TRY(ms_state_new(world, net.model, &config, 1, &made));
    ms_free(made);
  }
  mlp_free(&net);
  return MS_OK;
}

static void M6_a_state_shares_nothing_between_hosts(void **state) {
  (void)state;
  static int ranks_per_node[] = {0, 1, 2};
  for (int i = 0; i < 3; i++) {
    run_ranks_as_processes(4, make_state, &ranks_per_node[i]);
    expect_hosts(&(hosts){.size = 4, .per_host = 2, .body = make_state, .context = &ranks_per_node[i]});
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(M6_replicas_share_within_a_node_and_masters_within_a_shard_group_of_a_node),
      TEST(M6_every_node_of_replicas_counts_one_whole_state),
      TEST(M6_slices_are_summed_between_nodes),
      TEST(M6_json_tells_nodes_from_groups_that_share_them),
      TEST(M6_more_ranks_than_a_node_takes_have_to_be_on_several),
      TEST(M6_nodes_may_have_different_numbers_of_ranks_in_any_order),
      TEST(M6_the_most_of_a_category_is_never_less_than_its_part_of_the_peak),
      TEST(M6_a_state_shares_nothing_between_hosts),
  };
  return cmocka_run_group_tests_name("plan nodes", tests, NULL, NULL);
}
