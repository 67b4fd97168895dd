/* test_safetensors_write.c - the writer: elements in any order, files that are whole or not there, refusals, errors of
 * the disk; and the ranges by which it knows what is missing. */
#include "io/ranges.h"
#include "scratch_folder.h"
#include "tests/c/support/mapped.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const int64_t two_by_three[] = {2, 3}, three[] = {3}, none[] = {0, 5};
static const ms_safetensors_tensor declared[] = {
    {.name = "z", .dtype = "U8", .ndim = 1, .dims = three},
    {.name = "b.weight", .dtype = "F32", .ndim = 2, .dims = two_by_three},
    {.name = "scalar", .dtype = "F64"},
    {.name = "a.weight", .dtype = "F32", .ndim = 2, .dims = two_by_three},
    {.name = "none", .dtype = "BF16", .ndim = 2, .dims = none},
};

static ms_safetensors_writer *start(const char *name, const ms_safetensors_config *config) {
  ms_safetensors_writer *w = NULL;
  must(ms_safetensors_create(in_folder(name), 5, declared, sizeof(ms_safetensors_tensor), config, &w));
  return w;
}

static void put_all(ms_safetensors_writer *w) {
  const double scalar = 2.5;
  const float a[] = {1, 2, 3, 4, 5, 6}, b[] = {-1, -2, -3, -4, -5, -6};
  must(ms_safetensors_write(w, 1, NULL, 8, 16, b + 2));
  must(ms_safetensors_write(w, 0, NULL, 2, 1, "3"));
  must(ms_safetensors_write(w, 2, NULL, 0, 8, &scalar));
  must(ms_safetensors_write(w, 0, NULL, 0, 2, "12"));
  must(ms_safetensors_write(w, 3, NULL, 0, 24, a));
  must(ms_safetensors_write(w, 1, NULL, 0, 8, b));
  must(ms_safetensors_write(w, 4, NULL, 0, 0, NULL));
}

static void K5_elements_written_in_any_order_are_read_back(void **state) {
  (void)state;
  static const char *const texts[] = {"format", "pt", "note", "caf\xc3\xa9 \"x\"\n"};
  for (int atomic = 0; atomic < 2; atomic++) {
    ms_safetensors_config config = {.struct_size = sizeof(ms_safetensors_config),
                                    .metadata = 2,
                                    .metadata_text = texts,
                                    .atomic = atomic,
                                    .sync = atomic};
    ms_safetensors_writer *w = start("written", &config);
    assert_int_equal(access(in_folder("written"), F_OK), atomic ? -1 : 0);
    put_all(w);
    must(ms_safetensors_finish(w));
    ms_safetensors *st;
    int tensors;
    must(ms_safetensors_open(in_folder("written"), &st, &tensors));
    assert_int_equal(tensors, 5);
    static const char *const order[] = {"a.weight", "b.weight", "none", "scalar", "z"};
    for (int i = 0; i < 5; i++) {
      ms_safetensors_tensor t;
      must(ms_safetensors_describe(st, i, &t, sizeof t));
      assert_string_equal(t.name, order[i]);
      assert_int_equal(t.offset % (t.bits / 8), 0);
    }
    assert_true(((const float *)mapped(st, 1))[5] == -6);
    assert_true(*(const double *)mapped(st, 3) == 2.5);
    assert_memory_equal(mapped(st, 4), "123", 3);
    const char *key, *value, *file;
    must(ms_safetensors_metadata(st, 1, &key, &value, &file));
    assert_string_equal(value, texts[3]);
    ms_free(st);
    unlink(in_folder("written"));
  }
}

static void K5_an_unfinished_file_leaves_nothing(void **state) {
  (void)state;
  ms_safetensors_writer *w = start("given_up", NULL);
  put_all(w);
  ms_free(w);
  ms_free(NULL);
  w = start("not_whole", NULL);
  must(ms_safetensors_write(w, 0, NULL, 0, 3, "123"));
  must(ms_safetensors_write(w, 2, NULL, 0, 8, "12345678"));
  must(ms_safetensors_write(w, 3, NULL, 0, 23, "12345678901234567890123"));
  assert_fails(ms_safetensors_finish(w), MS_EINVAL, "\"a.weight\" | 23 to 24");
  must(mkdir(in_folder("taken"), 0700));
  w = start("taken", NULL);
  put_all(w);
  assert_fails(ms_safetensors_finish(w), MS_EIO, "renam");
  rmdir(in_folder("taken"));
  assert_int_equal(rmdir(folder), 0);
  must(mkdir(folder, 0700));
}

