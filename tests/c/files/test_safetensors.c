/* test_safetensors.c - the committed files: every good one is read, every bad one refused with its name. */
#include "scratch_folder.h"
#include "tests/c/support/mapped.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FIXTURES "tests/fixtures/safetensors/"

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
  int tensors;
  must(ms_safetensors_open(path, &st, &tensors));
  for (int i = 0; i < tensors; i++) {
    ms_safetensors_tensor t;
    char hex[17];
    must(ms_safetensors_describe(st, i, &t, sizeof t));
    assert_int_equal(ms_safetensors_find(st, t.name), i);
    must(ms_safetensors_checksum(st, i, 0, -1, hex));
    assert_int_equal(strlen(hex), 16);
    unsigned char *copy = malloc((size_t)t.bytes + 1);
    must(ms_safetensors_read(st, i, NULL, 0, t.bytes, copy, NULL));
    assert_memory_equal(copy, mapped(st, i), t.bytes);
    assert_fails(ms_safetensors_read(st, i, NULL, 1, t.bytes, copy, NULL), MS_EINVAL, "has");
    free(copy);
  }
  ms_free(st);
}

static void K5_every_good_file_is_read(void **state) {
  (void)state;
  assert_int_equal(each_file(FIXTURES "good/", see_good), 10);
}

static void see_bad(const char *path, const char *name) {
  ms_safetensors *st;
  int rc = ms_safetensors_open(path, &st, NULL);
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
  assert_fails(ms_safetensors_open(path, &st, NULL), MS_EINVAL, why);
}

static void K5_a_refusal_names_the_field_and_a_correct_value(void **state) {
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

static void K5_paths_without_a_regular_file_are_refused(void **state) {
  (void)state;
  ms_safetensors *st;
  assert_fails(ms_safetensors_open(in_folder("none"), &st, NULL), MS_EINVAL, "/none: | No such file");
  assert_fails(ms_safetensors_open(folder, &st, NULL), MS_EINVAL, "folder | model.safetensors");
  assert_fails(ms_safetensors_open("/dev/null", &st, NULL), MS_EINVAL, "regular file");
  assert_fails(ms_safetensors_open(FIXTURES "folders/two_files", &st, NULL), MS_EINVAL, "2 .safetensors");
}

static void K5_dtypes_are_known_by_name_and_size(void **state) {
  (void)state;
  static const struct {
    const char *name;
    int bits;
  } rows[] = {{"BOOL", 8},    {"BF16", 16}, {"F4", 4},   {"F6_E3M2", 6},
              {"F8_E4M3", 8}, {"C64", 64},  {"I16", 16}, {"U64", 64}};
  ms_safetensors *st;
  int tensors;
  must(ms_safetensors_open(FIXTURES "good/every_dtype.safetensors", &st, &tensors));
  assert_int_equal(tensors, 22);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    ms_safetensors_tensor t;
    must(ms_safetensors_describe(st, ms_safetensors_find(st, rows[i].name), &t, sizeof t));
    assert_int_equal(t.bits, rows[i].bits);
    assert_int_equal(t.bytes, rows[i].bits);
    assert_int_equal(t.elements, 8);
    assert_int_equal(t.dims[0] * 10 + t.dims[1], 24);
  }
  assert_int_equal(ms_safetensors_find(st, "F3"), -1);
  ms_free(st);
}

static void K5_a_file_that_was_truncated_after_opening_is_an_error(void **state) {
  (void)state;
  const char *path = in_folder("cut");
  ms_safetensors_writer *w;
  ms_safetensors *st;
  const int64_t dims[] = {1 << 16};
  const ms_safetensors_tensor tensor = {.name = "t", .dtype = "U8", .ndim = 1, .dims = dims};
  char *data = calloc(1 << 16, 1), hex[17];
  must(ms_safetensors_create(path, 1, &tensor, sizeof(ms_safetensors_tensor), NULL, &w));
  must(ms_safetensors_write(w, 0, NULL, 0, 1 << 16, data));
  must(ms_safetensors_finish(w));
  must(ms_safetensors_open(path, &st, NULL));
  assert_int_equal(truncate(path, 1000), 0);
  assert_fails(ms_safetensors_read(st, 0, NULL, 0, 1 << 16, data, NULL), MS_EIO, "truncated");
  assert_fails(ms_safetensors_checksum(st, 0, 0, -1, hex), MS_EIO, "truncated");
  ms_free(st);
  free(data);
  unlink(path);
}

/* ---- folders ---- */

static void folder_refused(const char *name, const char *why) {
  char path[512];
  ms_safetensors *st;
  snprintf(path, sizeof path, FIXTURES "folders/%s", name);
  assert_fails(ms_safetensors_open(path, &st, NULL), MS_EINVAL, why);
}

static void K5_a_folder_with_an_index_is_one_model(void **state) {
  (void)state;
  static const char *const paths[] = {FIXTURES "folders/good", FIXTURES "folders/good/",
                                      FIXTURES "folders/good/model.safetensors.index.json"};
  ms_safetensors *st;
  int tensors;
  for (int p = 0; p < 3; p++) {
    ms_safetensors_tensor t;
    const char *key, *value, *file;
    must(ms_safetensors_open(paths[p], &st, &tensors));
    assert_int_equal(tensors, 2);
    must(ms_safetensors_describe(st, 1, &t, sizeof t));
    assert_string_equal(t.name, "b");
    assert_has(t.file, "good/model-00002-of-00002.safetensors");
    assert_memory_equal(mapped(st, 1), "56", 2);
    must(ms_safetensors_metadata(st, 0, &key, &value, &file));
    assert_string_equal(key, "total_size");
    assert_string_equal(value, "6");
    assert_has(file, "index.json");
    must(ms_safetensors_metadata(st, 3, &key, &value, &file));
    assert_null(key);
    assert_fails(ms_safetensors_metadata(st, -1, &key, &value, &file), MS_EINVAL, "i | -1");
    ms_free(st);
  }
  must(ms_safetensors_open(FIXTURES "folders/only_file", &st, &tensors));
  assert_int_equal(tensors, 1);
  ms_free(st);
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

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(K5_every_good_file_is_read),
      TEST(K5_every_bad_file_is_refused),
      TEST(K5_a_refusal_names_the_field_and_a_correct_value),
      TEST(K5_paths_without_a_regular_file_are_refused),
      TEST(K5_dtypes_are_known_by_name_and_size),
      TEST(K5_a_file_that_was_truncated_after_opening_is_an_error),
      TEST(K5_a_folder_with_an_index_is_one_model),
      TEST(K5_an_index_that_disagrees_is_refused),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
