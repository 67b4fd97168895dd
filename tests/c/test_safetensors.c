/* test_safetensors.c - the committed files: every good one is read, every bad one refused with its name; the writer. */
#include "io/ranges.h"
#include "tests/c/support/check.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIXTURES "tests/fixtures/safetensors/"

static char folder[] = "/tmp/moonshard-safetensors-XXXXXX";

static int make_folder(void **state) {
  (void)state;
  return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
  (void)state;
  return rmdir(folder); /* fails when a test left a file behind */
}

static const char *in_folder(const char *name) {
  static char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

/* Calls `see` for every .safetensors file of a fixture folder; gives how many there were. */
static int each_file(const char *in, void (*see)(const char *path, const char *name)) {
  DIR *entries = opendir(in);
  assert_non_null(entries);
  int n = 0;
  for (struct dirent *entry; (entry = readdir(entries));) {
    char path[512];
    if (!strstr(entry->d_name, ".safetensors")) continue;
    snprintf(path, sizeof path, "%s%s", in, entry->d_name);
    see(path, entry->d_name);
    n++;
  }
  closedir(entries);
  return n;
}

static void see_good(const char *path, const char *name) {
  (void)name;
  ms_safetensors *st;
  must(ms_safetensors_open(path, &st));
  for (int i = 0; i < ms_safetensors_count(st); i++) {
    ms_safetensors_tensor t;
    char hex[17];
    must(ms_safetensors_describe(st, i, &t));
    assert_int_equal(ms_safetensors_find(st, t.name), i);
    must(ms_safetensors_checksum(st, i, hex));
    assert_int_equal(strlen(hex), 16);
    unsigned char *copy = malloc((size_t)t.bytes + 1);
    must(ms_safetensors_read(st, i, 0, t.bytes, copy));
    assert_memory_equal(copy, ms_safetensors_data(st, i), t.bytes);
    assert_fails(ms_safetensors_read(st, i, 1, t.bytes, copy), MS_EINVAL, "has");
    free(copy);
  }
  ms_safetensors_close(st);
}

static void K5_every_good_file_is_read(void **state) {
  (void)state;
  assert_int_equal(each_file(FIXTURES "good/", see_good), 10);
}

static void see_bad(const char *path, const char *name) {
  ms_safetensors *st;
  int rc = ms_safetensors_open(path, &st);
  if (rc != MS_EINVAL) fail_msg("%s: %s, not MS_EINVAL: %s", name, ms_status_name(rc), ms_error_message());
  assert_null(st);
  assert_has(ms_error_message(), path);
  ms_error_clear();
}

static void K5_every_bad_file_is_refused(void **state) {
  (void)state;
  assert_int_equal(each_file(FIXTURES "bad/", see_bad), 81);
}

static void refused(const char *file, const char *why) {
  char path[512];
  ms_safetensors *st;
  snprintf(path, sizeof path, FIXTURES "bad/%s.safetensors", file);
  assert_fails(ms_safetensors_open(path, &st), MS_EINVAL, why);
}

static void K5_a_refusal_names_the_field_and_what_would_be_right(void **state) {
  (void)state;
  refused("empty_file", "0 bytes | 8");
  refused("no_header", "header | {");
  refused("space_first", "header | {");
  refused("length_beyond_file", "header | 3 | 2 bytes");
  refused("length_100_million_and_1", "header | 100000001 | 100000000");
  refused("length_wraps", "header | 18446744073709551608");
  refused("not_utf8", "UTF-8");
  refused("duplicate_tensor", "duplicate | key");
  refused("metadata_number", "__metadata__ | \"k\"");
  refused("dtype_unknown", "\"a\" | dtype | \"F33\" | BOOL");
  refused("dtype_missing", "\"a\" | dtype");
  refused("shape_float", "\"a\" | shape | 0 | integer");
  refused("shape_negative", "\"a\" | shape | 0 | -4");
  refused("shape_minus_zero", "-0");
  refused("shape_product_wraps_to_0", "shape | 2 | 63 bits");
  refused("data_offsets_float", "data_offsets | 0 | integer");
  refused("data_offsets_end_before_begin", "end | 0 | begin | 4");
  refused("shape_too_many", "0 to 4 | 4 bytes | U8 | 5");
  refused("sub_byte_not_whole", "3 elements | F4 | 4 bits");
  refused("bits_wrap", "63 bits");
  refused("hole", "\"b\" | data_offsets | 2 | \"a\" | 1 | hole");
  refused("overlap", "1 | \"a\" | 2 | overlap");
  refused("trailing_bytes", "byte 1 | 2 bytes");
  refused("truncated_data", "byte 4 | 3 bytes | truncated");
}

static void K5_what_is_no_file_is_refused(void **state) {
  (void)state;
  ms_safetensors *st;
  assert_fails(ms_safetensors_open(in_folder("none"), &st), MS_EINVAL, "/none: | No such file");
  assert_fails(ms_safetensors_open(folder, &st), MS_EINVAL, "folder | model.safetensors");
  assert_fails(ms_safetensors_open("/dev/null", &st), MS_EINVAL, "regular file");
  assert_fails(ms_safetensors_open(FIXTURES "folders/two_files", &st), MS_EINVAL, "2 .safetensors");
}

static void K5_dtypes_are_known_by_name_and_size(void **state) {
  (void)state;
  static const struct {
    const char *name;
    int bits;
  } rows[] = {{"BOOL", 8},    {"BF16", 16}, {"F4", 4},   {"F6_E3M2", 6},
              {"F8_E4M3", 8}, {"C64", 64},  {"I16", 16}, {"U64", 64}};
  ms_safetensors *st;
  must(ms_safetensors_open(FIXTURES "good/every_dtype.safetensors", &st));
  assert_int_equal(ms_safetensors_count(st), 22);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    ms_safetensors_tensor t;
    must(ms_safetensors_describe(st, ms_safetensors_find(st, rows[i].name), &t));
    assert_int_equal(t.bits, rows[i].bits);
    assert_int_equal(t.bytes, rows[i].bits);
    assert_int_equal(t.elements, 8);
    assert_int_equal(t.dims[0] * 10 + t.dims[1], 24);
  }
  assert_int_equal(ms_safetensors_find(st, "F3"), -1);
  ms_safetensors_close(st);
}

