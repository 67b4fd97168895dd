/* test_mesh_slice.c - slices, flattened and unflattened dimensions, ranks chosen by hand, hosts: each compared with
 * loops over coordinates that know nothing of strides, and every refusal with its text. */
#include "mesh/mesh.h"

#include "base/clock.h"
#include "tests/c/support/check.h"

#include <limits.h>
#include <stdlib.h>

#define SIZES(...) \
  (const int[]) { __VA_ARGS__ }
#define NAMES(...) \
  (const char *const[]) { __VA_ARGS__ }

static const char *const FOUR[] = {"pipe", "replicate", "shard", "tensor"};

static ms_mesh *make(int ndim, const int *sizes, const char *const *names, int world) {
  ms_mesh *mesh;
  must(ms_mesh_new(MS_DEVICE_CPU, ndim, sizes, names, world, 0, NULL, &mesh));
  return mesh;
}

static ms_mesh *slice(const ms_mesh *mesh, int ndim, const char *const *names) {
  ms_mesh *made;
  must(ms_mesh_slice(mesh, ndim, names, &made));
  return made;
}

static ms_mesh *flatten(ms_mesh *mesh, const char *name) {
  ms_mesh *made;
  must(ms_mesh_flatten(mesh, name, &made));
  return made;
}

static void assert_ranks(const ms_mesh *mesh, int rank, const int *expected) {
  int ranks[64];
  must(ms_mesh_ranks(mesh, -1, rank, ranks));
  assert_memory_equal(ranks, expected, sizeof(int) * (size_t)ms_mesh_count(mesh));
}

/* The coordinate of every rank of a mesh of 4 dimensions, by counting. */
static void count_coordinates(const int *sizes, int (*coordinate)[4]) {
  int c[4] = {0, 0, 0, 0}, world = sizes[0] * sizes[1] * sizes[2] * sizes[3];
  for (int rank = 0; rank < world; rank++) {
    memcpy(coordinate[rank], c, sizeof c);
    for (int d = 3; d >= 0 && ++c[d] == sizes[d]; d--) c[d] = 0;
  }
}

/* The ranks that agree with `rank` in all dimensions outside of `mask`, in order of rank. */
static int list_alike(int (*coordinate)[4], int world, int rank, unsigned mask, int *ranks) {
  int n = 0;
  for (int other = 0; other < world; other++) {
    int alike = 1;
    for (int d = 0; d < 4; d++) alike = alike && (mask >> d & 1 || coordinate[other][d] == coordinate[rank][d]);
    if (alike) ranks[n++] = other;
  }
  return n;
}

static void D4_D7_every_slice_of_meshes_up_to_4096_ranks(void **state) {
  (void)state;
  static const int cases[][4] = {{8, 4, 16, 8}, {2, 3, 5, 7}, {1, 4, 1, 6}, {4, 1, 1, 1}};
  static int coordinate[4096][4], expected[4096], ranks[4096];
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    int world = cases[c][0] * cases[c][1] * cases[c][2] * cases[c][3];
    count_coordinates(cases[c], coordinate);
    ms_mesh *mesh = make(4, cases[c], FOUR, world);
    for (unsigned mask = 1; mask < 16; mask++) {
      const char *names[4];
      int ndim = 0;
      for (int d = 0; d < 4; d++)
        if (mask >> d & 1) names[ndim++] = FOUR[d];
      ms_mesh *part = slice(mesh, ndim, names);
      for (int rank = 0; rank < world; rank += 1 + rank % 97) {
        int n = list_alike(coordinate, world, rank, mask, expected), mine[4];
        assert_int_equal(ms_mesh_count(part), n);
        must(ms_mesh_ranks(part, -1, rank, ranks));
        assert_memory_equal(ranks, expected, sizeof(int) * (size_t)n);
        must(ms_mesh_coordinate(part, rank, mine));
        for (int d = 0, at = 0; d < 4; d++)
          if (mask >> d & 1) assert_int_equal(mine[at++], coordinate[rank][d]);
      }
      ms_free(part);
    }
    ms_free(mesh);
  }
}

