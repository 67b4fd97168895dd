/* test_token_index.c - pairs of an index and tokens: every length at which an index can be cut, every byte that can
 * differ, integers of all widths, and how a pair is found by the name of either file. */
#include "io/tokens/token_file.h"
#include "io/tokens/token_index.h"
#include "scratch_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SEQUENCES = 3, BOUNDARIES = 3, SIZE = MS_TOKEN_INDEX_HEADER + 12 * SEQUENCES + 8 * BOUNDARIES, WIDTH = 2 };

static const int32_t lengths[SEQUENCES] = {2, 0, 3};
static const int64_t places[SEQUENCES] = {0, 4, 4}, boundaries[BOUNDARIES] = {0, 2, 3};

/* An index of 5 tokens of 16 bits, in a block of its own, so that a read beyond it is found. */
static uint8_t *make_index(void) {
  const uint64_t version = 1, sequences = SEQUENCES, ends = BOUNDARIES;
  uint8_t *bytes = malloc(SIZE);
  assert_non_null(bytes);
  memcpy(bytes, "MMIDIDX\0", 9);
  memcpy(bytes + 9, &version, 8);
  bytes[17] = 8;
  memcpy(bytes + 18, &sequences, 8);
  memcpy(bytes + 26, &ends, 8);
  memcpy(bytes + 34, lengths, sizeof lengths);
  memcpy(bytes + 34 + sizeof lengths, places, sizeof places);
  memcpy(bytes + 34 + sizeof lengths + sizeof places, boundaries, sizeof boundaries);
  return bytes;
}

static void K7_an_index_is_whole_or_refused(void **state) {
  (void)state;
  ms_token_index index;
  uint8_t *bytes = make_index();
  must(ms_token_index_check("i", bytes, SIZE, 5 * WIDTH, &index));
  assert_int_equal(index.tokens, 5);
  assert_int_equal(index.sequences, SEQUENCES);
  assert_int_equal(index.documents, BOUNDARIES - 1);
  assert_string_equal(index.dtype->name, "u16");
  for (int64_t size = 0; size < SIZE; size++) {
    uint8_t *part = malloc((size_t)size + 1);
    memcpy(part, bytes, (size_t)size);
    assert_int_equal(ms_token_index_check("i", part, size, 5 * WIDTH, &index), MS_EINVAL);
    free(part);
  }
  for (int64_t data = 0; data < 14; data++) {
    const int rc = ms_token_index_check("i", bytes, SIZE, data, &index);
    assert_int_equal(rc, data == 5 * WIDTH ? MS_OK : MS_EINVAL);
  }
  ms_error_clear();
  free(bytes);
}

/* Any other bit contradicts the rest, but for where the second document begins. */
static void K7_every_byte_of_an_index_counts(void **state) {
  (void)state;
  int accepted = 0;
  for (int at = 0; at < SIZE; at++) {
    for (int bit = 0; bit < 8; bit++) {
      ms_token_index index;
      uint8_t *bytes = make_index();
      bytes[at] ^= (uint8_t)(1 << bit);
      const int rc = ms_token_index_check("i", bytes, SIZE, 5 * WIDTH, &index);
      if (!rc) accepted++;
      assert_true(!rc || rc == MS_EINVAL || rc == MS_EUNSUPPORTED);
      free(bytes);
    }
  }
  /* A boundary of 2 can become 0 or 3. */
  assert_int_equal(accepted, 2);
  ms_error_clear();
}

static void write_file(const char *name, const void *bytes, size_t count) {
  char path[96];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, count, file), count);
  assert_int_equal(fclose(file), 0);
}

static void find(const char *name, const char *index_wanted, const char *data_wanted) {
  char path[96], *index, *data;
  snprintf(path, sizeof path, "%s/%s", folder, name);
  must(ms_token_index_find(path, &index, &data));
  assert_string_equal(data + strlen(folder) + 1, data_wanted);
  if (index_wanted) {
    assert_string_equal(index + strlen(folder) + 1, index_wanted);
  } else {
    assert_null(index);
  }
  free(index);
  free(data);
}

static void K7_a_pair_is_found_by_either_name(void **state) {
  (void)state;
  static const uint16_t tokens[5] = {1, 65535, 3, 4, 5};
  uint8_t header[MS_TOKEN_HEADER_BYTES], *bytes = make_index();
  write_file("a.idx", bytes, SIZE);
  write_file("a.bin", tokens, sizeof tokens);
  find("a.idx", "a.idx", "a.bin");
  find("a.bin", "a.idx", "a.bin");
  find("a.data", NULL, "a.data");
  find(".bin", NULL, ".bin");
  char path[96];
  const char *paths[1] = {path};
  int32_t out[5];
  int64_t count;
  ms_tokens *stream;
  snprintf(path, sizeof path, "%s/a.bin", folder);
  must(ms_tokens_open(1, paths, MS_TOKEN_FILES, &stream, &count));
  assert_int_equal(count, 5);
  must(ms_tokens_read(stream, 0, 5, out));
  for (int i = 0; i < 5; i++) assert_int_equal(out[i], tokens[i]);
  ms_free(stream);
  ms_token_header_fill(header, 2, 0);
  write_file("a.bin", header, sizeof header); /* needs no index */
  find("a.bin", NULL, "a.bin");
  must(ms_tokens_open(1, paths, MS_TOKEN_FILES, &stream, &count));
  assert_int_equal(count, 0);
  ms_free(stream);
  assert_int_equal(unlink(path), 0);
  snprintf(path, sizeof path, "%s/a.idx", folder);
  assert_fails(ms_tokens_open(1, paths, MS_TOKEN_FILES, &stream, &count), MS_EINVAL, "a.bin");
  assert_int_equal(unlink(path), 0);
  free(bytes);
}

static void K7_integers_of_all_widths_are_tokens_from_zero_to_the_largest(void **state) {
  (void)state;
  static const struct {
    const char *name;
    int64_t largest;
  } cases[] = {{"u8", 255},        {"i8", 127},        {"u16", 65535},    {"i16", 32767},
               {"u32", INT32_MAX}, {"i32", INT32_MAX}, {"i64", INT32_MAX}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    const ms_token_dtype *dtype = ms_token_dtype_named(cases[c].name);
    uint8_t bytes[1 + 3 * 8] = {0};
    int32_t out[3];
    memcpy(bytes + 1 + dtype->width, &cases[c].largest, (size_t)dtype->width); /* unaligned */
    assert_int_equal(dtype->copy(bytes + 1, 3, out), 3);
    assert_true(out[0] == 0 && out[1] == cases[c].largest && out[2] == 0);
    const int64_t wrong[] = {-1, (int64_t)INT32_MAX + 1, INT64_MIN};
    for (int w = 0; w < 3; w++) {
      memcpy(bytes + 1 + 2 * dtype->width, &wrong[w], (size_t)dtype->width);
      const int refused = dtype->name[0] == 'i' ? w == 0 || dtype->width == 8 || (dtype->width == 4 && w == 1)
                                                : dtype->width == 4 && w < 2;
      assert_int_equal(dtype->copy(bytes + 1, 3, out), refused ? 2 : 3);
    }
  }
  assert_null(ms_token_dtype_of_code(0));
  assert_null(ms_token_dtype_of_code(9));
  assert_null(ms_token_dtype_of_code(6)->copy);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(K7_an_index_is_whole_or_refused),
      cmocka_unit_test(K7_every_byte_of_an_index_counts),
      cmocka_unit_test(K7_a_pair_is_found_by_either_name),
      cmocka_unit_test(K7_integers_of_all_widths_are_tokens_from_zero_to_the_largest),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