static void K5_a_file_that_was_cut_later_is_an_error(void **state) {
  (void)state;
  const char *path = in_folder("cut");
  ms_safetensors_writer *w;
  ms_safetensors *st;
  const int64_t dims[] = {1 << 16};
  const ms_safetensors_tensor tensor = {.name = "t", .dtype = "U8", .ndim = 1, .dims = dims};
  char *data = calloc(1 << 16, 1), hex[17];
  must(ms_safetensors_create(path, 1, &tensor, NULL, &w));
  must(ms_safetensors_write(w, 0, 0, 1 << 16, data));
  must(ms_safetensors_finish(w));
  must(ms_safetensors_open(path, &st));
  assert_int_equal(truncate(path, 1000), 0);
  assert_fails(ms_safetensors_read(st, 0, 0, 1 << 16, data), MS_EIO, "truncated");
  assert_fails(ms_safetensors_checksum(st, 0, hex), MS_EIO, "truncated");
  ms_safetensors_close(st);
  free(data);
  unlink(path);
}

/* ---- folders ---- */

static void folder_refused(const char *name, const char *why) {
  char path[512];
  ms_safetensors *st;
  snprintf(path, sizeof path, FIXTURES "folders/%s", name);
  assert_fails(ms_safetensors_open(path, &st), MS_EINVAL, why);
}

static void K5_a_folder_with_an_index_is_one_model(void **state) {
  (void)state;
  static const char *const paths[] = {FIXTURES "folders/good", FIXTURES "folders/good/",
                                      FIXTURES "folders/good/model.safetensors.index.json"};
  for (int p = 0; p < 3; p++) {
    ms_safetensors *st;
    ms_safetensors_tensor t;
    const char *key, *value, *file;
    must(ms_safetensors_open(paths[p], &st));
    assert_int_equal(ms_safetensors_count(st), 2);
    must(ms_safetensors_describe(st, 1, &t));
    assert_string_equal(t.name, "b");
    assert_has(t.file, "good/model-00002-of-00002.safetensors");
    assert_memory_equal(ms_safetensors_data(st, 1), "56", 2);
    assert_int_equal(ms_safetensors_metadata_count(st), 3);
    must(ms_safetensors_metadata(st, 0, &key, &value, &file));
    assert_string_equal(key, "total_size");
    assert_string_equal(value, "6");
    assert_has(file, "index.json");
    assert_fails(ms_safetensors_metadata(st, 3, &key, &value, &file), MS_EINVAL, "3 | 0");
    ms_safetensors_close(st);
  }
  ms_safetensors *st;
  must(ms_safetensors_open(FIXTURES "folders/only_file", &st));
  assert_int_equal(ms_safetensors_count(st), 1);
  ms_safetensors_close(st);
}

