/* test_collective_time.c - the time of a collective on a described cluster: every algorithm against numbers worked out
 * by hand, and what holds for any link.
 *
 * Rates are powers of ten and steps whole microseconds, so that the numbers in the tests can be checked at a glance.
 */
#include "price/collective_time.h"
#include "price/price.h"
#include "tests/c/support/check.h"

#include <math.h>

static const double US = 1e-6;

/* 2 us a start, 10 more between nodes; 1 us a step inside a node, 5 us to another; 100 GB/s a rank, 40 GB/s a node. */
static struct ms_link link_of(int algorithm) {
  return (struct ms_link){.algorithm = algorithm,
                          .kinds = MS_LINK_ALL_GATHER | MS_LINK_REDUCE_SCATTER | MS_LINK_ALL_REDUCE,
                          .start = 2e-6,
                          .start_between = 10e-6,
                          .step_inside = 1e-6,
                          .step_between = 5e-6,
                          .inside = 100e9,
                          .between = 40e9};
}

static ms_collective_work work_of(int kind, int ranks, int nodes, double bytes) {
  return (ms_collective_work){.kind = kind, .ranks = ranks, .nodes = nodes, .groups = 1, .bytes = bytes};
}

static double seconds_on(struct ms_link link, ms_collective_work work) {
  ms_cluster cluster = {.struct_size = sizeof cluster, .link = {link}, .links = 1};
  double seconds = -1;
  int index = -2;
  must(ms_cluster_collective_time(&cluster, &work, sizeof(ms_collective_work), &seconds, &index));
  assert_int_equal(index, work.ranks == 1 ? -1 : 0);
  return seconds;
}

static void assert_seconds(double seconds, double expected) {
  if (fabs(seconds - expected) > 1e-12 * expected) fail_msg("%.17g s instead of %.17g s", seconds, expected);
}

/* ---- algorithms ------------------------------------------------------------------------------------------------- */

/* 8 MB over 8 ranks: 7 MB past each of them, which takes 70 us at 100 GB/s and 175 us at 40 GB/s. */
static void E5_a_ring_takes_its_steps_and_its_bytes(void **state) {
  (void)state;
  const struct ms_link ring = link_of(MS_LINK_RING);
  assert_seconds(seconds_on(ring, work_of(MS_LINK_ALL_GATHER, 8, 1, 8e6)), (2 + 7 + 70) * US);
  assert_seconds(seconds_on(ring, work_of(MS_LINK_REDUCE_SCATTER, 8, 1, 8e6)), (2 + 7 + 70) * US);
  assert_seconds(seconds_on(ring, work_of(MS_LINK_ALL_REDUCE, 8, 1, 8e6)), (2 + 14 + 140) * US);
  assert_seconds(seconds_on(ring, work_of(MS_LINK_ALL_GATHER, 8, 2, 8e6)), (12 + 6 + 5 + 175) * US);
  assert_seconds(seconds_on(ring, work_of(MS_LINK_ALL_REDUCE, 8, 2, 8e6)), (12 + 12 + 10 + 350) * US);
  /* One rank a node: nothing moves inside. */
  assert_seconds(seconds_on(ring, work_of(MS_LINK_ALL_GATHER, 8, 8, 8e6)), (12 + 35 + 175) * US);
}

/* 8 nodes are 3 levels. */
static void E5_a_tree_goes_up_and_down(void **state) {
  (void)state;
  const struct ms_link tree = link_of(MS_LINK_TREE);
  assert_seconds(seconds_on(tree, work_of(MS_LINK_ALL_REDUCE, 8, 1, 8e6)), (2 + 14 + 140) * US);
  assert_seconds(seconds_on(tree, work_of(MS_LINK_ALL_REDUCE, 32, 8, 0)), (12 + 2 * (3 + 3 * 5)) * US);
  assert_seconds(seconds_on(tree, work_of(MS_LINK_ALL_GATHER, 8, 8, 8e6)), (12 + 15 + 175) * US);
}

