/* test_plan_hosts.c - what plans move inside nodes and between them, and the memory of a node, against closed forms
 * that are written out here.
 */
#include "base/numbers/dtype.h"
#include "tests/c/support/networks/planned.h"
#include "tests/c/support/ranks/ranks.h"

enum { REPLICATE = 0, SHARD = 1 }; /* dimensions of the mesh of mlp.h */

/* Ranks in their order on nodes of two. */
static planned plan_on_pairs(int replicate, int shard, int rank) {
  static const int node_of[] = {0, 0, 1, 1, 2, 2, 3, 3};
  mlp_config c = mlp_default(replicate, shard, rank);
  ms_plan_config config = planned_config();
  config.nodes = replicate * shard / 2;
  config.node_of = node_of;
  return plan_with(&c, &config);
}

static int64_t gathered_bytes(const ms_unit *unit, int shards) {
  int64_t bytes = 0;
  for (int s = 0; s < unit->segments; s++)
    bytes += unit->segment[s].chunk * shards * ms_dtype_size(unit->segment[s].param_dtype);
  return bytes;
}

/* The bytes of the gradients of all units, as the sums read them. */
static int64_t reduced_bytes(const ms_model *model) {
  int64_t bytes = 0;
  for (int u = 0; u < model->units; u++)
    for (int s = 0; s < model->unit[u].segments; s++)
      bytes += model->unit[u].segment[s].chunk * ms_model_shards(model) * ms_dtype_size(MS_F32);
  return bytes;
}

enum { TOTALS = 2 * 4 }; /* bytes: the squared norm of the gradients and the loss, f32 */

static void check_node(const ms_plan *plan, int dim, int64_t each_way) {
  ms_traffic rank, node;
  must(ms_plan_traffic(plan, dim, &rank, &node, sizeof(ms_traffic)));
  assert_true(node.sent == (double)each_way);
  assert_true(node.received == (double)each_way);
}

/* FSDP over H = 2 nodes: (H - 1) / H S a node and direction for each gather and each reduce-scatter, twice that for the
 * totals. */
static void H2_a_plan_of_fsdp_counts_the_bytes_between_nodes(void **state) {
  (void)state;
  for (int rank = 0; rank < 4; rank++) {
    planned p = plan_on_pairs(1, 4, rank);
    const ms_model *m = p.net.model;
    int64_t gathered = 0;
    for (int u = 0; u < m->units; u++) {
      ms_unit_cost cost;
      must(ms_plan_unit_cost(p.plan, MS_PHASE_FIRST, u, &cost, sizeof cost));
      gathered += cost.gathers * gathered_bytes(&m->unit[u], 4);
    }
    assert_true(gathered > 0);
    check_node(p.plan, SHARD, gathered / 2 + reduced_bytes(m) / 2 + 2 * TOTALS / 2);
    check_node(p.plan, REPLICATE, 0);
    drop(&p);
  }
}

/* HSDP with each shard group on a node: nothing over shard; over replicate 2 (H - 1) / H of the chunks of both ranks.
 */
static void H2_a_plan_of_hsdp_counts_the_bytes_between_nodes(void **state) {
  (void)state;
  for (int rank = 0; rank < 4; rank++) {
    planned p = plan_on_pairs(2, 2, rank);
    check_node(p.plan, SHARD, 0);
    check_node(p.plan, REPLICATE, 2 * reduced_bytes(p.net.model) / 2 + 2 * (2 * TOTALS) / 2);
    drop(&p);
  }
}

/* DDP with two replicas on each node: they add up first, so each byte leaves the node once. */
static void H2_a_plan_of_ddp_counts_the_bytes_between_nodes(void **state) {
  (void)state;
  for (int rank = 0; rank < 4; rank++) {
    planned p = plan_on_pairs(4, 1, rank);
    const ms_model *m = p.net.model;
    check_node(p.plan, REPLICATE, 2 * reduced_bytes(m) / 2 + 2 * TOTALS / 2);
    check_node(p.plan, SHARD, 0);
    drop(&p);
  }
}

/* What a step's collectives have in common on every mesh: nothing leaves a node that is alone, what all nodes send
 * is what all receive, a node's figures are the sums of its ranks', and a rank's those of its collectives. */
