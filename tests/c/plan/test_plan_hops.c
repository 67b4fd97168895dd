/* test_plan_hops.c - sums of gradients in few bits over shards on several nodes: when they take two hops, what these
 * move inside nodes and between them, and what they keep, against closed forms that are written out here.
 */
#include "kernels/formats/quantised_sum.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers/dtype.h"
#include "plan/layout/state_layout.h"
#include "tests/c/support/networks/planned.h"
#include "tests/c/support/networks/priced_cluster.h"

enum { SHARD = 1 }; /* dimension of the mesh of mlp.h */

typedef struct setting {
  int replicate, shard, dtype, feedback;
  const int *node_of; /* [ranks]; NULL: all are on one node */
  int ragged;
} setting;

static planned plan_of(const setting *s, int rank) {
  mlp_config c = mlp_default(s->replicate, s->shard, rank);
  ms_plan_config config = planned_config();
  c.width = 13; /* sizes that nothing divides, and vectors */
  c.block.shard_dtype = c.root.shard_dtype = s->dtype;
  c.block.error_feedback = c.root.error_feedback = s->feedback;
  c.block.layout = c.root.layout = s->ragged ? MS_LAYOUT_RAGGED : MS_LAYOUT_ROWS;
  config.node_of = s->node_of;
  for (int r = 0; r < s->replicate * s->shard && s->node_of; r++)
    if (s->node_of[r] >= config.nodes) config.nodes = s->node_of[r] + 1;
  return plan_with(&c, &config);
}

static const int pairs[] = {0, 0, 1, 1, 2, 2, 3, 3}, fours[] = {0, 0, 0, 0, 1, 1, 1, 1};

static void Q6_sums_take_two_hops_where_each_node_has_as_many_neighbours_of_a_group(void **state) {
  (void)state;
  static const struct {
    int replicate, shard, node_of[8], inner;
  } cases[] = {
      {1, 8, {0, 0, 0, 0, 1, 1, 1, 1}, 4},
      {1, 8, {0, 0, 1, 1, 2, 2, 3, 3}, 2},
      {1, 8, {0, 0, 0, 0, 0, 0, 1, 1}, 2},
      {1, 8, {0, 0, 0, 1, 1, 1, 1, 1}, 1},
      {1, 8, {0, 1, 0, 1, 0, 1, 0, 1}, 1},
      {1, 8, {0}, 1},
      {2, 4, {0, 0, 0, 0, 1, 1, 1, 1}, 1},
      {2, 4, {0, 0, 1, 1, 2, 2, 3, 3}, 2},
      {1, 6, {0, 0, 0, 1, 1, 1}, 3},
      {2, 4, {0, 0, 0, 0, 0, 1, 2, 2}, 1},
      {1, 4, {0, 1, 2, 3}, 1},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const setting s = {cases[i].replicate, cases[i].shard, MS_I8, .node_of = cases[i].node_of};
    planned p = plan_of(&s, 0);
    assert_int_equal(p.plan->layout->inner_shards, cases[i].inner);
    const int hops = cases[i].inner > 1 ? 2 : 1;
    assert_int_equal(count(p.plan, MS_PHASE_FIRST, MS_COLL_ALL_TO_ALL, 0), hops * p.net.model->units);
    assert_int_equal(count(p.plan, MS_PHASE_FIRST, MS_COLL_REDUCE_SCATTER, 0), 0);
    drop(&p);
  }
}