static void D5_D7_flattened_pairs_of_dimensions(void **state) {
  (void)state;
  static const int sizes[] = {4, 8, 2, 16};
  static int coordinate[1024][4], expected[1024], ranks[1024];
  count_coordinates(sizes, coordinate);
  ms_mesh *mesh = make(4, sizes, FOUR, 1024);
  for (int a = 0; a < 4; a++)
    for (int b = a + 1; b < 4; b++) {
      char name[] = {(char)('0' + a), (char)('0' + b), 0};
      ms_mesh *pair = slice(mesh, 2, NAMES(FOUR[a], FOUR[b])), *flat = flatten(pair, name);
      ms_mesh *sliced = slice(mesh, 1, NAMES(name));
      for (int rank = 0; rank < 1024; rank += 7) {
        int n = list_alike(coordinate, 1024, rank, 1u << a | 1u << b, expected), mine;
        assert_int_equal(flat->size[0], n);
        must(ms_mesh_ranks(flat, 0, rank, ranks));
        assert_memory_equal(ranks, expected, sizeof(int) * (size_t)n);
        must(ms_mesh_ranks(sliced, 0, rank, ranks));
        assert_memory_equal(ranks, expected, sizeof(int) * (size_t)n);
        must(ms_mesh_coordinate(flat, rank, &mine));
        assert_int_equal(mine, coordinate[rank][a] * sizes[b] + coordinate[rank][b]);
      }
      ms_mesh *back;
      must(ms_mesh_unflatten(flat, 0, 2, SIZES(sizes[a], -1), NAMES(FOUR[a], FOUR[b]), &back));
      assert_string_equal(back->label, pair->label);
      for (int d = 0; d < 2; d++) assert_true(ms_axis_equal(&back->axis[d], &pair->axis[d]));
      ms_free(back);
      ms_free(sliced);
      ms_free(flat);
      ms_free(pair);
    }
  ms_free(mesh);
}

static void D4_slices_of_slices_and_their_order(void **state) {
  (void)state;
  ms_mesh *bad, *mesh = make(3, SIZES(2, 2, 4), NAMES("pipe", "replicate", "shard"), 16);
  ms_mesh *data = slice(mesh, 2, NAMES("replicate", "shard")), *shard = slice(data, 1, NAMES("shard"));
  assert_ranks(data, 11, SIZES(8, 9, 10, 11, 12, 13, 14, 15));
  assert_ranks(shard, 11, SIZES(8, 9, 10, 11));
  assert_string_equal(data->label, "2x4 (replicate, shard)");
  ms_free(mesh); /* in any order */
  assert_ranks(shard, 6, SIZES(4, 5, 6, 7));
  assert_fails(ms_mesh_slice(data, 2, NAMES("shard", "replicate"), &bad), MS_EINVAL,
               "mesh 2x4 (replicate, shard) | \"replicate\" before \"shard\"");
  assert_null(bad);
  assert_fails(ms_mesh_slice(data, 1, NAMES("pipe"), &bad), MS_ENAME,
               "mesh 2x4 (replicate, shard) | \"pipe\" | replicate, shard");
  assert_fails(ms_mesh_slice(data, 2, NAMES("shard", "shard"), &bad), MS_ENAME, "\"shard\" | twice");
  assert_fails(ms_mesh_slice(data, 0, NULL, &bad), MS_EINVAL, "0 names | 1 | 6");
  ms_mesh *unnamed = make(1, SIZES(4), NULL, 4);
  assert_fails(ms_mesh_slice(unnamed, 1, NAMES("shard"), &bad), MS_ENAME, "dimension | no name");
  ms_free(unnamed);
  ms_free(data);
  ms_free(shard);
}