static void K5_an_existing_file_stays_until_the_new_one_is_complete(void **state) {
  (void)state;
  ms_safetensors *st;
  int tensors;
  ms_safetensors_writer *w = start("model", NULL);
  put_all(w);
  must(ms_safetensors_finish(w));
  must(ms_safetensors_create(in_folder("model"), 0, NULL, 0, NULL, &w));
  must(ms_safetensors_open(in_folder("model"), &st, &tensors));
  assert_int_equal(tensors, 5);
  must(ms_safetensors_finish(w));
  assert_memory_equal(mapped(st, 4), "123", 3);
  ms_free(st);
  must(ms_safetensors_open(in_folder("model"), &st, &tensors));
  assert_int_equal(tensors, 0);
  ms_free(st);
  unlink(in_folder("model"));
}

static void K5_the_writer_refuses_impossible_tensors(void **state) {
  (void)state;
  ms_safetensors_writer *w = start("w", NULL);
  assert_fails(ms_safetensors_write(w, 5, NULL, 0, 1, "1"), MS_EINVAL, "tensor number 5 | 0");
  assert_fails(ms_safetensors_write(w, 0, NULL, 2, 2, "12"), MS_EINVAL, "2 bytes | byte 2 | 3");
  assert_fails(ms_safetensors_write(w, 0, NULL, -1, 1, "1"), MS_EINVAL, "byte -1");
  assert_fails(ms_safetensors_write(w, 0, NULL, INT64_MAX, INT64_MAX, "1"), MS_EINVAL, "3");
  must(ms_safetensors_write(w, 0, NULL, 0, 2, "12"));
  assert_fails(ms_safetensors_write(w, 0, NULL, 1, 2, "23"), MS_EINVAL, "\"z\" | 1 to 3");
  ms_free(w);

  const int64_t huge[] = {INT64_C(1) << 40, INT64_C(1) << 40}, wide[] = {INT64_C(1) << 62}, minus[] = {-1};
  ms_safetensors_tensor bad[] = {{.name = "a", .dtype = "U8", .ndim = 1, .dims = wide}, {.name = "a", .dtype = "U8"}};
  assert_fails(ms_safetensors_create(in_folder("x"), 2, bad, sizeof(ms_safetensors_tensor), NULL, &w), MS_EINVAL,
               "63 bits");
  assert_null(w);
  bad[0].dims = three;
  assert_fails(ms_safetensors_create(in_folder("x"), 2, bad, sizeof(ms_safetensors_tensor), NULL, &w), MS_EINVAL,
               "\"a\" | in use");
  bad[1].name = "\xff";
  assert_fails(ms_safetensors_create(in_folder("x"), 2, bad, sizeof(ms_safetensors_tensor), NULL, &w), MS_EINVAL,
               "UTF-8");
  bad[1].name = "__metadata__";
  assert_fails(ms_safetensors_create(in_folder("x"), 2, bad, sizeof(ms_safetensors_tensor), NULL, &w), MS_EINVAL,
               "__metadata__ | name");
  bad[1].name = NULL;
  assert_fails(ms_safetensors_create(in_folder("x"), 2, bad, sizeof(ms_safetensors_tensor), NULL, &w), MS_EINVAL,
               "tensor number 1 | name");
  bad[0].dtype = "f32";
  assert_fails(ms_safetensors_create(in_folder("x"), 1, bad, sizeof(ms_safetensors_tensor), NULL, &w), MS_EINVAL,
               "tensor | a | dtype | f32");
  bad[0] = (ms_safetensors_tensor){.name = "a", .dtype = "U8", .ndim = 2, .dims = huge};
  assert_fails(ms_safetensors_create(in_folder("x"), 1, bad, sizeof(ms_safetensors_tensor), NULL, &w), MS_EINVAL,
               "63 bits");
  bad[0] = (ms_safetensors_tensor){.name = "a", .dtype = "U8", .ndim = 1, .dims = minus};
  assert_fails(ms_safetensors_create(in_folder("x"), 1, bad, sizeof(ms_safetensors_tensor), NULL, &w), MS_EINVAL,
               "dimension 0 | -1");
  assert_fails(ms_safetensors_create(in_folder("x/y"), 0, NULL, 0, NULL, &w), MS_EIO, "No such file");
  static const char *const twice[] = {"k", "1", "k", "2"};
  ms_safetensors_config config = {
      .struct_size = sizeof(ms_safetensors_config), .metadata = 2, .metadata_text = twice, .atomic = 1};
  assert_fails(ms_safetensors_create(in_folder("x"), 0, NULL, 0, &config, &w), MS_EINVAL,
               "__metadata__ | \"k\" | in use");
}

