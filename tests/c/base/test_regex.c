/* test_regex.c - single patterns: search, syntax, and errors that show the place. */
#include "base/error.h"
#include "base/text/regex.h"
#include "tests/c/support/check.h"

#include <stdlib.h>

static int search(const char *pattern, const char *text) {
  ms_regex *regex;
  int found = -1;
  assert_int_equal(ms_regex_compile(pattern, NULL, &regex), MS_OK);
  assert_int_equal(ms_regex_search(regex, text, &found), MS_OK);
  ms_regex_free(regex);
  return found;
}

static void R1_regex_searches_with_python_syntax(void **state) {
  (void)state;
  assert_int_equal(search("attn", "layers.3.attn.wq"), 1);
  assert_int_equal(search("^attn", "layers.3.attn.wq"), 0);
  assert_int_equal(search("^layers\\.(\\d|1[0-5])$", "layers.15"), 1);
  assert_int_equal(search("^layers\\.(\\d|1[0-5])$", "layers.16"), 0);
  assert_int_equal(search("(?P<n>w[qkv])\\.(?!bias)", "attn.wk.weight"), 1);
  assert_int_equal(search("(?P<n>w[qkv])\\.(?!bias)", "attn.wk.bias"), 0);
  assert_int_equal(search("(?<=mlp\\.)up|down", "mlp.up"), 1);
  assert_int_equal(search("", "anything"), 1);
  assert_int_equal(search("^caf.$", "caf\xc3\xa9"), 1);
  assert_int_equal(search("weight", "\xff\xfe.weight"), 1);
}

static void R2_regex_bad_pattern_shows_offset_and_caret(void **state) {
  (void)state;
  ms_regex *regex;
  assert_int_equal(ms_regex_compile("^layers\\.(\\d", "recipe.lua:12", &regex), MS_ERULE);
  assert_null(regex);
  assert_has(ms_error_message(), "recipe.lua:12: | pattern | offset 12 | parenthesis");
  assert_has(ms_error_message(), "\n  ^layers\\.(\\d\n              ^");
  ms_error_clear();
  assert_fails(ms_regex_compile(")", NULL, &regex), MS_ERULE, "pattern | offset 0 | parenthesis | \n  )\n  ^");
  assert_fails(ms_regex_compile("caf\xc3\xa9(", "r:1", &regex), MS_ERULE, "offset 6");
  assert_fails(ms_regex_compile("caf\xc3\xa9(", "r:1", &regex), MS_ERULE, "\n  caf\xc3\xa9(\n       ^");
  assert_fails(ms_regex_compile("first\n\tsecond)\nthird", "r:1", &regex), MS_ERULE, "\n  \tsecond)\n  \t      ^");
  assert_fails(ms_regex_compile("bad \xff", "r:1", &regex), MS_ERULE, "offset 4 | UTF-8");

  char longest[3001];
  memset(longest, 'a', 3000);
  longest[1500] = ')';
  longest[3000] = '\0';
  assert_int_equal(ms_regex_compile(longest, "r:1", &regex), MS_ERULE);
  const char *message = ms_error_message();
  assert_true(strlen(message) < 400);
  assert_int_equal(message[strlen(message) - 1], '^');
  assert_non_null(strstr(message, "aaa)aaa"));
}

static void R2_regex_runaway_pattern_stops(void **state) {
  (void)state;
  ms_regex *regex;
  int found = 1;
  assert_int_equal(ms_regex_compile("^(a+)+$", "recipe.lua:3", &regex), MS_OK);
  assert_int_equal(ms_regex_search(regex, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", &found),
                   MS_ERULE);
  assert_int_equal(found, 0);
  assert_has(ms_error_message(), "recipe.lua:3: | /^(a+)+$/ | \"aaaa");
  assert_has(ms_error_message(), "match limit");
  ms_error_clear();
  assert_int_equal(ms_regex_search(regex, "aaaa", &found), MS_OK);
  assert_int_equal(found, 1);
  ms_regex_free(regex);
  ms_regex_free(NULL);
}

static void R2_regex_deep_pattern_is_matched_or_refused(void **state) {
  (void)state;
  enum { LENGTH = 200000 };
  char *text = ms_calloc(LENGTH + 1, 1);
  memset(text, 'a', LENGTH);
  ms_regex *regex;
  int found;
  assert_int_equal(ms_regex_compile("^(?:(a)|b)*c", "r:1", &regex), MS_OK);
  int rc = ms_regex_search(regex, text, &found);
  assert_int_equal(found, 0);
  assert_true(rc == MS_OK || rc == MS_ERULE);
  ms_regex_free(regex);
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(R1_regex_searches_with_python_syntax),
      TEST(R2_regex_bad_pattern_shows_offset_and_caret),
      TEST(R2_regex_runaway_pattern_stops),
      TEST(R2_regex_deep_pattern_is_matched_or_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