/* Hosts of 6 and 2 ranks have groups of 2, three of which share a node. */
static void Q6_plans_say_nodes_only_where_each_group_is_one(void **state) {
  (void)state;
  static const int uneven[] = {0, 0, 0, 0, 0, 0, 1, 1};
  static const struct {
    const int *node_of;
    const char *said, *not_said;
  } cases[] = {
      {pairs, " between 4 nodes, ", " between 4 groups"},
      {fours, " between 2 nodes, ", " between 2 groups"},
      {uneven, " between 4 groups of 2 ranks, ", " between 4 nodes"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const setting s = {1, 8, MS_I8, .node_of = cases[i].node_of};
    planned p = plan_of(&s, 0);
    const char *text;
    must(ms_plan_dump(p.plan, 0, &text));
    assert_non_null(strstr(text, cases[i].said));
    assert_null(strstr(text, cases[i].not_said));
    drop(&p);
  }
}

/* Bytes of a piece for each of a unit's chunks. */
static double piece_bytes(const ms_unit *u, int dtype) {
  int64_t words = 0;
  for (int s = 0; s < u->segments; s++)
    if (!u->segment[s].frozen) words += ms_pieces_each(dtype, u->segment[s].chunk).words;
  return 4 * (double)words;
}

/* A rank of one of H nodes with L ranks each sends (L - 1) H pieces inside its node and H - 1 between nodes, where one
 * hop takes (H - 1) L. Between nodes as many arrive, and numbers are the same on all ranks. */
static void Q6_two_hops_send_as_many_times_fewer_bytes_as_a_node_has_ranks(void **state) {
  (void)state;
  static const struct {
    const int *node_of;
    int inner;
  } shapes[] = {{pairs, 2}, {fours, 4}};
  for (int i = 0; i < 2; i++)
    for (int dtype = MS_I8; dtype <= MS_I4; dtype++)
      for (int ragged = 0; ragged < 2; ragged++) {
        const int inner = shapes[i].inner, nodes = 8 / inner;
        const setting s = {1, 8, dtype, .node_of = shapes[i].node_of, .ragged = ragged};
        planned p = plan_of(&s, 5);
        for (int u = 0; u < p.net.model->units; u++) {
          const double piece = piece_bytes(&p.net.model->unit[u], dtype);
          ms_unit_cost cost;
          must(ms_plan_unit_cost(p.plan, MS_PHASE_FIRST, u, &cost, sizeof cost));
          assert_true(cost.reduced.sent == (nodes - 1) * piece);
          assert_true(cost.reduced.received == (nodes - 1) * piece);
          assert_true(cost.reduced.inside == (inner - 1) * nodes * piece);
        }
        ms_plan_summary summary, other;
        must(ms_plan_summarize(p.plan, &summary, sizeof summary));
        for (int rank = 0; rank < 8; rank++) {
          planned peer = plan_of(&s, rank);
          must(ms_plan_summarize(peer.plan, &other, sizeof other));
          assert_true(peer.plan->fingerprint == p.plan->fingerprint);
          assert_true(other.comm_bytes[SHARD] == summary.comm_bytes[SHARD]);
          drop(&peer);
        }
        drop(&p);
      }
}

/* Nodes of three and five ranks have no common number of neighbours: every piece goes to its owner at once. */
static void Q6_one_hop_sends_every_piece_to_its_owner(void **state) {
  (void)state;
  static const int node_of[] = {0, 0, 0, 1, 1, 1, 1, 1};
  const setting s = {1, 8, MS_I8, .node_of = node_of};
  double sent = 0, pieces = 0;
  for (int rank = 0; rank < 3; rank++) {
    planned p = plan_of(&s, rank);
    for (int u = 0; u < p.net.model->units; u++) {
      ms_unit_cost cost;
      must(ms_plan_unit_cost(p.plan, MS_PHASE_FIRST, u, &cost, sizeof cost));
      sent += cost.reduced.sent;
      pieces += 5 * piece_bytes(&p.net.model->unit[u], MS_I8);
    }
    drop(&p);
  }
  assert_true(sent == pieces);
}

/* A plan's program differs by its hops, so ranks that know other nodes are found before the first step. */
static void Q6_plans_of_one_hop_and_of_two_have_other_fingerprints(void **state) {
  (void)state;
  const setting one = {1, 8, MS_I8, .node_of = NULL}, two = {1, 8, MS_I8, .node_of = pairs},
                four = {1, 8, MS_I8, .node_of = fours};
  planned p[] = {plan_of(&one, 0), plan_of(&two, 0), plan_of(&four, 0)};
  assert_true(p[0].plan->fingerprint != p[1].plan->fingerprint && p[0].plan->fingerprint != p[2].plan->fingerprint &&
              p[1].plan->fingerprint != p[2].plan->fingerprint);
  for (int i = 0; i < 3; i++) drop(&p[i]);
}

static int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/* With error feedback a rank keeps an f32 for each element that it sends: of both hops. */
static void Q6_what_both_hops_round_off_is_kept_in_so_many_bytes(void **state) {
  (void)state;
  for (int hops = 1; hops <= 2; hops++) {
    const setting s = {1, 8, MS_I4, .feedback = 1, .node_of = hops == 2 ? fours : NULL};
    const setting without = {1, 8, MS_I4, .node_of = s.node_of};
    planned p = plan_of(&s, 3), plain = plan_of(&without, 3);
    int64_t expected = 0;
    for (int u = 0; u < p.net.model->units; u++) {
      const ms_unit *unit = &p.net.model->unit[u];
      int64_t elements = unit->reduce_bytes / ms_dtype_size(unit->config.reduce_dtype);
      for (int k = 0; k < unit->segments && hops == 2; k++) elements += 2 * ((unit->segment[k].chunk + 7) / 8 * 8);
      expected += whole_lines(4 * (elements + unit->segments)); /* and the divisor of each segment */
    }
    assert_int_equal(p.plan->category_bytes[MS_CAT_OPTIMIZER] - plain.plan->category_bytes[MS_CAT_OPTIMIZER], expected);
    drop(&p);
    drop(&plain);
  }
}

/* The first hop uses no link between nodes. The second takes it for a node's pieces: 1/4 ns a byte. */
static void E5_Q6_only_the_second_hop_is_priced_on_the_link_between_nodes(void **state) {
  (void)state;
  const ms_cluster cluster = cluster_of(MS_DEVICE_CPU);
  const setting s = {1, 8, MS_I8, .node_of = fours};
  planned p = plan_of(&s, 0);
  const ms_plan_phase *first = &p.plan->phase[MS_PHASE_FIRST];
  ms_cost *cost;
  int hops[2] = {0};
  double least = INFINITY, most = 0; /* seconds of the second hop, less that of its bytes */
  must(ms_price_costs(p.plan, &cluster, MS_PHASE_FIRST, &cost));
  for (int i = 0; i < first->n; i++) {
    if (first->instr[i].kind != MS_INSTR_COLLECTIVE || first->instr[i].coll->kind != MS_COLL_ALL_TO_ALL) continue;
    const int second = ms_plan_coll_is_between_nodes(first->instr[i].coll);
    assert_int_equal(cost[i].between, second);
    hops[second]++;
    if (!second) continue;
    const double bytes = 4 * piece_bytes(&p.net.model->unit[first->instr[i].coll->unit], MS_I8);
    const double start = cost[i].work + cost[i].transfer - bytes / 4e9;
    least = fmin(least, start);
    most = fmax(most, start);
  }
  assert_true(hops[0] == p.net.model->units && hops[1] == hops[0]);
  assert_true(least > 0 && most - least < 1e-12);
  free(cost);
  drop(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(Q6_sums_take_two_hops_where_each_node_has_as_many_neighbours_of_a_group),
      TEST(Q6_plans_say_nodes_only_where_each_group_is_one),
      TEST(Q6_two_hops_send_as_many_times_fewer_bytes_as_a_node_has_ranks),
      TEST(Q6_one_hop_sends_every_piece_to_its_owner),
      TEST(Q6_plans_of_one_hop_and_of_two_have_other_fingerprints),
      TEST(Q6_what_both_hops_round_off_is_kept_in_so_many_bytes),
      TEST(E5_Q6_only_the_second_hop_is_priced_on_the_link_between_nodes),
  };
  return cmocka_run_group_tests_name("plan hops", tests, NULL, NULL);
}
