/* test_hosts_plan.c - which elements cross the links between hosts: each byte once, and as many as the closed forms
 * say, for every shape.
 */
#include "base/numbers/dtype.h"
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/fake_hosts.h"

#include <stdlib.h>

static const int64_t COUNTS[] = {0, 1, 63, 64, 1000, 70001, 300000};
enum { N_COUNTS = sizeof COUNTS / sizeof *COUNTS };

static void make_shape(const fake_hosts *hosts, ms_hosts_shape *shape) {
  must(ms_hosts_shape_make(hosts->ranks, 0, hosts->node, shape));
}

static void every_rank_has_one_handler_on_each_host(void **state) {
  (void)state;
  for (int f = 0; f < n_fake_hosts; f++) {
    ms_hosts_shape shape;
    make_shape(&all_fake_hosts[f], &shape);
    assert_int_equal(shape.host_of[0], 0);
    for (int p = 0; p < shape.size; p++) {
      assert_int_equal(ms_hosts_handler(&shape, shape.host_of[p], p), p);
      for (int host = 0; host < shape.hosts; host++) {
        int handler = ms_hosts_handler(&shape, host, p);
        assert_int_equal(shape.host_of[handler], host);
        if (handler != p) {
          assert_true(ms_hosts_are_partners(&shape, p, handler));
          assert_true(ms_hosts_are_partners(&shape, handler, p));
        }
      }
      for (int q = 0; q < shape.size; q++)
        if (shape.host_of[p] == shape.host_of[q]) assert_false(ms_hosts_are_partners(&shape, p, q));
    }
    ms_hosts_shape_free(&shape);
  }
}

/* How often each element of a buffer is in the pieces of all ranks. */
static void count_pieces(const ms_hosts_shape *shape, const ms_coll *coll, uint8_t *times) {
  for (int p = 0; p < shape->size; p++) {
    ms_hosts_walk walk = {.p = p};
    ms_hosts_piece piece;
    int64_t within = 0;
    while (ms_hosts_next_piece(shape, coll, &walk, &piece)) {
      assert_true(piece.n > 0 && piece.n * ms_dtype_size(ms_hosts_wire_dtype(coll, piece.part)) <= MS_HOSTS_PIECE);
      assert_int_equal(piece.within, within);
      within += piece.n;
      for (int64_t i = 0; i < piece.n; i++) times[piece.first + i]++;
    }
  }
}

static void pieces_cover_every_element_once(void **state) {
  (void)state;
  static const int kinds[] = {MS_COLL_ALL_GATHER, MS_COLL_REDUCE_SCATTER, MS_COLL_ALL_REDUCE};
  for (int f = 0; f < n_fake_hosts; f++)
    for (int k = 0; k < 3; k++)
      for (int c = 0; c < N_COUNTS; c++) {
        ms_hosts_shape shape;
        make_shape(&all_fake_hosts[f], &shape);
        ms_coll_part part = {.count = COUNTS[c], .src_dtype = MS_F32, .dst_dtype = MS_BF16};
        ms_coll coll = {.kind = kinds[k], .parts = 1, .part = &part};
        int64_t n = COUNTS[c] * (kinds[k] == MS_COLL_ALL_REDUCE ? 1 : shape.size);
        uint8_t *times = calloc((size_t)n + 1, 1);
        assert_non_null(times);
        count_pieces(&shape, &coll, times);
        for (int64_t i = 0; i < n; i++) assert_int_equal(times[i], 1);
        assert_int_equal(times[n], 0);
        free(times);
        ms_hosts_shape_free(&shape);
      }
}

static void pieces_of_a_sliced_sum_are_those_that_were_asked_for(void **state) {
  (void)state;
  ms_hosts_shape shape;
  make_shape(&all_fake_hosts[1], &shape);
  ms_coll_part part[2] = {{.count = 100, .src_dtype = MS_F32, .dst_dtype = MS_F32},
                          {.count = 200000, .src_dtype = MS_F32, .dst_dtype = MS_F32}};
  ms_hosts_range asked[2] = {{7, 0}, {5, 65540}};
  ms_hosts_walk walk = {.p = 3, .asked = asked};
  ms_hosts_piece piece;
  ms_coll coll = {.kind = MS_COLL_REDUCE_SCATTER, .sliced = 1, .parts = 2, .part = part};
  assert_int_equal(ms_hosts_next_piece(&shape, &coll, &walk, &piece), 1);
  assert_int_equal(piece.part, 1);
  assert_int_equal(piece.first, 600005);
  assert_int_equal(piece.n, 65536);
  assert_int_equal(ms_hosts_next_piece(&shape, &coll, &walk, &piece), 1);
  assert_int_equal(piece.first, 600005 + 65536);
  assert_int_equal(piece.n, 4);
  assert_int_equal(piece.within, 65536);
  assert_int_equal(ms_hosts_next_piece(&shape, &coll, &walk, &piece), 0);
  ms_hosts_shape_free(&shape);
}