/* Each rank sends its bytes to the switch once, whatever the number of ranks; sums alone leave the node. */
static void E5_a_switch_takes_a_step_a_pass(void **state) {
  (void)state;
  const struct ms_link nvls = link_of(MS_LINK_SWITCH);
  assert_seconds(seconds_on(nvls, work_of(MS_LINK_ALL_REDUCE, 4, 1, 8e6)), (2 + 2 + 80) * US);
  assert_seconds(seconds_on(nvls, work_of(MS_LINK_ALL_REDUCE, 8, 1, 8e6)), (2 + 2 + 80) * US);
  assert_seconds(seconds_on(nvls, work_of(MS_LINK_ALL_GATHER, 8, 1, 8e6)), (2 + 1 + 70) * US);
  /* 2 * 8 MB * 3 / 4 = 12 MB a node. */
  assert_seconds(seconds_on(nvls, work_of(MS_LINK_ALL_REDUCE, 32, 4, 8e6)), (12 + 2 + 20 + 300) * US);
}

/* A rank has 1 MB for each of 8 ranks: 7 MB inside a node. On two nodes it sends 3 MB inside and 4 MB to the other one,
 * 16 MB of all four ranks, where a ring's neighbours pass on 7 MB. */
static void E5_an_all_to_all_sends_what_every_rank_has_for_other_nodes(void **state) {
  (void)state;
  struct ms_link ring = link_of(MS_LINK_RING);
  ring.kinds = MS_LINK_REDUCE_SCATTER;
  assert_seconds(seconds_on(ring, work_of(MS_LINK_ALL_TO_ALL, 8, 1, 8e6)), (2 + 7 + 70) * US);
  assert_seconds(seconds_on(ring, work_of(MS_LINK_ALL_TO_ALL, 8, 2, 8e6)), (12 + 6 + 5 + 400) * US);
  assert_seconds(seconds_on(ring, work_of(MS_LINK_ALL_TO_ALL, 8, 8, 8e6)), (12 + 35 + 175) * US);
  /* 4 ranks that are alone in their groups on a node send as much as a group of 4. */
  ms_collective_work work = work_of(MS_LINK_ALL_TO_ALL, 2, 2, 8e6);
  work.groups = 4;
  assert_seconds(seconds_on(ring, work), (12 + 5 + 400) * US);
}

/* Through memory and then over the network: the bytes are the plan's, of all groups of the node. */
static void E5_hosts_read_memory_then_send(void **state) {
  (void)state;
  const struct ms_link hosts = link_of(MS_LINK_HOSTS);
  ms_collective_work work = work_of(MS_LINK_ALL_GATHER, 4, 1, 8e6);
  work.inside = 6e6;
  work.wire = 4e6;
  assert_seconds(seconds_on(hosts, work), (2 + 3 + 60) * US);
  work.nodes = 2;
  work.groups = 2;
  assert_seconds(seconds_on(hosts, work), (12 + 1 + 5 + 60 + 100) * US);
}

/* ---- rates ------------------------------------------------------------------------------------------------------ */

static void E1_groups_share_the_links_of_their_node(void **state) {
  (void)state;
  struct ms_link ring = link_of(MS_LINK_RING);
  ms_collective_work work = work_of(MS_LINK_ALL_REDUCE, 2, 2, 4e6);
  assert_seconds(seconds_on(ring, work), (12 + 10 + 100) * US);
  work.groups = 4;
  assert_seconds(seconds_on(ring, work), (12 + 10 + 400) * US);
  /* A rank's own 10 GB/s are all that it ever has: four groups use the whole link. */
  ring.between_rank = 10e9;
  assert_seconds(seconds_on(ring, work), (12 + 10 + 400) * US);
  work.groups = 1;
  assert_seconds(seconds_on(ring, work), (12 + 10 + 400) * US);
  assert_seconds(seconds_on(ring, work_of(MS_LINK_ALL_REDUCE, 8, 2, 8e6)), (12 + 12 + 10 + 350) * US);
}

/* Wires of 30 GB/s from each rank to each: a group of two has one, of four three, 90 GB/s. */
static void E1_ranks_with_wires_to_each_other_use_those_of_their_group(void **state) {
  (void)state;
  struct ms_link ring = link_of(MS_LINK_RING);
  ring.inside_pair = 30e9;
  assert_seconds(seconds_on(ring, work_of(MS_LINK_ALL_GATHER, 2, 1, 6e6)), (2 + 1 + 100) * US);
  assert_seconds(seconds_on(ring, work_of(MS_LINK_ALL_GATHER, 4, 1, 12e6)), (2 + 3 + 100) * US);
  assert_seconds(seconds_on(ring, work_of(MS_LINK_ALL_GATHER, 8, 1, 8e6)), (2 + 7 + 70) * US);
}