static void D4_dimensions_of_size_one_keep_their_order(void **state) {
  (void)state;
  ms_mesh *bad, *mesh = make(4, SIZES(1, 2, 1, 1), FOUR, 2);
  for (int d = 1; d < 4; d++) {
    ms_free(slice(mesh, 2, NAMES(FOUR[d - 1], FOUR[d])));
    assert_fails(ms_mesh_slice(mesh, 2, NAMES(FOUR[d], FOUR[d - 1]), &bad), MS_EINVAL, "order");
  }
  ms_mesh *all = flatten(mesh, "all");
  assert_int_equal(all->size[0], 2);
  ms_free(all);
  ms_free(mesh);
}

static void D5_flattened_dimensions_in_slices(void **state) {
  (void)state;
  ms_mesh *bad, *mesh = make(4, SIZES(2, 2, 2, 2), FOUR, 16);
  ms_mesh *pair = slice(mesh, 2, NAMES("replicate", "tensor")), *flat = flatten(pair, "rt");
  assert_ranks(flat, 0, SIZES(0, 1, 4, 5));
  assert_ranks(flat, 15, SIZES(10, 11, 14, 15));
  ms_mesh *both = slice(mesh, 2, NAMES("pipe", "rt"));
  assert_ranks(both, 2, SIZES(2, 3, 6, 7, 10, 11, 14, 15));
  ms_mesh *inner = slice(mesh, 2, NAMES("rt", "shard"));
  assert_ranks(inner, 0, SIZES(0, 2, 1, 3, 4, 6, 5, 7));
  assert_fails(ms_mesh_slice(mesh, 2, NAMES("shard", "rt"), &bad), MS_EINVAL, "order");
  assert_fails(ms_mesh_slice(mesh, 2, NAMES("rt", "tensor"), &bad), MS_EINVAL, "\"rt\" | \"tensor\" | ranks");
  ms_mesh *shard = slice(mesh, 1, NAMES("shard"));
  assert_fails(ms_mesh_slice(shard, 1, NAMES("rt"), &bad), MS_ENAME, "mesh 2 (shard) | \"rt\"");
  assert_fails(ms_mesh_slice(mesh, 1, NAMES("rs"), &bad), MS_ENAME, "\"rs\" | pipe, replicate, shard, tensor, rt");
  ms_free(shard);
  ms_free(inner);
  ms_free(both);
  ms_free(flat);
  ms_free(pair);
  ms_free(mesh);
}

static void D5_a_name_keeps_its_meaning(void **state) {
  (void)state;
  ms_mesh *bad, *mesh = make(3, SIZES(2, 2, 2), NAMES("replicate", "shard", "tensor"), 8);
  ms_mesh *data = slice(mesh, 2, NAMES("replicate", "shard")), *inner = slice(mesh, 2, NAMES("shard", "tensor"));
  ms_free(flatten(data, "data"));
  ms_free(flatten(data, "data"));
  assert_fails(ms_mesh_flatten(inner, "data", &bad), MS_ENAME,
               "mesh 2x2 (shard, tensor) | flatten | \"data\" | size 4");
  assert_fails(ms_mesh_flatten(inner, "replicate", &bad), MS_ENAME, "\"replicate\" | dimension 0 | size 2");
  assert_fails(ms_mesh_flatten(inner, "", &bad), MS_ENAME, "flatten | name | empty");
  ms_mesh *shard = slice(mesh, 1, NAMES("shard")), *same = flatten(shard, "shard");
  assert_ranks(same, 7, SIZES(5, 7));
  ms_mesh *four = slice(mesh, 1, NAMES("data"));
  assert_fails(ms_mesh_unflatten(four, 0, 2, SIZES(1, 4), NAMES("replicate", "shard"), &bad), MS_ENAME,
               "unflatten | \"replicate\" | dimension 0 | size 2");
  ms_free(four);
  ms_free(same);
  ms_free(shard);
  ms_free(inner);
  ms_free(data);
  ms_free(mesh);
}

