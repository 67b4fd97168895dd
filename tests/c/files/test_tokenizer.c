/* test_tokenizer.c - a tokenizer made by hand: merges against a plain search, pieces of any length, threads, file
 * errors. */
#include "base/error.h"
#include "io/tokens/token_file.h"
#include "io/tokenizer/tokenizer.h"
#include "tests/c/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint32_t state = 12345;

static uint32_t draw(uint32_t below) {
  state = state * 1664525 + 1013904223;
  return (state >> 8) % below;
}

/* The rule in its plainest words: search all neighbours for the lowest rank, merge the leftmost, begin again. */
static int64_t merge_plainly(const ms_merges *merges, int32_t *ids, int64_t count) {
  for (;;) {
    const ms_merge *best = NULL;
    int64_t at = 0;
    for (int64_t i = 0; i + 1 < count; i++) {
      const ms_merge *merge = ms_merges_find(merges, ids[i], ids[i + 1]);
      if (merge && (!best || merge->rank < best->rank)) {
        best = merge;
        at = i;
      }
    }
    if (!best) return count;
    ids[at] = best->id;
    count--;
    memmove(ids + at + 1, ids + at + 2, (size_t)(count - at - 1) * sizeof *ids);
  }
}

static void merges_are_those_of_a_plain_search(void **unused) {
  (void)unused;
  enum { LETTERS = 5, MERGES = 60, LONGEST = 300 };
  ms_bpe_memory memory = {0};
  for (int round = 0; round < 12; round++) {
    ms_merges merges;
    must(ms_merges_new(&merges, MERGES));
    for (int i = 0; i < MERGES; i++) /* ranks in no order, so that a merge may make a pair that comes before it */
      ms_merges_add(&merges, (ms_merge){(int32_t)draw(LETTERS + (uint32_t)i), (int32_t)draw(LETTERS + (uint32_t)i),
                                        (int32_t)draw(1000) * MERGES + i, LETTERS + i});
    for (int piece = 0; piece < 30; piece++) {
      int32_t ids[LONGEST], plain[LONGEST];
      const int64_t count = 1 + draw(LONGEST);
      for (int64_t i = 0; i < count; i++) ids[i] = plain[i] = (int32_t)draw(LETTERS);
      const int64_t left = ms_bpe_merge(&merges, &memory, ids, count);
      assert_int_equal(left, merge_plainly(&merges, plain, count));
      assert_memory_equal(ids, plain, (size_t)left * sizeof *ids);
    }
    free(merges.slot);
  }
  free(memory.node);
  free(memory.heap);
}

static void bytes_that_are_no_characters_are_found_and_replaced(void **unused) {
  (void)unused;
  static const struct {
    const char *text, *clean;
    int64_t invalid;
  } cases[] = {
      {"plain text, long enough", "plain text, long enough", 23},
      {"12345678\xc3\xa4\xe6\x9c\x88\xf0\x9f\x8c\x99", "12345678\xc3\xa4\xe6\x9c\x88\xf0\x9f\x8c\x99", 17},
      {"12345678\xff", "12345678\xef\xbf\xbd", 8},
      {"a\xc0\xafz", "a\xef\xbf\xbd\xef\xbf\xbdz", 1},             /* overlong */
      {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 0}, /* a surrogate */
      {"\xf0\x9f\x8cz", "\xef\xbf\xbdz", 0},                       /* cut: one maximal part */
      {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 0},
      {"x\xe6\x9c", "x\xef\xbf\xbd", 1},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const ms_span text = {(const uint8_t *)cases[i].text, (int64_t)strlen(cases[i].text)};
    uint8_t *clean;
    int64_t bytes;
    assert_int_equal(ms_utf8_invalid(text), cases[i].invalid);
    must(ms_utf8_replace(text, &clean, &bytes));
    assert_int_equal(bytes, strlen(cases[i].clean));
    assert_memory_equal(clean, cases[i].clean, (size_t)bytes);
    free(clean);
  }
}

static void patterns_that_would_mean_something_else_are_refused(void **unused) {
  (void)unused;
  ms_pieces *pieces;
  assert_fails(ms_pieces_compile("\\w+", &pieces), MS_EINVAL, "\\w");
  assert_fails(ms_pieces_compile("[^\\S]", &pieces), MS_EINVAL, "\\S | []");
  assert_fails(ms_pieces_compile("[a&&b]", &pieces), MS_EINVAL, "&&");
  assert_fails(ms_pieces_compile("[[:alpha:]]", &pieces), MS_EINVAL, "[ | []");
  assert_fails(ms_pieces_compile("(?<!a)b", &pieces), MS_EINVAL, "behind");
  assert_fails(ms_pieces_compile("^a", &pieces), MS_EINVAL, "^ | []");
  assert_fails(ms_pieces_compile("(a", &pieces), MS_EINVAL, "parenthesis");
  assert_null(pieces);
}

/* What the pattern leaves out is a piece; one that matches nothing is an error, not an endless loop. */
static void gaps_are_pieces(void **unused) {
  (void)unused;
  ms_pieces *pieces;
  ms_piece_matcher *matcher;
  const ms_span text = {(const uint8_t *)"ab12cd", 6};
  int64_t end;
  must(ms_pieces_compile("\\p{N}+", &pieces));
  must(ms_piece_matcher_new(pieces, &matcher));
  must(ms_piece_next(matcher, text, 0, &end));
  assert_int_equal(end, 2);
  must(ms_piece_next(matcher, text, 2, &end));
  assert_int_equal(end, 4);
  must(ms_piece_next(matcher, text, 4, &end));
  assert_int_equal(end, 6);
  ms_piece_matcher_free(matcher);
  ms_pieces_free(pieces);
  must(ms_pieces_compile("x*", &pieces));
  must(ms_piece_matcher_new(pieces, &matcher));
  assert_fails(ms_piece_next(matcher, text, 0, &end), MS_EINVAL, "byte 0");
  ms_piece_matcher_free(matcher);
  ms_pieces_free(pieces);
}

