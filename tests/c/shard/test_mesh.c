/* test_mesh.c - layout of ranks, groups, inference, and every refusal with its text. */
#include "mesh/mesh.h"

#include "tests/c/support/check.h"

#include <limits.h>

#define SIZES(...) \
  (const int[]) { __VA_ARGS__ }
#define NAMES(...) \
  (const char *const[]) { __VA_ARGS__ }

static ms_mesh *make(int ndim, const int *sizes, const char *const *names, int world) {
  ms_mesh *mesh;
  if (ms_mesh_new(MS_DEVICE_CPU, ndim, sizes, names, world, 0, NULL, &mesh)) fail_msg("%s", ms_error_message());
  return mesh;
}

static void assert_group(const ms_mesh *mesh, int dim, int rank, const int *expected) {
  int ranks[16];
  assert_int_equal(ms_mesh_ranks(mesh, dim, rank, ranks), MS_OK);
  assert_memory_equal(ranks, expected, sizeof(int) * (size_t)mesh->size[dim]);
}

static void D1_row_major_layout(void **state) {
  (void)state;
  ms_mesh *mesh = make(2, SIZES(2, 3), NAMES("replicate", "shard"), 6);
  ms_mesh_info info;
  assert_int_equal(ms_mesh_describe(mesh, &info, sizeof info), MS_OK);
  assert_int_equal(info.ndim, 2);
  assert_int_equal(info.world, 6);
  assert_int_equal(info.count, 6);
  assert_int_equal(info.root_count, 6);
  assert_memory_equal(info.size, SIZES(2, 3, 0, 0, 0, 0), sizeof info.size);
  assert_string_equal(info.name[0], "replicate");
  assert_string_equal(info.name[1], "shard");
  assert_string_equal(info.name[2], "");
  assert_string_equal(mesh->label, "2x3 (replicate, shard)");
  for (int rank = 0; rank < 6; rank++) {
    int coordinate[2];
    assert_int_equal(ms_mesh_coordinate(mesh, rank, coordinate), MS_OK);
    assert_int_equal(coordinate[0], rank / 3);
    assert_int_equal(coordinate[1], rank % 3);
  }
  ms_free(mesh);
}

/* A program of an older header gets the fields that it knows, one of a newer header zeros for those that it alone has.
 */
static void structs_of_other_headers_are_filled(void **state) {
  (void)state;
  struct {
    ms_mesh_info known;
    int more;
  } newer = {.more = 7};
  ms_mesh_info older;
  ms_mesh *mesh = make(1, SIZES(4), NULL, 4);
  must(ms_mesh_describe(mesh, &newer.known, sizeof newer));
  assert_int_equal(newer.known.world, 4);
  assert_int_equal(newer.more, 0);
  memset(&older, 0x7f, sizeof older);
  must(ms_mesh_describe(mesh, &older, offsetof(ms_mesh_info, world)));
  assert_int_equal(older.count, 4);
  assert_int_equal(older.world, 0x7f7f7f7f);
  assert_fails(ms_mesh_describe(mesh, &older, 0), MS_EINVAL, "size | 0");
  assert_fails(ms_mesh_describe(mesh, &older, 1 << 20), MS_EINVAL, "size | 1048576");
  ms_free(mesh);
}

static void D1_names_are_optional_for_one_dimension(void **state) {
  (void)state;
  ms_mesh *mesh = make(1, SIZES(4), NULL, 4);
  ms_mesh_info info;
  assert_int_equal(ms_mesh_describe(mesh, &info, sizeof info), MS_OK);
  assert_string_equal(info.name[0], "");
  assert_string_equal(mesh->label, "4");
  ms_free(mesh);
  mesh = make(1, SIZES(4), NAMES(NULL), 4);
  assert_int_equal(ms_mesh_describe(mesh, &info, sizeof info), MS_OK);
  assert_string_equal(info.name[0], "");
  ms_free(mesh);
  ms_free(NULL);
}

static void D1_one_size_is_inferred(void **state) {
  (void)state;
  ms_mesh *mesh = make(3, SIZES(2, -1, 4), NAMES("a", "b", "c"), 24);
  assert_int_equal(mesh->size[1], 3);
  assert_string_equal(mesh->label, "2x3x4 (a, b, c)");
  ms_free(mesh);
  mesh = make(1, SIZES(-1), NULL, 7);
  assert_int_equal(mesh->size[0], 7);
  ms_free(mesh);
  mesh = make(2, SIZES(-1, 4), NAMES("a", "b"), 4);
  assert_int_equal(mesh->size[0], 1);
  ms_free(mesh);
}