static void H2_what_nodes_send_others_receive(void **state) {
  (void)state;
  static const int node_of[][8] = {{0, 0, 1, 1, 2, 2, 3, 3}, {0, 0, 0, 1, 1, 1, 1, 1}, {1, 0, 1, 0, 1, 0, 1, 0}, {0}};
  static const int meshes[][2] = {{1, 8}, {2, 4}, {4, 2}, {8, 1}};
  for (int n = 0; n < 4; n++)
    for (int i = 0; i < 4; i++)
      for (int dim = 0; dim < 2; dim++) {
        double sent = 0, received = 0;
        ms_traffic sum[8] = {{0}}, node[8], rank;
        for (int r = 0; r < 8; r++) {
          mlp_config c = mlp_default(meshes[i][0], meshes[i][1], r);
          ms_plan_config config = planned_config();
          config.nodes = n == 0 ? 4 : n == 3 ? 1 : 2;
          config.node_of = node_of[n];
          planned p = plan_with(&c, &config);
          must(ms_plan_traffic(p.plan, dim, &rank, &node[node_of[n][r]], sizeof(ms_traffic)));
          ms_traffic_add(&sum[node_of[n][r]], &rank);
          sent += rank.sent;
          received += rank.received;
          for (int phase = 0; phase <= MS_PHASE_UPDATE; phase++)
            for (int k = 0; k < p.plan->phase[phase].colls && phase != MS_PHASE_NEXT; k++) {
              const ms_plan_coll *coll = p.plan->phase[phase].coll[k];
              if (coll->dim != dim) continue;
              rank.inside -= coll->moved.inside;
              rank.sent -= coll->moved.sent;
              rank.received -= coll->moved.received;
            }
          assert_true(rank.inside > -1e-6 && rank.inside < 1e-6);
          assert_true(rank.sent == 0 && rank.received == 0);
          drop(&p);
        }
        assert_true(sent == received);
        if (n == 3) assert_true(sent == 0);
        for (int k = 0; k < (n == 0 ? 4 : n == 3 ? 1 : 2); k++) {
          assert_true(sum[k].sent == node[k].sent && sum[k].received == node[k].received);
          assert_true(sum[k].inside - node[k].inside < 1e-6 && node[k].inside - sum[k].inside < 1e-6);
        }
      }
}

/* A group inside a node moves what comm_bytes says, and uses no link. */
static void H3_collectives_inside_a_node_send_nothing_to_others(void **state) {
  (void)state;
  planned p = plan_on_pairs(4, 2, 5);
  ms_plan_summary summary;
  ms_traffic rank, node;
  must(ms_plan_summarize(p.plan, &summary, sizeof summary));
  must(ms_plan_traffic(p.plan, SHARD, &rank, &node, sizeof(ms_traffic)));
  assert_true(rank.inside == summary.comm_bytes[SHARD] && rank.inside > 0);
  assert_true(node.inside == 2 * rank.inside);
  assert_true(node.sent == 0 && node.received == 0);
  ms_unit_cost cost;
  must(ms_plan_unit_cost(p.plan, MS_PHASE_FIRST, 0, &cost, sizeof cost));
  assert_true(cost.gathered.sent == 0 && cost.gathered.inside > 0);
  assert_true(cost.reduced.sent > 0 && cost.reduced.sent == cost.reduced.received);
  assert_fails(ms_plan_traffic(p.plan, 2, &rank, &node, sizeof(ms_traffic)), MS_EINVAL, "dimension 2 | 0 to 1");
  assert_fails(ms_plan_unit_cost(p.plan, MS_PHASE_FIRST, 99, &cost, sizeof cost), MS_EINVAL, "unit 99");
  drop(&p);
}

static int64_t bytes_on(const ms_plan *plan, int node) {
  int64_t bytes;
  must(ms_plan_node_bytes(plan, node, &bytes));
  return bytes;
}

/* Ranks of a node share gathered weights, masters, and the state of replicas; all else is each rank's own. */
static void M6_memory_of_a_node_counts_what_its_ranks_share_once(void **state) {
  (void)state;
  static const struct {
    int replicate, shard, weights, replicated; /* copies on a node of two ranks */
  } cases[] = {{1, 4, 1, 2}, {2, 2, 1, 2}, {4, 1, 2, 1}, {2, 4, 1, 2}};
  for (int i = 0; i < 4; i++) {
    planned p = plan_on_pairs(cases[i].replicate, cases[i].shard, 0);
    const int64_t *arena = p.plan->arena_bytes;
    int64_t expected = 0;
    for (int a = 0; a < MS_ARENAS; a++) {
      const int weights = a == MS_ARENA_GATHERED || a == MS_ARENA_MASTERS;
      expected += arena[a] * (weights ? cases[i].weights : a == MS_ARENA_REPLICATED ? cases[i].replicated : 2);
    }
    assert_int_equal(bytes_on(p.plan, 0), expected);
    assert_int_equal(bytes_on(p.plan, 1), expected);
    int64_t bytes;
    assert_fails(ms_plan_node_bytes(p.plan, p.plan->topology.nodes, &bytes), MS_EINVAL, "node | 0 to");
    drop(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(H2_a_plan_of_fsdp_counts_the_bytes_between_nodes),
      TEST(H2_a_plan_of_hsdp_counts_the_bytes_between_nodes),
      TEST(H2_a_plan_of_ddp_counts_the_bytes_between_nodes),
      TEST(H2_what_nodes_send_others_receive),
      TEST(H3_collectives_inside_a_node_send_nothing_to_others),
      TEST(M6_memory_of_a_node_counts_what_its_ranks_share_once),
  };
  return cmocka_run_group_tests_name("plan hosts", tests, NULL, NULL);
}