/* The tokens of a file are those of its text, with any number of threads. */
static void check_file(const char *tokenizer_path, const char *text, int64_t text_bytes, const char *text_path,
                       const char *out) {
  ms_tokenizer *tokenizer;
  const int32_t *expected;
  int64_t count;
  must(ms_tokenizer_open(tokenizer_path, &tokenizer));
  must(ms_tokenizer_encode(tokenizer, text, text_bytes, &expected, &count));
  for (int threads = 1; threads <= 3; threads += 2) {
    int64_t bytes, tokens_written;
    int width;
    ms_tokens *tokens;
    const ms_tokenize_config config = {
        .struct_size = sizeof(ms_tokenize_config), .begin = -1, .end = -1, .threads = threads};
    must(ms_tokenize_files(tokenizer, 1, &text_path, out, &config, &bytes, &tokens_written, &width));
    assert_true(bytes == text_bytes && tokens_written == count && width == 2);
    must(ms_tokens_open(1, &out, MS_TOKEN_FILES, &tokens, NULL));
    int32_t *got = malloc((size_t)count * sizeof *got);
    must(ms_tokens_read(tokens, 0, count, got));
    assert_memory_equal(got, expected, (size_t)count * sizeof *got);
    free(got);
    ms_free(tokens);
  }
  ms_free(tokenizer);
}

/* Patterns whose pieces go across lines, so that stretches must be tokenized again from where the one before ended;
 * normalizers, which change where that is; and tokenizers that see a text as one piece. */
static void threads_change_nothing_even_where_pieces_cross_their_cuts(void **unused) {
  (void)unused;
  char folder[] = "/tmp/moonshard-tokenizer-XXXXXX", text_path[64], out_path[64];
  enum { BYTES = 5 << 19 };
  static const char *const names[] = {"across", "across_nfc", "qwen", "llama2"};
  assert_non_null(mkdtemp(folder));
  snprintf(text_path, sizeof text_path, "%s/t.txt", folder);
  snprintf(out_path, sizeof out_path, "%s/t.bin", folder);
  char *text = malloc(BYTES);
  /* An e with an accent of its own now and then, which normalizers join. */
  for (int i = 0; i < BYTES; i++) {
    text[i] = "abc\n xyz|\n"[draw(10)];
    if (i + 3 < BYTES && !draw(500)) memcpy(text + i, "e\xcc\x81", 3), i += 2;
  }
  FILE *file = fopen(text_path, "wb");
  assert_int_equal(fwrite(text, 1, BYTES, file), BYTES);
  assert_int_equal(fclose(file), 0);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char path[96];
    snprintf(path, sizeof path, "tests/fixtures/tokenizer/steps/%s.json", names[i]);
    check_file(path, text, BYTES, text_path, out_path);
  }
  ms_tokenizer *tokenizer;
  must(ms_tokenizer_open("tests/fixtures/tokenizer/good/gpt2.json", &tokenizer));
  const char *path = text_path;
  assert_fails(ms_tokenize_files(tokenizer, 1, &path, "/dev/null/t.bin", NULL, NULL, NULL, NULL), MS_EIO,
               "/dev/null/t.bin: | Not a directory");
  const char *const none[2] = {text_path, NULL};
  assert_fails(ms_tokenize_files(tokenizer, 2, none, out_path, NULL, NULL, NULL, NULL), MS_EINVAL, "paths[i] is NULL");
  const ms_tokenize_config both = {
      .struct_size = sizeof(ms_tokenize_config), .begin = -1, .end = -1, .replace = 1, .documents = 1};
  assert_fails(ms_tokenize_files(tokenizer, 1, &path, out_path, &both, NULL, NULL, NULL), MS_EINVAL,
               "ms_tokenize_config | replace | documents");
  ms_free(tokenizer);
  free(text);
  assert_int_equal(unlink(text_path), 0);
  assert_int_equal(unlink(out_path), 0);
  assert_int_equal(rmdir(folder), 0);
}

static void a_file_appears_when_it_is_whole(void **unused) {
  (void)unused;
  ms_token_writer *writer;
  static const int32_t ids[100000];
  assert_fails(ms_token_writer_new("/dev/full", 2, &writer), MS_EINVAL, "file");
  must(ms_token_writer_new("/tmp/moonshard-most.bin", 4, &writer));
  must(ms_token_writer_put(writer, ids, 100000));
  assert_int_equal(access("/tmp/moonshard-most.bin", F_OK), -1);
  ms_token_writer_abort(writer);
  assert_int_equal(access("/tmp/moonshard-most.bin", F_OK), -1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(merges_are_those_of_a_plain_search),
      cmocka_unit_test(bytes_that_are_no_characters_are_found_and_replaced),
      cmocka_unit_test(patterns_that_would_mean_something_else_are_refused),
      cmocka_unit_test(gaps_are_pieces),
      cmocka_unit_test(threads_change_nothing_even_where_pieces_cross_their_cuts),
      cmocka_unit_test(a_file_appears_when_it_is_whole),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