static void E1_more_nodes_congest_the_links_between_them(void **state) {
  (void)state;
  struct ms_link ring = link_of(MS_LINK_RING);
  ring.log_between = 0.25;
  assert_seconds(seconds_on(ring, work_of(MS_LINK_ALL_GATHER, 2, 2, 8e6)), (12 + 5 + 100) * US);
  assert_seconds(seconds_on(ring, work_of(MS_LINK_ALL_GATHER, 8, 8, 8e6)), (12 + 35 + 175 * 1.5) * US);
}

/* Equal parts of a and b that overlap by a half take a * sqrt(2); the longer one alone is what remains at the end. */
static void E1_bytes_hide_steps(void **state) {
  (void)state;
  struct ms_link ring = link_of(MS_LINK_RING);
  ring.hidden = 0.5;
  assert_seconds(seconds_on(ring, work_of(MS_LINK_ALL_GATHER, 8, 1, 8e5)), (2 + 7 * sqrt(2)) * US);
  assert_seconds(seconds_on(ring, work_of(MS_LINK_ALL_GATHER, 8, 1, 0)), (2 + 7) * US);
  ring.hidden = 0.95;
  const double mostly = seconds_on(ring, work_of(MS_LINK_ALL_GATHER, 8, 1, 8e6));
  assert_true(fabs(mostly - (2 + 70) * US) < 0.01 * US);
}

/* ---- what holds for any link ------------------------------------------------------------------------------------ */

static const int KINDS[] = {MS_LINK_ALL_GATHER, MS_LINK_REDUCE_SCATTER, MS_LINK_ALL_REDUCE, MS_LINK_ALL_TO_ALL};

/* From a node of 8 ranks upwards, with every field in use. */
static void E1_more_bytes_or_ranks_never_take_less(void **state) {
  (void)state;
  for (int algorithm = MS_LINK_RING; algorithm <= MS_LINK_SWITCH; algorithm++)
    for (int kind = 0; kind < 4; kind++) {
      struct ms_link link = link_of(algorithm);
      link.hidden = 0.3;
      link.log_between = 0.1;
      link.between_rank = 5e9;
      double of_nodes = 0;
      for (int nodes = 1; nodes <= 512; nodes *= 2) {
        double before = 0;
        for (double bytes = 0; bytes < 1e12; bytes = 8 * bytes + 1) {
          ms_collective_work work = work_of(KINDS[kind], 8 * nodes, nodes, bytes);
          work.inside = bytes;
          work.wire = nodes > 1 ? 8 * bytes : 0;
          const double seconds = seconds_on(link, work);
          assert_true(seconds > before && isfinite(seconds));
          before = seconds;
        }
        assert_true(before > of_nodes);
        of_nodes = before;
      }
      double of_ranks = 0;
      for (int ranks = 2; ranks <= 8; ranks++) {
        const double seconds = seconds_on(link, work_of(KINDS[kind], ranks, 1, 1e6));
        assert_true(seconds >= of_ranks);
        of_ranks = seconds;
      }
    }
}

/* Bytes count in bytes and times in seconds: a thousand times the rates and a thousandth of the steps are a thousandth
 * of the time. */
static void E1_units_agree(void **state) {
  (void)state;
  for (int algorithm = MS_LINK_RING; algorithm <= MS_LINK_SWITCH; algorithm++) {
    struct ms_link link = link_of(algorithm), fast = link;
    ms_collective_work work = work_of(MS_LINK_ALL_REDUCE, 64, 8, 3e7);
    work.inside = 1e7;
    work.wire = 2e7;
    link.hidden = fast.hidden = 0.4;
    for (double *times[] = {&fast.start, &fast.start_between, &fast.step_inside, &fast.step_between}, **t = times;
         t < times + 4; t++)
      **t /= 1000;
    fast.inside *= 1000;
    fast.between *= 1000;
    assert_seconds(seconds_on(fast, work), seconds_on(link, work) / 1000);
  }
}

static void E1_one_rank_takes_no_time_and_one_node_no_network(void **state) {
  (void)state;
  struct ms_link ring = link_of(MS_LINK_RING);
  assert_true(seconds_on(ring, work_of(MS_LINK_ALL_GATHER, 1, 1, 1e9)) == 0);
  const double before = seconds_on(ring, work_of(MS_LINK_ALL_GATHER, 8, 1, 1e9));
  ring.start_between = ring.step_between = 7;
  ring.between = 1;
  ring.between_rank = 1;
  ring.log_between = 1;
  assert_true(seconds_on(ring, work_of(MS_LINK_ALL_GATHER, 8, 1, 1e9)) == before);
  ring.max_nodes = 1;
  ring.between = 0;
  assert_true(seconds_on(ring, work_of(MS_LINK_ALL_GATHER, 8, 1, 1e9)) == before);
}