static void D5_unflatten(void **state) {
  (void)state;
  ms_mesh *bad, *made, *world = make(2, SIZES(2, 12), NAMES("pipe", "data"), 24);
  must(ms_mesh_unflatten(world, 1, 3, SIZES(3, -1, 2), NAMES("a", "b", "c"), &made));
  assert_string_equal(made->label, "2x3x2x2 (pipe, a, b, c)");
  int coordinate[4];
  for (int rank = 0; rank < 24; rank++) {
    must(ms_mesh_coordinate(made, rank, coordinate));
    assert_int_equal(coordinate[0] * 12 + coordinate[1] * 4 + coordinate[2] * 2 + coordinate[3], rank);
  }
  ms_mesh *a = slice(world, 1, NAMES("a"));
  assert_ranks(a, 13, SIZES(13, 17, 21));
  ms_free(a);
  ms_free(made);
  assert_fails(ms_mesh_unflatten(world, 1, 2, SIZES(5, 2), NAMES("u", "v"), &bad), MS_EINVAL,
               "mesh 5x2 (u, v) | 10 | unflatten | 12");
  assert_fails(ms_mesh_unflatten(world, 2, 2, SIZES(6, 2), NAMES("u", "v"), &bad), MS_EINVAL, "dimension 2");
  assert_fails(ms_mesh_unflatten(world, 1, 2, SIZES(6, 2), NULL, &bad), MS_ENAME, "name | 2");
  assert_fails(ms_mesh_unflatten(world, 1, 2, SIZES(6, 2), NAMES("u", "u"), &bad), MS_ENAME, "both | \"u\"");
  assert_fails(ms_mesh_unflatten(world, 1, 2, SIZES(6, 2), NAMES("u", "pipe"), &bad), MS_ENAME, "\"pipe\" | two");
  assert_fails(ms_mesh_unflatten(world, 1, 6, SIZES(1, 1, 1, 1, 1, 12), NAMES("u", "v", "w", "x", "y", "z"), &bad),
               MS_EINVAL, "1 | 6 dimensions");
  /* Two modes of 2 and 12 with a hole between them: 3 does not divide the outer one. */
  ms_mesh *three = make(3, SIZES(4, 2, 3), NAMES("p", "q", "r"), 24), *pair = slice(three, 2, NAMES("p", "r"));
  ms_mesh *flat = flatten(pair, "pr");
  assert_fails(ms_mesh_unflatten(flat, 0, 2, SIZES(3, 4), NAMES("u", "v"), &bad), MS_EINVAL,
               "dimension 0 | 3x4 (u, v)");
  must(ms_mesh_unflatten(flat, 0, 2, SIZES(2, 6), NAMES("u", "v"), &made));
  assert_ranks(made, 0, SIZES(0, 1, 2, 6, 7, 8, 12, 13, 14, 18, 19, 20));
  ms_free(made);
  ms_free(flat);
  ms_free(pair);
  ms_free(three);
  ms_free(world);
}