static void D2_groups_of_a_2x4_mesh(void **state) {
  (void)state;
  ms_mesh *mesh = make(2, SIZES(2, 4), NAMES("replicate", "shard"), 8);
  assert_group(mesh, 1, 0, SIZES(0, 1, 2, 3));
  assert_group(mesh, 1, 3, SIZES(0, 1, 2, 3));
  assert_group(mesh, 1, 6, SIZES(4, 5, 6, 7));
  for (int rank = 0; rank < 8; rank++) assert_group(mesh, 0, rank, SIZES(rank % 4, rank % 4 + 4));
  ms_free(mesh);
}

static void D7_groups_partition_up_to_4096_ranks(void **state) {
  (void)state;
  static const struct {
    int ndim, sizes[6], world;
  } cases[] = {{1, {4096}, 4096},
               {3, {4, 8, 5}, 160},
               {4, {8, 4, 16, 8}, 4096},
               {6, {4, 4, 4, 4, 4, 4}, 4096},
               {6, {1, 2, 1, 3, 1, 5}, 30}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    int ndim = cases[c].ndim, world = cases[c].world;
    ms_mesh *mesh = make(ndim, cases[c].sizes, NAMES("pipe", "replicate", "shard", "tensor", "e", "f"), world);
    for (int dim = 0; dim < ndim; dim++) {
      static int times[4096], ranks[4096];
      memset(times, 0, sizeof times);
      int size = mesh->size[dim];
      for (int rank = 0; rank < world; rank++) {
        int mine[6], other[6];
        assert_int_equal(ms_mesh_coordinate(mesh, rank, mine), MS_OK);
        assert_int_equal(ms_mesh_ranks(mesh, dim, rank, ranks), MS_OK);
        assert_int_equal(ranks[mine[dim]], rank);
        if (mine[dim] != 0) continue;
        for (int i = 0; i < size; i++) {
          assert_int_equal(ms_mesh_coordinate(mesh, ranks[i], other), MS_OK);
          for (int d = 0; d < ndim; d++) assert_int_equal(other[d], d == dim ? i : mine[d]);
          times[ranks[i]]++;
        }
      }
      for (int rank = 0; rank < world; rank++) assert_int_equal(times[rank], 1);
    }
    ms_free(mesh);
  }
}

static void D8_dimensions_of_size_one(void **state) {
  (void)state;
  ms_mesh *mesh = make(2, SIZES(1, 4), NAMES("replicate", "shard"), 4);
  for (int rank = 0; rank < 4; rank++) assert_group(mesh, 0, rank, SIZES(rank));
  assert_group(mesh, 1, 2, SIZES(0, 1, 2, 3));
  ms_free(mesh);
  mesh = make(2, SIZES(1, 1), NAMES("replicate", "shard"), 1);
  assert_group(mesh, 0, 0, SIZES(0));
  ms_free(mesh);
}

#define assert_refused(ndim, sizes, names, world, status, text) \
  assert_fails(ms_mesh_new(MS_DEVICE_CPU, ndim, sizes, names, world, 0, NULL, &mesh), status, text)

static void D9_sizes_that_do_not_fit(void **state) {
  (void)state;
  ms_mesh *mesh;
  assert_refused(2, SIZES(2, 3), NAMES("replicate", "shard"), 4, MS_EINVAL,
                 "mesh 2x3 (replicate, shard) | 6 ranks | 4 | -n 6");
  assert_null(mesh);
  assert_refused(1, SIZES(1), NULL, 4, MS_EINVAL, "mesh 1 | 1 rank | 4 | -n 1");
  assert_refused(2, SIZES(-1, -1), NAMES("a", "b"), 4, MS_EINVAL, "mesh -1x-1 (a, b) | 0 and 1 | -1 | inferred");
  assert_refused(2, SIZES(-1, 3), NAMES("a", "b"), 4, MS_EINVAL, "mesh -1x3 (a, b) | dimension 0 | inferred | 3 | 4");
  assert_refused(2, SIZES(-1, 8), NAMES("a", "b"), 4, MS_EINVAL, "divide | 4");
  assert_refused(2, SIZES(0, 4), NAMES("a", "b"), 4, MS_EINVAL, "mesh 0x4 (a, b) | 0 | dimension 0 | 1 | -1");
  assert_refused(2, SIZES(4, -2), NAMES("a", "b"), 4, MS_EINVAL, "-2 | dimension 1");
  assert_refused(6, SIZES(INT_MAX, INT_MAX, INT_MAX, INT_MAX, INT_MAX, INT_MAX), NAMES("a", "b", "c", "d", "e", "f"), 4,
                 MS_EINVAL, "world | 4");
  assert_refused(3, SIZES(INT_MAX, INT_MAX, -1), NAMES("a", "b", "c"), 4, MS_EINVAL, "divide | 4");
  assert_refused(0, SIZES(1), NULL, 1, MS_EINVAL, "mesh | 0 dimensions | 1 | 6");
  assert_refused(7, SIZES(1, 1, 1, 1, 1, 1, 1), NULL, 1, MS_EINVAL, "mesh | 7 dimensions | 1 | 6");
  assert_refused(1, SIZES(4097), NULL, 4097, MS_EINVAL, "4097 ranks | 1 | 4096");
  assert_refused(1, SIZES(-1), NULL, 0, MS_EINVAL, "0 ranks");
}