/* Few bytes take the protocol with short steps, many the one with the high rate; what a link does not allow does not
 * count. */
static void E1_the_fastest_link_that_may_carry_it_counts(void **state) {
  (void)state;
  ms_cluster cluster = {.struct_size = sizeof cluster,
                        .link = {link_of(MS_LINK_RING), link_of(MS_LINK_RING), link_of(MS_LINK_TREE)},
                        .links = 3};
  cluster.link[0].step_inside = 10e-6;
  cluster.link[1].inside = 10e9;
  cluster.link[2].kinds = MS_LINK_ALL_REDUCE;
  cluster.link[2].inside = 1000e9;
  cluster.link[2].max_nodes = 1;
  const struct {
    ms_collective_work work;
    int link;
  } cases[] = {{work_of(MS_LINK_ALL_GATHER, 8, 1, 8), 1},
               {work_of(MS_LINK_ALL_GATHER, 8, 1, 8e9), 0},
               {work_of(MS_LINK_ALL_REDUCE, 8, 1, 8e9), 2},
               {work_of(MS_LINK_ALL_REDUCE, 32, 2, 8e9), 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    double seconds, least = INFINITY;
    int link;
    must(ms_cluster_collective_time(&cluster, &cases[i].work, sizeof(ms_collective_work), &seconds, &link));
    assert_int_equal(link, cases[i].link);
    for (int k = 0; k < 2; k++) least = fmin(least, seconds_on(cluster.link[k], cases[i].work));
    assert_true(seconds <= least);
    must(ms_cluster_collective_time(&cluster, &cases[i].work, sizeof(ms_collective_work), &seconds, NULL));
  }
}

/* What a collective adds to another one that is under way: its bytes, at the rate of the links that bound it. */
static void E1_the_transfer_is_a_part_of_the_time(void **state) {
  (void)state;
  ms_cluster cluster = {.struct_size = sizeof cluster, .link = {link_of(MS_LINK_RING)}, .links = 1};
  ms_collective_work work = work_of(MS_LINK_ALL_GATHER, 8, 1, 8e6);
  ms_collective_time time;
  must(ms_collective_time_of(&cluster, &work, &time));
  assert_seconds(time.transfer, 70 * US);
  assert_int_equal(time.between, 0);
  work.nodes = 2;
  must(ms_collective_time_of(&cluster, &work, &time));
  assert_seconds(time.transfer, 175 * US);
  assert_int_equal(time.between, 1);
  cluster.link[0].between = 400e9;
  must(ms_collective_time_of(&cluster, &work, &time));
  assert_seconds(time.transfer, 70 * US);
  assert_int_equal(time.between, 0);
}

/* ---- what is refused -------------------------------------------------------------------------------------------- */

static void E1_numbers_out_of_range_are_named(void **state) {
  (void)state;
  const struct ms_link right = link_of(MS_LINK_RING);
  const struct {
    size_t field;
    double value;
    const char *facts;
  } wrong[] = {{offsetof(struct ms_link, start), -1e-6, "start | link 3 | -1e-06"},
               {offsetof(struct ms_link, start_between), NAN, "start_between | link 3 | nan"},
               {offsetof(struct ms_link, step_inside), 5e6, "step_inside | link 3 | 5e+06"},
               {offsetof(struct ms_link, step_between), INFINITY, "step_between | link 3 | inf"},
               {offsetof(struct ms_link, hidden), 1, "hidden | link 3 | 0.95"},
               {offsetof(struct ms_link, inside), 0, "inside | link 3 | 0"},
               {offsetof(struct ms_link, inside_pair), -1, "inside_pair | link 3 | -1"},
               {offsetof(struct ms_link, between), 0, "between | link 3 | 0"},
               {offsetof(struct ms_link, between_rank), -5, "between_rank | link 3 | -5"},
               {offsetof(struct ms_link, log_between), -0.1, "log_between | link 3 | -0.1"},
               {offsetof(struct ms_link, processor), 2, "processor | link 3 | 2"}};
  must(ms_link_check(&right, 3));
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    struct ms_link link = right;
    memcpy((char *)&link + wrong[i].field, &wrong[i].value, sizeof(double));
    assert_fails(ms_link_check(&link, 3), MS_EINVAL, wrong[i].facts);
    ms_cluster cluster = {.struct_size = sizeof cluster, .link = {right, link}, .links = 2};
    ms_collective_work work = work_of(MS_LINK_ALL_GATHER, 2, 1, 1);
    double seconds;
    assert_int_equal(ms_cluster_collective_time(&cluster, &work, sizeof(ms_collective_work), &seconds, NULL),
                     MS_EINVAL);
    ms_error_clear();
  }
  struct ms_link link = right;
  link.algorithm = 4;
  assert_fails(ms_link_check(&link, 0), MS_EINVAL, "algorithm | link 0 | 4");
  link = right;
  link.kinds = 0;
  assert_fails(ms_link_check(&link, 0), MS_EINVAL, "kinds | link 0");
  link = right;
  link.max_nodes = -1;
  assert_fails(ms_link_check(&link, 0), MS_EINVAL, "max_nodes | link 0 | -1");
}