static void K5_an_index_that_disagrees_is_refused(void **state) {
  (void)state;
  folder_refused("missing_file", "model-00002-of-00002.safetensors | No such file");
  folder_refused("tensor_not_in_file", "\"c\" | model-00002-of-00002.safetensors");
  folder_refused("tensor_not_in_index", "\"z\" | model-00001-of-00002.safetensors | index");
  folder_refused("other_file", "index | model-00002-of-00002.safetensors");
  folder_refused("tensor_twice", "\"a\" | model-00001-of-00002.safetensors | model-00002-of-00002.safetensors");
  folder_refused("leads_out", "name | index");
  folder_refused("dots", "name | index");
  folder_refused("bad_file", "model-00001-of-00002.safetensors | end | byte 4");
  folder_refused("file_is_number", "weight_map | \"a\"");
  folder_refused("no_weight_map", "weight_map | object");
  folder_refused("empty_weight_map", "weight_map | object");
  folder_refused("duplicate_key", "duplicate | key");
  folder_refused("not_json", "index: byte");
  folder_refused("metadata_is_array", "metadata | object");
}

/* ---- the writer ---- */

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
  must(ms_safetensors_create(in_folder(name), 5, declared, config, &w));
  return w;
}

static void put_all(ms_safetensors_writer *w) {
  const double scalar = 2.5;
  const float a[] = {1, 2, 3, 4, 5, 6}, b[] = {-1, -2, -3, -4, -5, -6};
  must(ms_safetensors_write(w, 1, 8, 16, b + 2));
  must(ms_safetensors_write(w, 0, 2, 1, "3"));
  must(ms_safetensors_write(w, 2, 0, 8, &scalar));
  must(ms_safetensors_write(w, 0, 0, 2, "12"));
  must(ms_safetensors_write(w, 3, 0, 24, a));
  must(ms_safetensors_write(w, 1, 0, 8, b));
  must(ms_safetensors_write(w, 4, 0, 0, NULL));
}

static void K5_what_is_written_in_any_order_is_read_back(void **state) {
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
    must(ms_safetensors_open(in_folder("written"), &st));
    assert_int_equal(ms_safetensors_count(st), 5);
    static const char *const order[] = {"a.weight", "b.weight", "none", "scalar", "z"};
    for (int i = 0; i < 5; i++) {
      ms_safetensors_tensor t;
      must(ms_safetensors_describe(st, i, &t));
      assert_string_equal(t.name, order[i]);
      assert_int_equal(t.offset % (t.bits / 8), 0);
    }
    assert_true(((const float *)ms_safetensors_data(st, 1))[5] == -6);
    assert_true(*(const double *)ms_safetensors_data(st, 3) == 2.5);
    assert_memory_equal(ms_safetensors_data(st, 4), "123", 3);
    const char *key, *value, *file;
    must(ms_safetensors_metadata(st, 1, &key, &value, &file));
    assert_string_equal(value, texts[3]);
    ms_safetensors_close(st);
    unlink(in_folder("written"));
  }
}

static void K5_an_unfinished_file_leaves_nothing(void **state) {
  (void)state;
  ms_safetensors_writer *w = start("given_up", NULL);
  put_all(w);
  ms_safetensors_abort(w);
  ms_safetensors_abort(NULL);
  w = start("not_whole", NULL);
  must(ms_safetensors_write(w, 0, 0, 3, "123"));
  must(ms_safetensors_write(w, 2, 0, 8, "12345678"));
  must(ms_safetensors_write(w, 3, 0, 23, "12345678901234567890123"));
  assert_fails(ms_safetensors_finish(w), MS_EINVAL, "\"a.weight\" | 23 to 24");
  must(mkdir(in_folder("taken"), 0700));
  w = start("taken", NULL);
  put_all(w);
  assert_fails(ms_safetensors_finish(w), MS_EIO, "renam");
  rmdir(in_folder("taken"));
  assert_int_equal(rmdir(folder), 0);
  must(mkdir(folder, 0700));
}

static void K5_a_file_that_stands_there_stays_until_the_new_one_is_whole(void **state) {
  (void)state;
  ms_safetensors *st;
  ms_safetensors_writer *w = start("model", NULL);
  put_all(w);
  must(ms_safetensors_finish(w));
  must(ms_safetensors_create(in_folder("model"), 0, NULL, NULL, &w));
  must(ms_safetensors_open(in_folder("model"), &st));
  assert_int_equal(ms_safetensors_count(st), 5);
  must(ms_safetensors_finish(w));
  assert_memory_equal(ms_safetensors_data(st, 4), "123", 3);
  ms_safetensors_close(st);
  must(ms_safetensors_open(in_folder("model"), &st));
  assert_int_equal(ms_safetensors_count(st), 0);
  ms_safetensors_close(st);
  unlink(in_folder("model"));
}

