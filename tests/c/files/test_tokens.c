/* test_tokens.c - token files: what is refused and how it is named, reading across files and beyond 4 GiB, reading
 * ahead. */
#include "io/tokens/token_file.h"
#include "scratch_folder.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATHS = 4 };

static const char *path_of(int i) {
  static char path[PATHS][64];
  snprintf(path[i], sizeof path[i], "%s/%d.bin", folder, i);
  return path[i];
}

static void write_bytes(int i, const void *bytes, size_t count) {
  FILE *file = fopen(path_of(i), "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, count, file), count);
  assert_int_equal(fclose(file), 0);
}

/* A file by the format's words: a header of 256 int32 and `tokens` tokens, first, first + 1, ... */
static void write_tokens(int i, int32_t magic, int32_t version, int tokens, int32_t first) {
  const int width = magic == 20240520 ? 2 : 4;
  char *bytes = calloc(1024 + (size_t)tokens * 4, 1);
  const int32_t header[3] = {magic, version, tokens};
  memcpy(bytes, header, sizeof header);
  for (int t = 0; t < tokens; t++) {
    const int32_t token = first + t;
    memcpy(bytes + 1024 + t * width, &token, (size_t)width);
  }
  write_bytes(i, bytes, 1024 + (size_t)tokens * (size_t)width);
  free(bytes);
}

static ms_tokens *open_files(int n, int64_t *count) {
  const char *paths[PATHS];
  ms_tokens *tokens;
  for (int i = 0; i < n; i++) paths[i] = path_of(i);
  must(ms_tokens_open(n, paths, MS_TOKEN_FILES, &tokens, count));
  return tokens;
}

static void remove_files(int n) {
  for (int i = 0; i < n; i++) assert_int_equal(unlink(path_of(i)), 0);
}

static void K7_tokens_of_both_widths_are_one_stream(void **state) {
  (void)state;
  int32_t out[40];
  write_tokens(0, 20240520, 1, 10, 65520); /* above 32767: unsigned */
  write_tokens(1, 20240801, 7, 0, 0);
  write_tokens(2, 20240801, 7, 25, 128000);
  int64_t all;
  ms_tokens *tokens = open_files(3, &all);
  assert_int_equal(all, 35);
  must(ms_tokens_read(tokens, 0, 35, out));
  for (int i = 0; i < 35; i++) assert_int_equal(out[i], i < 10 ? 65520 + i : 128000 + i - 10);
  must(ms_tokens_read(tokens, 9, 2, out));
  assert_int_equal(out[0], 65529);
  assert_int_equal(out[1], 128000);
  must(ms_tokens_read(tokens, 35, 0, out));
  assert_fails(ms_tokens_read(tokens, 34, 2, out), MS_EINVAL, "2 tokens | 34 | 35");
  assert_fails(ms_tokens_read(tokens, 1, INT64_MAX, out), MS_EINVAL, "9223372036854775807 tokens | 35");
  assert_fails(ms_tokens_read(tokens, -1, 2, out), MS_EINVAL, "35");
  ms_free(tokens);
  remove_files(3);
}

static void K7_bytes_are_tokens(void **state) {
  (void)state;
  int32_t out[4];
  const char *path = path_of(0);
  ms_tokens *tokens;
  write_bytes(0, "a\xffz", 3);
  must(ms_tokens_open(1, &path, MS_TOKEN_BYTES, &tokens, NULL));
  must(ms_tokens_read(tokens, 0, 3, out));
  assert_int_equal(out[1], 255);
  ms_free(tokens);
  remove_files(1);
}

static void refused(const char *field) {
  const char *path = path_of(0);
  ms_tokens *tokens;
  int rc = ms_tokens_open(1, &path, MS_TOKEN_FILES, &tokens, NULL);
  assert_int_equal(rc, MS_EINVAL);
  assert_null(tokens);
  assert_has(ms_error_message(), path);
  assert_fails(rc, MS_EINVAL, field);
}

static void K7_foreign_and_truncated_files_are_refused(void **state) {
  (void)state;
  write_bytes(0, "", 0);
  refused("header | 0");
  write_tokens(0, 20240520, 1, 10, 0);
  assert_int_equal(truncate(path_of(0), 1023), 0);
  refused("header | 1023");
  write_tokens(0, 20240520, 1, 10, 0);
  assert_int_equal(truncate(path_of(0), 1024 + 19), 0);
  refused("tokens | 10 | 2 bytes | 1044 | 1043 | cut");
  assert_int_equal(truncate(path_of(0), 1024 + 21), 0);
  refused("1045");
  write_tokens(0, 20240520, 2, 10, 0);
  refused("version | 2 | magic | 20240520 | 1");
  write_tokens(0, 20240801, 1, 10, 0);
  refused("version | 1 | magic | 20240801 | 7");
  write_tokens(0, 20240522, 1, 10, 0);
  refused("magic | 20240522");
  const int32_t negative[256] = {20240801, 7, -1};
  write_bytes(0, negative, sizeof negative);
  refused("tokens | -1");
  const int32_t few[256] = {20240801, 7, -1, 20, 0}; /* as a large number is told, which it is not */
  write_bytes(0, few, sizeof few);
  refused("tokens | -1");
  const int32_t most[256] = {20240801, 7, -1, -1, INT32_MAX};
  write_bytes(0, most, sizeof most);
  refused("tokens | 9223372036854775807 | 4 bytes");
  remove_files(1);
  refused("No such file");
}

/* Two files of 4 GiB and more, holes but for their ends: offsets need 64 bits. */
static void K7_tokens_beyond_four_gigabytes(void **state) {
  (void)state;
  const int32_t count = 1200000000, header[3] = {20240801, 7, count}, last = 4711;
  int32_t out[3];
  for (int i = 0; i < 2; i++) {
    int fd = open(path_of(i), O_CREAT | O_RDWR | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, header, sizeof header, 0), sizeof header);
    assert_int_equal(pwrite(fd, &last, 4, 1024 + 4 * ((int64_t)count - 1)), 4);
    assert_int_equal(close(fd), 0);
  }
  int64_t all;
  ms_tokens *tokens = open_files(2, &all);
  assert_int_equal(all, 2 * (int64_t)count);
  must(ms_tokens_read(tokens, count - 1, 2, out));
  assert_int_equal(out[0], last);
  assert_int_equal(out[1], 0);
  must(ms_tokens_read(tokens, 2 * (int64_t)count - 2, 2, out));
  assert_int_equal(out[1], last);
  ms_free(tokens);
  remove_files(2);
}