static void K5_a_device_is_not_replaced(void **state) {
  (void)state;
  ms_safetensors_writer *w;
  const ms_safetensors_config config = {.struct_size = sizeof(ms_safetensors_config), .atomic = 0};
  must(mkfifo(in_folder("pipe"), 0600));
  int reader = open(in_folder("pipe"), O_RDONLY | O_NONBLOCK);
  assert_fails(ms_safetensors_create(in_folder("pipe"), 0, NULL, 0, &config, &w), MS_EINVAL, "file");
  close(reader);
  assert_int_equal(unlink(in_folder("pipe")), 0);
}

/* Writes beyond the allowed file size fail, as they do on a full disk. */
static void K5_a_failed_write_is_an_error_that_stays(void **state) {
  (void)state;
  struct rlimit before, small;
  ms_safetensors_writer *w = start("w", NULL);
  must(getrlimit(RLIMIT_FSIZE, &before));
  small = (struct rlimit){.rlim_cur = 16, .rlim_max = before.rlim_max};
  signal(SIGXFSZ, SIG_IGN);
  must(setrlimit(RLIMIT_FSIZE, &small));
  int rc = ms_safetensors_write(w, 0, NULL, 0, 3, "123");
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
  assert_int_equal(rc, MS_EIO);
  assert_has(ms_error_message(), "File too large");
  ms_error_clear();
  assert_fails(ms_safetensors_finish(w), MS_EIO, "earlier write");
  assert_int_equal(access(in_folder("w"), F_OK), -1);
}

/* ---- ranges ---- */

static void K5_ranges_join_and_know_their_gaps(void **state) {
  (void)state;
  static const ms_range adds[] = {{10, 20}, {30, 40}, {0, 5}, {20, 30}, {50, 51}, {5, 10}};
  ms_ranges ranges = {0};
  ms_range gap;
  int taken;
  assert_true(ms_ranges_gap(&ranges, 60, &gap));
  assert_int_equal(gap.end, 60);
  for (int i = 0; i < 6; i++) {
    must(ms_ranges_add(&ranges, adds[i].begin, adds[i].end, &taken));
    assert_false(taken);
  }
  assert_int_equal(ranges.n, 2);
  assert_true(ms_ranges_gap(&ranges, 60, &gap));
  assert_int_equal(gap.begin, 40);
  assert_int_equal(gap.end, 50);
  assert_false(ms_ranges_gap(&ranges, 40, &gap));
  static const ms_range taken_ranges[] = {{0, 1}, {39, 41}, {45, 51}, {0, 100}, {49, 60}};
  for (int i = 0; i < 5; i++) {
    must(ms_ranges_add(&ranges, taken_ranges[i].begin, taken_ranges[i].end, &taken));
    assert_true(taken);
  }
  assert_int_equal(ranges.n, 2);
  ms_ranges_free(&ranges);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(K5_elements_written_in_any_order_are_read_back),
      TEST(K5_an_unfinished_file_leaves_nothing),
      TEST(K5_an_existing_file_stays_until_the_new_one_is_complete),
      TEST(K5_the_writer_refuses_impossible_tensors),
      TEST(K5_a_device_is_not_replaced),
      TEST(K5_a_failed_write_is_an_error_that_stays),
      TEST(K5_ranges_join_and_know_their_gaps),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