static void K5_the_writer_refuses_what_no_file_can_hold(void **state) {
  (void)state;
  ms_safetensors_writer *w = start("w", NULL);
  assert_fails(ms_safetensors_write(w, 5, 0, 1, "1"), MS_EINVAL, "tensor number 5 | 0");
  assert_fails(ms_safetensors_write(w, 0, 2, 2, "12"), MS_EINVAL, "2 bytes | byte 2 | 3");
  assert_fails(ms_safetensors_write(w, 0, -1, 1, "1"), MS_EINVAL, "byte -1");
  assert_fails(ms_safetensors_write(w, 0, INT64_MAX, INT64_MAX, "1"), MS_EINVAL, "3");
  must(ms_safetensors_write(w, 0, 0, 2, "12"));
  assert_fails(ms_safetensors_write(w, 0, 1, 2, "23"), MS_EINVAL, "\"z\" | 1 to 3");
  ms_safetensors_abort(w);

  const int64_t huge[] = {INT64_C(1) << 40, INT64_C(1) << 40}, wide[] = {INT64_C(1) << 62}, minus[] = {-1};
  ms_safetensors_tensor bad[] = {{.name = "a", .dtype = "U8", .ndim = 1, .dims = wide}, {.name = "a", .dtype = "U8"}};
  assert_fails(ms_safetensors_create(in_folder("x"), 2, bad, NULL, &w), MS_EINVAL, "63 bits");
  assert_null(w);
  bad[0].dims = three;
  assert_fails(ms_safetensors_create(in_folder("x"), 2, bad, NULL, &w), MS_EINVAL, "\"a\" | in use");
  bad[1].name = "\xff";
  assert_fails(ms_safetensors_create(in_folder("x"), 2, bad, NULL, &w), MS_EINVAL, "UTF-8");
  bad[1].name = "__metadata__";
  assert_fails(ms_safetensors_create(in_folder("x"), 2, bad, NULL, &w), MS_EINVAL, "__metadata__ | name");
  bad[1].name = NULL;
  assert_fails(ms_safetensors_create(in_folder("x"), 2, bad, NULL, &w), MS_EINVAL, "tensor number 1 | name");
  bad[0].dtype = "f32";
  assert_fails(ms_safetensors_create(in_folder("x"), 1, bad, NULL, &w), MS_EINVAL, "tensor | a | dtype | f32");
  bad[0] = (ms_safetensors_tensor){.name = "a", .dtype = "U8", .ndim = 2, .dims = huge};
  assert_fails(ms_safetensors_create(in_folder("x"), 1, bad, NULL, &w), MS_EINVAL, "63 bits");
  bad[0] = (ms_safetensors_tensor){.name = "a", .dtype = "U8", .ndim = 1, .dims = minus};
  assert_fails(ms_safetensors_create(in_folder("x"), 1, bad, NULL, &w), MS_EINVAL, "dimension 0 | -1");
  assert_fails(ms_safetensors_create(in_folder("x/y"), 0, NULL, NULL, &w), MS_EIO, "No such file");
  static const char *const twice[] = {"k", "1", "k", "2"};
  ms_safetensors_config config = {
      .struct_size = sizeof(ms_safetensors_config), .metadata = 2, .metadata_text = twice, .atomic = 1};
  assert_fails(ms_safetensors_create(in_folder("x"), 0, NULL, &config, &w), MS_EINVAL, "__metadata__ | \"k\" | in use");
}

static void K5_a_device_is_not_replaced(void **state) {
  (void)state;
  ms_safetensors_writer *w;
  const ms_safetensors_config config = {.struct_size = sizeof(ms_safetensors_config), .atomic = 0};
  must(mkfifo(in_folder("pipe"), 0600));
  int reader = open(in_folder("pipe"), O_RDONLY | O_NONBLOCK);
  assert_fails(ms_safetensors_create(in_folder("pipe"), 0, NULL, &config, &w), MS_EINVAL, "file");
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
  int rc = ms_safetensors_write(w, 0, 0, 3, "123");
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
      TEST(K5_every_good_file_is_read),
      TEST(K5_every_bad_file_is_refused),
      TEST(K5_a_refusal_names_the_field_and_what_would_be_right),
      TEST(K5_what_is_no_file_is_refused),
      TEST(K5_dtypes_are_known_by_name_and_size),
      TEST(K5_a_file_that_was_cut_later_is_an_error),
      TEST(K5_a_folder_with_an_index_is_one_model),
      TEST(K5_an_index_that_disagrees_is_refused),
      TEST(K5_what_is_written_in_any_order_is_read_back),
      TEST(K5_an_unfinished_file_leaves_nothing),
      TEST(K5_a_file_that_stands_there_stays_until_the_new_one_is_whole),
      TEST(K5_the_writer_refuses_what_no_file_can_hold),
      TEST(K5_a_device_is_not_replaced),
      TEST(K5_a_failed_write_is_an_error_that_stays),
      TEST(K5_ranges_join_and_know_their_gaps),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