static void D6_ranks_chosen_by_hand(void **state) {
  (void)state;
  ms_mesh *bad, *mesh;
  must(ms_mesh_new(MS_DEVICE_CPU, 2, SIZES(2, -1), NAMES("replicate", "shard"), 8, 6, SIZES(7, 1, 3, 2, 6, 0), &mesh));
  int ranks[6], coordinate[2];
  must(ms_mesh_ranks(mesh, 1, 6, ranks));
  assert_memory_equal(ranks, SIZES(2, 6, 0), 3 * sizeof(int));
  must(ms_mesh_ranks(mesh, 0, 6, ranks));
  assert_memory_equal(ranks, SIZES(1, 6), 2 * sizeof(int));
  must(ms_mesh_coordinate(mesh, 6, coordinate));
  assert_memory_equal(coordinate, SIZES(1, 1), 2 * sizeof(int));
  must(ms_mesh_ranks(mesh, 0, -1, ranks));
  assert_memory_equal(ranks, SIZES(7, 2, 1, 6, 3, 0), 6 * sizeof(int));
  assert_int_equal(ms_mesh_contains(mesh, 4), 0);
  assert_int_equal(ms_mesh_contains(mesh, 8), 0);
  assert_int_equal(ms_mesh_contains(mesh, 7), 1);
  assert_fails(ms_mesh_coordinate(mesh, 4, coordinate), MS_EINVAL,
               "rank 4 | mesh 2x3 (replicate, shard) | 7, 1, 3, 2, 6, 0");
  ms_free(mesh);
  assert_fails(ms_mesh_new(MS_DEVICE_CPU, 1, SIZES(2), NULL, 2, 2, SIZES(1, 1), &bad), MS_EINVAL,
               "mesh 2 | rank 1 | twice");
  assert_fails(ms_mesh_new(MS_DEVICE_CPU, 1, SIZES(2), NULL, 2, 2, SIZES(0, 2), &bad), MS_EINVAL,
               "mesh 2 | rank 2 | world | 0 to 1");
  const char *const pair[2] = {"replicate", "shard"};
  assert_fails(ms_mesh_new(MS_DEVICE_CPU, 2, SIZES(-1, 2), pair, 2, 0, SIZES(0), &bad), MS_EINVAL, "0 | 2");
  assert_fails(ms_mesh_new(MS_DEVICE_CPU, 2, SIZES(-1, 2), pair, 2, -2, SIZES(0), &bad), MS_EINVAL, "-2 | 2");
  assert_fails(ms_mesh_new(MS_DEVICE_CPU, 1, SIZES(INT_MAX), NULL, 2, INT_MAX, SIZES(0), &bad), MS_EINVAL,
               "2147483647 | 2");
  assert_fails(ms_mesh_new(MS_DEVICE_CPU, 1, SIZES(3), NULL, 2, 2, SIZES(0, 1), &bad), MS_EINVAL,
               "mesh 3 | 3 ranks | 2");
}

static void D12_nodes_of_different_sizes(void **state) {
  (void)state;
  ms_mesh *mesh = make(2, SIZES(3, 2), NAMES("replicate", "shard"), 6);
  must(ms_mesh_check_nodes(mesh, 1, 2, SIZES(0, 0, 0, 1, 1, 1), NULL));
  must(ms_mesh_check_nodes(mesh, 1, 2, SIZES(0, 0, 0, 0, 1, 1), NULL));
  must(ms_mesh_check_nodes(mesh, 1, 1, SIZES(0, 0, 0, 0, 0, 0), NULL));
  assert_fails(ms_mesh_check_nodes(mesh, 1, 3, SIZES(0, 0, 0, 1, 1, 2), NULL), MS_EINVAL,
               "mesh 3x2 (replicate, shard) | shard | size 2 | node 0 has 3 ranks, node 1 has 2 ranks, node 2 has 1 "
               "rank | ranks 2 and 3 | nodes 0 and 1");
  assert_fails(ms_mesh_check_nodes(mesh, 1, 2, SIZES(0, 0, 0, 2, 1, 1), NULL), MS_EINVAL, "rank 3 | node 2");
  assert_fails(ms_mesh_check_nodes(mesh, 1, 0, SIZES(0, 0, 0, 0, 0, 0), NULL), MS_EINVAL, "1 node");
  assert_fails(ms_mesh_check_nodes(mesh, 2, 1, SIZES(0, 0, 0, 0, 0, 0), NULL), MS_EINVAL, "dimension 2");
  ms_free(mesh);
  mesh = make(2, SIZES(1, 6), NAMES("replicate", "shard"), 6);
  /* one group: nothing to be unequal with */
  must(ms_mesh_check_nodes(mesh, 1, 3, SIZES(0, 0, 0, 1, 1, 2), NULL));
  ms_free(mesh);
}