/* Bytes that a host sends and receives. */
static void add_up(const ms_hosts_shape *shape, const ms_coll *coll, int host, int64_t *sent, int64_t *received) {
  *sent = *received = 0;
  for (int p = 0; p < shape->size; p++) {
    int64_t out, in;
    if (shape->host_of[p] != host) continue;
    ms_hosts_bytes(shape, coll, p, &out, &in);
    *sent += out;
    *received += in;
  }
}

static int ranks_of(const ms_hosts_shape *shape, int host) { return shape->first[host + 1] - shape->first[host]; }

/* Chunks of 64 * hosts * ranks elements, so that slices are equal. An all-gather brings each host the chunks of the
 * others once; a reduce-scatter is its mirror image; an all-reduce brings 2 (H - 1) / H S to every host, and a
 * broadcast S to all but the root's, also if their numbers of ranks differ. */
static void H2_bytes_between_hosts_follow_the_closed_forms(void **state) {
  (void)state;
  for (int f = 0; f < n_fake_hosts; f++) {
    ms_hosts_shape shape;
    make_shape(&all_fake_hosts[f], &shape);
    const int64_t H = shape.hosts, n = shape.size, count = 64 * 6 * H * n;
    ms_coll_part part = {.count = count, .src_dtype = MS_F32, .dst_dtype = MS_F32};
    for (int host = 0; host < H; host++) {
      int64_t sent, received, own = ranks_of(&shape, host) * count * 4, S = n * count * 4;
      add_up(&shape, &(ms_coll){.kind = MS_COLL_ALL_GATHER, .parts = 1, .part = &part}, host, &sent, &received);
      assert_int_equal(sent, (H - 1) * own);
      assert_int_equal(received, S - own);
      if (ranks_of(&shape, host) * H == n) assert_int_equal(received, (H - 1) * S / H);
      add_up(&shape, &(ms_coll){.kind = MS_COLL_REDUCE_SCATTER, .parts = 1, .part = &part}, host, &sent, &received);
      assert_int_equal(received, (H - 1) * own);
      assert_int_equal(sent, S - own);
      const int64_t here = ranks_of(&shape, host);
      add_up(&shape, &(ms_coll){.kind = MS_COLL_ALL_TO_ALL, .parts = 1, .part = &part}, host, &sent, &received);
      assert_int_equal(sent, here * (n - here) * count * 4);
      assert_int_equal(received, sent);
      add_up(&shape, &(ms_coll){.kind = MS_COLL_ALL_REDUCE, .parts = 1, .part = &part}, host, &sent, &received);
      assert_int_equal(sent, 2 * (H - 1) * count * 4 / H);
      assert_int_equal(received, sent);
      add_up(&shape, &(ms_coll){.kind = MS_COLL_BROADCAST, .parts = 1, .part = &part}, host, &sent, &received);
      assert_int_equal(sent, host ? 0 : (H - 1) * count * 4);
      assert_int_equal(received, host ? count * 4 : 0);
    }
    ms_hosts_shape_free(&shape);
  }
}

/* With one host, what a rank reads is what ms_coll_bytes counts. With several, the ranks of a host together sum every
 * region over their sources, and each reads what it has not in hand. */
static void H2_bytes_inside_a_host_follow_the_closed_forms(void **state) {
  (void)state;
  static const int kinds[] = {MS_COLL_ALL_GATHER, MS_COLL_REDUCE_SCATTER, MS_COLL_ALL_REDUCE};
  static const fake_hosts one_host = {"1x3", 3, {0}};
  for (int f = 0; f <= n_fake_hosts; f++) {
    ms_hosts_shape shape;
    make_shape(f < n_fake_hosts ? &all_fake_hosts[f] : &one_host, &shape);
    const int64_t n = shape.size, count = 64 * 6 * shape.hosts * n;
    ms_coll_part part = {.count = count, .src_dtype = MS_F32, .dst_dtype = MS_F32};
    for (int host = 0; host < shape.hosts; host++) {
      int64_t inside[3] = {0}, here = ranks_of(&shape, host), S = 4 * n * count;
      for (int k = 0; k < 3; k++)
        for (int i = 0; i < here; i++)
          inside[k] += ms_hosts_bytes_inside(&shape, &(ms_coll){.kind = kinds[k], .parts = 1, .part = &part},
                                             shape.member[shape.first[host] + i]);
      assert_int_equal(inside[0], (here - 1) * S);
      assert_int_equal(inside[1], (here - 1) * S);
      assert_int_equal(inside[2], 2 * (here - 1) * S / n);
      if (shape.hosts > 1) continue;
      for (int k = 0; k < 3; k++)
        assert_true((double)inside[k] == (double)n * ms_coll_bytes(kinds[k], (int)n, &part, 1));
    }
    ms_hosts_shape_free(&shape);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(every_rank_has_one_handler_on_each_host),
      TEST(pieces_cover_every_element_once),
      TEST(pieces_of_a_sliced_sum_are_those_that_were_asked_for),
      TEST(H2_bytes_between_hosts_follow_the_closed_forms),
      TEST(H2_bytes_inside_a_host_follow_the_closed_forms),
  };
  return cmocka_run_group_tests_name("hosts plan", tests, NULL, NULL);
}
