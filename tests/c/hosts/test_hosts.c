/* test_hosts.c - collectives between hosts, with ranks as threads that use only the memory of their own fake host:
 * every kind, type, shape and size, bit for bit against a reference in the documented order, over every transport.
 */
#include "tests/c/hosts/hosts_operation.h"
#include "tests/c/support/ranks/endpoints_ucx.h"
#include "tests/emulated_mpi/emulated_mpi.h"

#include <stdlib.h>

static int open_all(runner *r) {
  int rank[MAX_HOST_RANKS];
  for (int p = 0; p < r->n; p++) rank[p] = p;
  r->dst = calloc((size_t)r->all->capacity, sizeof *r->dst);
  EXPECT(r->dst, "memory is short");
  MS_TRY(ms_hosts_shape_make(r->n, r->me, r->all->hosts->node, &r->shape));
  return ms_comm_open(r->world, r->n, rank, 3, &r->comm);
}

static void close_all(runner *r) {
  ms_comm_close(r->comm);
  ms_hosts_shape_free(&r->shape);
  free(r->dst);
}

/* Between them parts are below a slice, hardly above one, empty, and of several pieces. */
static const int64_t COUNTS[][PARTS] = {{1, 0, 0, 0}, {0, 65, 3, 1000}, {70001, 0, 129, 20000}};

/* How much is run. With the thread sanitizer every element takes ten times as long, and threads do the same whatever
 * its type: each row of COUNTS has one pair of types then, and every other shape of hosts is left out. */
#ifdef __SANITIZE_THREAD__
enum { TYPES = 2, TYPES_OF_A_ROW = 1, EVERY = 2 };
#else
enum { TYPES = 4, TYPES_OF_A_ROW = 4, EVERY = 1 };
#endif

static int run_kinds(runner *r, int types, const int64_t *count) {
  hosts_case c = {.src_dtype = types & 1 ? MS_BF16 : MS_F32, .dst_dtype = types & 2 ? MS_BF16 : MS_F32};
  memcpy(c.count, count, sizeof c.count);
  static const int kinds[] = {MS_COLL_ALL_GATHER, MS_COLL_REDUCE_SCATTER, MS_COLL_ALL_REDUCE, MS_COLL_BROADCAST,
                              MS_COLL_ALL_TO_ALL};
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    if (kinds[k] == MS_COLL_ALL_TO_ALL && c.src_dtype != c.dst_dtype) continue;
    const int sums = kinds[k] == MS_COLL_REDUCE_SCATTER || kinds[k] == MS_COLL_ALL_REDUCE;
    c.kind = kinds[k];
    MS_TRY(run_case(r, &c));
    hosts_case other = c;
    other.accumulate = 1;
    if (sums && c.dst_dtype == MS_F32) MS_TRY(run_case(r, &other));
    other = c;
    other.largest = 1;
    if (c.kind == MS_COLL_ALL_REDUCE) MS_TRY(run_case(r, &other));
    other = c;
    other.in_place = 1;
    if (c.kind == MS_COLL_ALL_REDUCE && c.src_dtype == c.dst_dtype) MS_TRY(run_case(r, &other));
  }
  ms_coll barrier = {.kind = MS_COLL_BARRIER, .label = "layers.0"};
  expect_bytes(r, &barrier);
  MS_TRY(ms_comm_start(r->comm, &barrier));
  return ms_comm_wait(r->comm);
}

static int run_all_kinds(ms_world *world, void *context) {
  runner r = {.all = context, .world = world, .me = ms_world_rank(world), .n = ms_world_size(world)};
  int rc;
  MS_GOTO(open_all(&r));
  for (int row = 0; row < (int)(sizeof COUNTS / sizeof *COUNTS); row++)
    for (int i = 0; i < TYPES_OF_A_ROW; i++) MS_GOTO(run_kinds(&r, (row + i) % TYPES, COUNTS[row]));
  ms_transport_counts counts = await_counts(world, r.sent, r.received);
  ms_world_info told;
  MS_GOTO(ms_world_describe(world, &told, sizeof told));
  if (told.sent != counts.sent || told.received != counts.received)
    MS_GOTO(MS_FAIL(MS_EINTERNAL, "rank %d gets other counts than its transport's", r.me));
  if (counts.sent != r.sent || counts.received != r.received)
    rc = MS_FAIL(MS_EINTERNAL, "rank %d sent %lld bytes and received %lld, not %lld and %lld", r.me,
                 (long long)counts.sent, (long long)counts.received, (long long)r.sent, (long long)r.received);
fail:
  close_all(&r);
  return rc;
}

static arena *make_arena(const fake_hosts *hosts, int64_t capacity) {
  arena *all = calloc(1, sizeof *all);
  assert_non_null(all);
  *all = (arena){.hosts = hosts, .capacity = capacity};
  for (int r = 0; r < MAX_HOST_RANKS; r++) {
    all->source[r] = calloc((size_t)capacity, sizeof(float));
    all->result[r] = calloc((size_t)capacity, sizeof(float));
    assert_true(all->source[r] && all->result[r]);
  }
  return all;
}