static void K7_headers_tell_numbers_beyond_31_bits(void **state) {
  (void)state;
  const int64_t numbers[] = {1, INT32_MAX, 1LL << 31, 5000000000, 1LL << 40};
  uint8_t header[MS_TOKEN_HEADER_BYTES];
  for (int i = 0; i < 10; i++) {
    int width, wanted = i % 2 ? 2 : 4;
    int64_t tokens, number = numbers[i / 2], bytes = MS_TOKEN_HEADER_BYTES + number * wanted;
    ms_token_header_fill(header, wanted, number);
    must(ms_token_header_check("h", header, bytes, &width, &tokens));
    assert_int_equal(width, wanted);
    assert_true(tokens == number);
    assert_fails(ms_token_header_check("h", header, bytes - 1, &width, &tokens), MS_EINVAL, "cut");
  }
}

static void the_reader_gives_what_was_asked_for_in_order(void **state) {
  (void)state;
  enum { ROWS = 3, COLUMNS = 50, BATCHES = 200 };
  int32_t got[ROWS * COLUMNS], targets[ROWS * COLUMNS];
  int64_t first[ROWS];
  ms_token_reader *reader;
  write_tokens(0, 20240520, 1, 5000, 0);
  ms_tokens *tokens = open_files(1, NULL);
  must(ms_token_reader_new(tokens, ROWS, COLUMNS, 2, &reader));
  ms_free(tokens); /* the reader keeps the files mapped */
  assert_fails(ms_token_reader_take(reader, 1, got, targets), MS_EINVAL, "batch");
  for (int batch = 0; batch < BATCHES; batch++) {
    for (int row = 0; row < ROWS; row++) first[row] = (batch * 131 + row * 17) % (5000 - COLUMNS);
    must(ms_token_reader_request(reader, first));
    if (!batch) continue; /* one ahead */
    must(ms_token_reader_take(reader, 60, got, targets));
    for (int i = 0; i < ROWS * COLUMNS; i++) {
      const int32_t token = ((batch - 1) * 131 + i / COLUMNS * 17) % (5000 - COLUMNS) + i % COLUMNS;
      assert_int_equal(got[i], token);
      assert_int_equal(targets[i], token + 1);
    }
  }
  must(ms_token_reader_request(reader, first));
  assert_fails(ms_token_reader_request(reader, first), MS_EINVAL, "first");
  must(ms_token_reader_discard(reader, 60));
  first[0] = 7;
  must(ms_token_reader_request(reader, first));
  must(ms_token_reader_take(reader, 60, got, targets));
  assert_int_equal(got[0], 7);
  must(ms_token_reader_request(reader, first)); /* freed with a batch under way */
  ms_free(reader);
  remove_files(1);
}

static void the_reader_tells_why_it_failed_and_goes_on(void **state) {
  (void)state;
  int32_t got[8], targets[8];
  const int64_t outside = 93, inside = 92, begin = 0;
  ms_token_reader *reader;
  write_tokens(0, 20240520, 1, 100, 0);
  ms_tokens *tokens = open_files(1, NULL);
  assert_fails(ms_token_reader_new(tokens, 1, 0, 1, &reader), MS_EINVAL, "1");
  assert_fails(ms_token_reader_new(tokens, 1 << 30, INT_MAX, 1 << 30, &reader), MS_ENOMEM, "2147483648 tokens");
  must(ms_token_reader_new(tokens, 1, 7, 2, &reader));
  assert_fails(ms_token_reader_take(reader, NAN, got, targets), MS_EINVAL, "seconds | nan");
  assert_fails(ms_token_reader_discard(reader, -1), MS_EINVAL, "seconds | -1");
  must(ms_token_reader_request(reader, &outside));
  must(ms_token_reader_request(reader, &inside));
  assert_fails(ms_token_reader_take(reader, 60, got, targets), MS_EINVAL, "8 tokens | 93 | 100");
  must(ms_token_reader_take(reader, 60, got, targets));
  assert_int_equal(targets[6], 99);
  assert_int_equal(truncate(path_of(0), 1100), 0);
  must(ms_token_reader_request(reader, &begin));
  assert_fails(ms_token_reader_take(reader, 60, got, targets), MS_EIO, "1100 | 1224");
  ms_free(reader);
  ms_free(tokens);
  remove_files(1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(K7_tokens_of_both_widths_are_one_stream),
      cmocka_unit_test(K7_bytes_are_tokens),
      cmocka_unit_test(K7_foreign_and_truncated_files_are_refused),
      cmocka_unit_test(K7_tokens_beyond_four_gigabytes),
      cmocka_unit_test(K7_headers_tell_numbers_beyond_31_bits),
      cmocka_unit_test(the_reader_gives_what_was_asked_for_in_order),
      cmocka_unit_test(the_reader_tells_why_it_failed_and_goes_on),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