static void D9_names_that_do_not_fit(void **state) {
  (void)state;
  ms_mesh *mesh;
  assert_refused(2, SIZES(2, 2), NAMES("shard", "shard"), 4, MS_ENAME, "mesh 2x2 (shard, shard) | 0 and 1 | \"shard\"");
  assert_refused(2, SIZES(2, 2), NULL, 4, MS_ENAME, "mesh 2x2 | 2 dimensions | name");
  assert_refused(2, SIZES(2, 2), NAMES(NULL, NULL), 4, MS_ENAME, "mesh 2x2 | 2 dimensions | name");
  assert_refused(2, SIZES(2, 2), NAMES("shard", NULL), 4, MS_ENAME, "mesh 2x2 (shard) | 2 dimensions | 1 name");
  assert_refused(3, SIZES(1, 2, 2), NAMES("a", "b", NULL), 4, MS_ENAME, "mesh 1x2x2 (a, b) | 3 dimensions | 2 names");
  assert_refused(2, SIZES(2, 2), NAMES("a", ""), 4, MS_ENAME, "name | dimension 1 | empty");
  char endless[400];
  memset(endless, 'n', sizeof endless - 1);
  endless[sizeof endless - 1] = '\0';
  assert_refused(2, SIZES(2, 3), NAMES(endless, "shard"), 4, MS_EINVAL, "... | 6 ranks");
}

static void D9_unknown_names_ranks_and_dimensions(void **state) {
  (void)state;
  ms_mesh *mesh = make(2, SIZES(2, 2), NAMES("replicate", "shard"), 4);
  int ranks[2];
  assert_fails(ms_mesh_coordinate(mesh, 4, ranks), MS_EINVAL, "rank 4 | mesh 2x2 (replicate, shard) | 0 to 3");
  assert_fails(ms_mesh_coordinate(mesh, -1, ranks), MS_EINVAL, "rank -1");
  assert_fails(ms_mesh_ranks(mesh, 0, 4, ranks), MS_EINVAL, "rank 4");
  assert_fails(ms_mesh_ranks(mesh, 2, 0, ranks), MS_EINVAL, "dimension 2 | mesh 2x2 (replicate, shard) | 0 to 1");
  assert_fails(ms_mesh_ranks(mesh, -2, 0, ranks), MS_EINVAL, "dimension -2");
  ms_free(mesh);
}

static void D9_devices(void **state) {
  (void)state;
  ms_mesh *mesh;
  must(ms_mesh_new(MS_DEVICE_CUDA, 1, SIZES(1), NULL, 1, 0, NULL, &mesh));
  ms_free(mesh);
  assert_fails(ms_mesh_new(2, 1, SIZES(1), NULL, 1, 0, NULL, &mesh), MS_EINVAL, "device 2 | ms_device_kind");
  assert_fails(ms_mesh_new(-1, 1, SIZES(1), NULL, 1, 0, NULL, &mesh), MS_EINVAL, "device -1");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(D1_row_major_layout),
      TEST(structs_of_other_headers_are_filled),
      TEST(D1_names_are_optional_for_one_dimension),
      TEST(D1_one_size_is_inferred),
      TEST(D2_groups_of_a_2x4_mesh),
      TEST(D7_groups_partition_up_to_4096_ranks),
      TEST(D8_dimensions_of_size_one),
      TEST(D9_sizes_that_do_not_fit),
      TEST(D9_names_that_do_not_fit),
      TEST(D9_unknown_names_ranks_and_dimensions),
      TEST(D9_devices),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