static void free_arena(arena *all) {
  for (int r = 0; r < MAX_HOST_RANKS; r++) {
    free(all->source[r]);
    free(all->result[r]);
  }
  free(all);
}

/* Where one case of each kind stands for all (tests/run.sh), on the last shape of hosts. */
static void run_everywhere(const ms_transport_api *api, int64_t capacity, rank_body *body) {
  const char *cases = getenv("MOONSHARD_CASES");
  const int every = cases && !strcmp(cases, "few") ? n_fake_hosts : EVERY;
  for (int f = every - 1; f < n_fake_hosts; f += every) {
    arena *all = make_arena(&all_fake_hosts[f], capacity);
    run_ranks_on_hosts(&all_fake_hosts[f], api, body, all);
    free_arena(all);
  }
}

static void H1_H2_all_kinds_types_and_sizes_over_threads(void **state) {
  (void)state;
  run_everywhere(&threads_transport, MAX_HOST_RANKS * 100000, run_all_kinds);
}

static void H1_H2_all_kinds_types_and_sizes_over_tcp(void **state) {
  (void)state;
  run_everywhere(&ms_transport_tcp, MAX_HOST_RANKS * 100000, run_all_kinds);
}

static void H1_H2_all_kinds_types_and_sizes_over_mpi(void **state) {
  (void)state;
  run_everywhere(emulated_mpi_transport(), MAX_HOST_RANKS * 100000, run_all_kinds);
}

static void H1_H2_all_kinds_types_and_sizes_over_ucx(void **state) {
  (void)state;
  if (!has_ucx()) skip();
  run_everywhere(&ms_transport_ucx, MAX_HOST_RANKS * 100000, run_all_kinds);
}

static int run_sliced(ms_world *world, void *context) {
  runner r = {.all = context, .world = world, .me = ms_world_rank(world), .n = ms_world_size(world)};
  int rc;
  MS_GOTO(open_all(&r));
  for (int types = 0; types < TYPES; types++)
    for (int scatters = 0; scatters < 2; scatters++) {
      hosts_case c = {.kind = scatters ? MS_COLL_REDUCE_SCATTER : MS_COLL_ALL_REDUCE,
                      .src_dtype = types & 1 ? MS_BF16 : MS_F32,
                      .dst_dtype = types & 2 ? MS_BF16 : MS_F32,
                      .sliced = 1,
                      .count = {70001, 0, 5, 1000}};
      MS_GOTO(run_case(&r, &c));
      c.accumulate = 1;
      if (c.dst_dtype == MS_F32) MS_GOTO(run_case(&r, &c));
    }
fail:
  close_all(&r);
  return rc;
}

static void H1_sliced_sums(void **state) {
  (void)state;
  run_everywhere(&threads_transport, MAX_HOST_RANKS * 80000, run_sliced);
}

/* 20 MB in one part; less under the thread sanitizer, which is slow. */
#ifdef __SANITIZE_THREAD__
enum { LARGE = 200000 };
#else
enum { LARGE = 5000000 };
#endif

static int run_large(ms_world *world, void *context) {
  static const int kinds[] = {MS_COLL_ALL_GATHER, MS_COLL_REDUCE_SCATTER, MS_COLL_ALL_REDUCE};
  runner r = {.all = context, .world = world, .me = ms_world_rank(world), .n = ms_world_size(world)};
  int rc;
  MS_GOTO(open_all(&r));
  for (int k = 0; k < 3; k++) {
    hosts_case c = {.kind = kinds[k], .src_dtype = MS_F32, .dst_dtype = MS_F32};
    c.count[0] = kinds[k] == MS_COLL_ALL_REDUCE ? LARGE + 1 : LARGE / 4 + 1;
    MS_GOTO(run_case(&r, &c));
  }
fail:
  close_all(&r);
  return rc;
}

static void move_large(const ms_transport_api *api) {
  arena *all = make_arena(&all_fake_hosts[1], LARGE + 64);
  run_ranks_on_hosts(&all_fake_hosts[1], api, run_large, all);
  free_arena(all);
}

static void H1_twenty_megabytes_over_tcp(void **state) {
  (void)state;
  move_large(&ms_transport_tcp);
}

static void H1_twenty_megabytes_over_ucx(void **state) {
  (void)state;
  if (!has_ucx()) skip();
  move_large(&ms_transport_ucx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(H1_H2_all_kinds_types_and_sizes_over_threads),
      TEST(H1_H2_all_kinds_types_and_sizes_over_tcp),
      TEST(H1_H2_all_kinds_types_and_sizes_over_mpi),
      TEST(H1_H2_all_kinds_types_and_sizes_over_ucx),
      TEST(H1_sliced_sums),
      TEST(H1_twenty_megabytes_over_tcp),
      TEST(H1_twenty_megabytes_over_ucx),
  };
  return cmocka_run_group_tests_name("hosts", tests, NULL, NULL);
}