static void E1_work_that_no_group_does_is_refused(void **state) {
  (void)state;
  ms_cluster cluster = {.struct_size = sizeof cluster, .link = {link_of(MS_LINK_RING)}, .links = 1};
  const ms_collective_work right = work_of(MS_LINK_ALL_GATHER, 8, 2, 1e6);
  double seconds;
  const struct {
    ms_collective_work work;
    const char *facts;
  } wrong[] = {{{.kind = 3, .ranks = 8, .nodes = 2, .groups = 1}, "kind 3"},
               {{.kind = MS_LINK_ALL_GATHER, .ranks = 2, .nodes = 3, .groups = 1}, "all_gather | 2 ranks | 3 nodes"},
               {{.kind = MS_LINK_ALL_REDUCE, .ranks = 2, .nodes = 0, .groups = 1}, "all_reduce | 0 nodes"},
               {{.kind = MS_LINK_ALL_GATHER, .ranks = 8, .nodes = 2}, "groups | 0"},
               {{.kind = MS_LINK_ALL_GATHER, .ranks = 8, .nodes = 2, .groups = 1, .bytes = -1}, "bytes | -1"},
               {{.kind = MS_LINK_ALL_GATHER, .ranks = 8, .nodes = 2, .groups = 1, .wire = NAN}, "wire | nan"}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    assert_fails(ms_cluster_collective_time(&cluster, &wrong[i].work, sizeof(ms_collective_work), &seconds, NULL),
                 MS_EINVAL, wrong[i].facts);
  assert_fails(ms_cluster_collective_time(NULL, &right, sizeof(ms_collective_work), &seconds, NULL), MS_EINVAL,
               "cluster");
  assert_fails(ms_cluster_collective_time(&cluster, NULL, sizeof(ms_collective_work), &seconds, NULL), MS_EINVAL,
               "work");
  assert_fails(ms_cluster_collective_time(&cluster, &right, sizeof(ms_collective_work), NULL, NULL), MS_EINVAL,
               "seconds");
  cluster.link[0].max_nodes = 1;
  assert_fails(ms_cluster_collective_time(&cluster, &right, sizeof(ms_collective_work), &seconds, NULL),
               MS_EUNSUPPORTED, "all_gather | 2 nodes | max_nodes");
  cluster.links = 9;
  assert_fails(ms_cluster_collective_time(&cluster, &right, sizeof(ms_collective_work), &seconds, NULL), MS_EINVAL,
               "9 links | 8");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(E5_a_ring_takes_its_steps_and_its_bytes),
      TEST(E5_a_tree_goes_up_and_down),
      TEST(E5_a_switch_takes_a_step_a_pass),
      TEST(E5_an_all_to_all_sends_what_every_rank_has_for_other_nodes),
      TEST(E5_hosts_read_memory_then_send),
      TEST(E1_groups_share_the_links_of_their_node),
      TEST(E1_ranks_with_wires_to_each_other_use_those_of_their_group),
      TEST(E1_more_nodes_congest_the_links_between_them),
      TEST(E1_bytes_hide_steps),
      TEST(E1_more_bytes_or_ranks_never_take_less),
      TEST(E1_units_agree),
      TEST(E1_one_rank_takes_no_time_and_one_node_no_network),
      TEST(E1_the_fastest_link_that_may_carry_it_counts),
      TEST(E1_the_transfer_is_a_part_of_the_time),
      TEST(E1_numbers_out_of_range_are_named),
      TEST(E1_work_that_no_group_does_is_refused),
  };
  return cmocka_run_group_tests_name("collective time", tests, NULL, NULL);
}