static void D12_names_the_nodes_wherever_their_ranks_are(void **state) {
  (void)state;
  ms_mesh *mesh = make(2, SIZES(2, 3), NAMES("replicate", "shard"), 6);
  assert_fails(ms_mesh_check_nodes(mesh, 1, 2, SIZES(0, 0, 1, 1, 1, 1), NAMES("left", "right")), MS_EINVAL,
               "node 0 (left) has 2 ranks, node 1 (right) has 4 ranks | ranks 0 and 2 | nodes 0 and 1 | divisor of 2");
  /* dealt out in turn: the borders are not where the counts alone would put them */
  assert_int_equal(ms_mesh_check_nodes(mesh, 1, 2, SIZES(0, 0, 0, 1, 0, 1), NULL), MS_EINVAL);
  assert_null(strstr(ms_error_message(), "divisor"));
  assert_fails(ms_error_code(), MS_EINVAL, "ranks 3 and 4 | nodes 1 and 0");
  /* groups that are no runs of ranks: a smaller size would not keep them together */
  assert_int_equal(ms_mesh_check_nodes(mesh, 0, 2, SIZES(0, 0, 1, 1, 1, 1), NULL), MS_EINVAL);
  assert_null(strstr(ms_error_message(), "divisor"));
  assert_fails(ms_error_code(), MS_EINVAL, "ranks 0 and 3 | nodes 0 and 1");
  ms_free(mesh);
}

/* The best of many: what the machine can do, however loaded it is. */
static void D4_copies_of_a_slice(void **state) {
  (void)state;
  ms_mesh *mesh, *slice, *data;
  must(ms_mesh_new(MS_DEVICE_CPU, 4, (int[]){2, 3, 4, 5}, FOUR, 120, 0, NULL, &mesh));
  must(ms_mesh_slice(mesh, 2, FOUR + 1, &slice)); /* replicate, shard */
  assert_int_equal(ms_mesh_copies(slice, "pipe"), 2);
  assert_int_equal(ms_mesh_copies(slice, "tensor"), 5);
  assert_int_equal(ms_mesh_copies(slice, "shard"), 1);
  assert_int_equal(ms_mesh_copies(slice, "nothing"), 1);
  assert_int_equal(ms_mesh_copies(mesh, "pipe"), 1);
  must(ms_mesh_flatten(slice, "data", &data));
  assert_int_equal(ms_mesh_copies(data, "pipe"), 2);
  assert_int_equal(ms_mesh_copies(data, "replicate"), 1);
  ms_free(data);
  must(ms_mesh_slice(mesh, 1, FOUR, &data)); /* pipe */
  assert_int_equal(ms_mesh_copies(data, "data"), 12);
  ms_free(data);
  ms_free(slice);
  ms_free(mesh);
}

static void D7_4096_ranks_are_laid_out_in_under_5_ms(void **state) {
  (void)state;
  static int ranks[4096];
  double best = 1;
  for (int round = 0; round < 20; round++) {
    double began = ms_clock();
    ms_mesh *mesh = make(4, SIZES(8, 4, 16, 8), FOUR, 4096);
    for (unsigned mask = 1; mask < 16; mask++) {
      const char *names[4];
      int ndim = 0;
      for (int d = 0; d < 4; d++)
        if (mask >> d & 1) names[ndim++] = FOUR[d];
      ms_mesh *part = slice(mesh, ndim, names);
      must(ms_mesh_ranks(part, -1, 1234, ranks));
      ms_free(part);
    }
    for (int d = 0; d < 4; d++) must(ms_mesh_ranks(mesh, d, -1, ranks));
    ms_free(mesh);
    double seconds = ms_clock() - began;
    if (seconds < best) best = seconds;
  }
  print_message("# 4096 ranks, 4 dimensions: every slice and every group in %.3f ms\n", best * 1e3);
  if (!getenv("MOONSHARD_CONFIG") || !strcmp(getenv("MOONSHARD_CONFIG"), "release")) assert_true(best < 5e-3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(D4_D7_every_slice_of_meshes_up_to_4096_ranks),
      TEST(D5_D7_flattened_pairs_of_dimensions),
      TEST(D4_slices_of_slices_and_their_order),
      TEST(D4_copies_of_a_slice),
      TEST(D4_dimensions_of_size_one_keep_their_order),
      TEST(D5_flattened_dimensions_in_slices),
      TEST(D5_a_name_keeps_its_meaning),
      TEST(D5_unflatten),
      TEST(D6_ranks_chosen_by_hand),
      TEST(D12_nodes_of_different_sizes),
      TEST(D12_names_the_nodes_wherever_their_ranks_are),
      TEST(D7_4096_ranks_are_laid_out_in_under_5_ms),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
