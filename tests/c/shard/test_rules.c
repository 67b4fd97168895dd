/* test_rules.c - policies: who decides a name, what is warned of, and what is refused with which text. */
#include "shard/rules.h"

#include "base/error.h"
#include "tests/c/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const char *const names[] = {"embed",     "layers.0",  "layers.1", "layers.1.attn", "layers.10",
                                    "layers.15", "layers.16", "norm",     "head"};
enum { N = sizeof names / sizeof *names };

typedef struct rule_case {
  const char *pattern;
  int is_regex, optional;
} rule_case;

static ms_rules *make(int count, const rule_case *cases) {
  ms_rules *rules;
  assert_int_equal(ms_rules_new("reshard_after_forward", &rules), MS_OK);
  for (int i = 0; i < count; i++) {
    char where[32];
    snprintf(where, sizeof where, "recipe.lua:%d", 10 + i);
    if (ms_rules_add(rules, cases[i].pattern, cases[i].is_regex, cases[i].optional, where))
      fail_msg("%s", ms_error_message());
  }
  return rules;
}

#define RULES(...) make((int)(sizeof((rule_case[]){__VA_ARGS__}) / sizeof(rule_case)), (const rule_case[]){__VA_ARGS__})

static void assert_decided(ms_rules *rules, const int *expected) {
  int decided[N];
  if (ms_rules_resolve(rules, N, names, decided)) fail_msg("%s", ms_error_message());
  for (int i = 0; i < N; i++)
    if (decided[i] != expected[i]) fail_msg("%s: decided by %d, not by %d", names[i], decided[i], expected[i]);
}

#define assert_decides(rules, ...) assert_decided(rules, (const int[N]){__VA_ARGS__})

static void R1_first_match_wins(void **state) {
  (void)state;
  ms_rules *rules = RULES({"^layers\\.(\\d|1[0-5])$", 1, 0}, {"head", 0, 0}, {".*", 1, 0});
  assert_decides(rules, 2, 0, 0, 2, 0, 0, 2, 2, 1);
  assert_null(ms_rules_warning(rules, 0));
  ms_free(rules);
}

static void R1_plain_string_is_exact_or_dotted_prefix(void **state) {
  (void)state;
  ms_rules *rules = RULES({"layers.1", 0, 0}, {"norm", 0, 0});
  assert_decides(rules, -1, -1, 0, 0, -1, -1, -1, 1, -1);
  ms_free(rules);
  rules = RULES({"layers", 0, 0});
  assert_decides(rules, -1, 0, 0, 0, 0, 0, 0, -1, -1);
  ms_free(rules);
  rules = RULES({"layers.", 0, 1}, {"ayers.1", 0, 1}, {"layers.1.attn.wq", 0, 1}, {"layers.*", 0, 1}, {"", 0, 1});
  assert_decides(rules, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  ms_free(rules);
}

static void R1_regex_searches(void **state) {
  (void)state;
  ms_rules *rules = RULES({"att", 1, 0}, {"s\\.1", 1, 0}, {"e(m|a)", 1, 0});
  assert_decides(rules, 2, -1, 1, 0, 1, 1, 1, -1, 2);
  ms_free(rules);
  rules = RULES({"^(?P<n>layers)\\.1(?!\\d)", 1, 0}, {"(?<=layers\\.)\\d+$", 1, 0});
  assert_decides(rules, -1, 1, 0, 0, 1, 1, 1, -1, -1);
  ms_free(rules);
}

static void R1_no_rules_decide_nothing(void **state) {
  (void)state;
  ms_rules *rules;
  assert_int_equal(ms_rules_new(NULL, &rules), MS_OK);
  assert_decides(rules, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  assert_int_equal(ms_rules_resolve(rules, 0, NULL, NULL), MS_OK);
  assert_fails(ms_rules_add(rules, NULL, 0, 0, NULL), MS_EINVAL, "ms_rules_add | pattern | NULL");
  ms_free(rules);
  ms_free(NULL);
}

static void assert_unmatched(ms_rules *rules, const char *facts) {
  int decided[N];
  assert_int_equal(ms_rules_resolve(rules, N, names, decided), MS_ERULE);
  assert_has(ms_error_message(), facts);
  ms_error_clear();
  ms_free(rules);
}

static void R2_rule_that_matches_nothing_is_an_error(void **state) {
  (void)state;
  assert_unmatched(
      RULES({".*", 1, 0}, {"layer.1", 0, 0}),
      "recipe.lua:11: | reshard_after_forward | \"layer.1\" | 9 names | layers.0, layers.1, layers.10 | optional");
  assert_unmatched(RULES({"^layrs\\.\\d+$", 1, 0}), "recipe.lua:10: | reshard_after_forward | /^layrs\\.\\d+$/ | 9 "
                                                    "names | layers.0, layers.1, layers.1.attn | optional");
  assert_unmatched(RULES({"Head", 0, 0}),
                   "recipe.lua:10: | reshard_after_forward | \"Head\" | 9 names | head, embed, norm | optional");
}

static void R2_nearest_names_skip_regex_syntax(void **state) {
  (void)state;
  const char *const blocks[] = {"transformer.wte", "transformer.h.0.attn.c_attn", "transformer.h.0.mlp.c_fc",
                                "lm_head"};
  static const struct {
    const char *pattern;
    int is_regex;
    const char *nearest;
  } cases[] = {
      {"^transformer\\.h\\.(\\d|1[0-5])\\.atn\\.c_attn$", 1, "nearest: transformer.h.0.attn.c_attn, "},
      {"(?P<which>mpl)\\.c_fc", 1, "nearest: transformer.h.0.mlp.c_fc, "},
      {"transformer.g", 0, "nearest: transformer.h, "},
      {"lmhead", 0, "nearest: lm_head, "},
      {"^(?:lm){2}_?[a-z]hed\\", 1, NULL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ms_rules *rules;
    int decided[4];
    assert_int_equal(ms_rules_new("units", &rules), MS_OK);
    int rc = ms_rules_add(rules, cases[i].pattern, cases[i].is_regex, 0, "r.lua:1");
    if (!cases[i].nearest) assert_fails(rc, MS_ERULE, "r.lua:1: | units | pattern | offset 21 | \\");
    else assert_fails(ms_rules_resolve(rules, 4, blocks, decided), MS_ERULE, cases[i].nearest);
    ms_free(rules);
  }
}

static void R2_no_names_at_all(void **state) {
  (void)state;
  ms_rules *rules = RULES({"layers", 0, 0});
  assert_fails(ms_rules_resolve(rules, 0, NULL, NULL), MS_ERULE, "\"layers\" | no names");
  ms_free(rules);
}

static void R2_optional_rule_may_match_nothing(void **state) {
  (void)state;
  ms_rules *rules = RULES({"decoder", 0, 1}, {"^dec", 1, 1}, {"head", 0, 0});
  assert_decides(rules, -1, -1, -1, -1, -1, -1, -1, -1, 2);
  assert_null(ms_rules_warning(rules, 0));
  ms_free(rules);
}

static void R2_shadowed_rule_is_a_warning(void **state) {
  (void)state;
  ms_rules *rules = RULES({"^layers", 1, 0}, {"layers.1", 0, 0}, {".*", 1, 0}, {"head$", 1, 0}, {"gone", 0, 1});
  assert_decides(rules, 2, 0, 0, 0, 0, 0, 0, 2, 2);
  assert_has(ms_rules_warning(rules, 0),
             "recipe.lua:11: | reshard_after_forward | \"layers.1\" | /^layers/ (recipe.lua:10) | layers.1");
  assert_has(ms_rules_warning(rules, 1),
             "recipe.lua:13: | reshard_after_forward | /head$/ | /.*/ (recipe.lua:12) | head");
  assert_null(ms_rules_warning(rules, 2));
  assert_null(ms_rules_warning(rules, -1));
  assert_decides(rules, 2, 0, 0, 0, 0, 0, 0, 2, 2);
  assert_non_null(ms_rules_warning(rules, 1));
  assert_null(ms_rules_warning(rules, 2));
  ms_free(rules);
}

static void R2_partly_shadowed_rule_is_fine(void **state) {
  (void)state;
  ms_rules *rules = RULES({"layers.1", 0, 0}, {"layers", 0, 0});
  assert_decides(rules, -1, 1, 0, 0, 1, 1, 1, -1, -1);
  assert_null(ms_rules_warning(rules, 0));
  ms_free(rules);
}

static void R2_a_bad_pattern_is_reported_with_its_place_and_offset(void **state) {
  (void)state;
  ms_rules *rules = RULES({"head", 0, 0});
  assert_int_equal(ms_rules_add(rules, "^layers\\.(\\d|1[0-5]$", 1, 0, "recipe.lua:12"), MS_ERULE);
  assert_has(ms_error_message(), "recipe.lua:12: | reshard_after_forward | pattern | offset 20 | parenthesis");
  assert_has(ms_error_message(), "\n  ^layers\\.(\\d|1[0-5]$\n                      ^");
  ms_error_clear();
  assert_decides(rules, -1, -1, -1, -1, -1, -1, -1, -1, 0);
  ms_free(rules);
  assert_int_equal(ms_rules_new("units", &rules), MS_OK);
  assert_fails(ms_rules_add(rules, ")", 1, 0, NULL), MS_ERULE, "units | pattern | offset 0");
  ms_free(rules);
}

static void R2_a_runaway_pattern_is_an_error(void **state) {
  (void)state;
  const char *const long_name[] = {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.weight"};
  int decided;
  ms_rules *rules = RULES({"^(a+)+$", 1, 0});
  clock_t start = clock();
  assert_fails(ms_rules_resolve(rules, 1, long_name, &decided), MS_ERULE,
               "recipe.lua:10: | reshard_after_forward | /^(a+)+$/ | \"aaaa");
  assert_true(clock() - start < 2 * CLOCKS_PER_SEC);
  ms_free(rules);
}

/* A changed policy of a large model must be decided well inside the 50 ms that a new plan may take. */
static void R4_thousands_of_names_are_decided_quickly(void **state) {
  (void)state;
  enum { LAYERS = 1000, PER_LAYER = 9, COUNT = LAYERS * PER_LAYER };
  const char **many = ms_calloc(COUNT, sizeof *many);
  int *decided = ms_calloc(COUNT, sizeof *decided);
  for (int i = 0; i < COUNT; i++) {
    char name[64];
    snprintf(name, sizeof name, "layers.%d.attn.w%d.weight", i / PER_LAYER, i % PER_LAYER);
    many[i] = ms_strdup(name);
  }
  ms_rules *rules =
      RULES({"^layers\\.(0|1)\\.", 1, 0}, {"w[0-2]\\.weight$", 1, 0}, {"layers.7", 0, 0}, {"norm", 1, 1}, {".*", 1, 0});
  clock_t start = clock();
  assert_int_equal(ms_rules_resolve(rules, COUNT, many, decided), MS_OK);
  assert_true(clock() - start < CLOCKS_PER_SEC);
  assert_int_equal(decided[0], 0);
  assert_int_equal(decided[PER_LAYER * 7 + 3], 2);
  assert_int_equal(decided[PER_LAYER * 70 + 2], 1);
  assert_int_equal(decided[PER_LAYER * 70 + 3], 4);
  ms_free(rules);
  rules = RULES({"layers.99999.mlp", 0, 0});
  assert_fails(ms_rules_resolve(rules, COUNT, many, decided), MS_ERULE, "9000 names | layers.");
  ms_free(rules);
  for (int i = 0; i < COUNT; i++) free((void *)many[i]);
  free(many);
  free(decided);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(R1_first_match_wins),
      TEST(R1_plain_string_is_exact_or_dotted_prefix),
      TEST(R1_regex_searches),
      TEST(R1_no_rules_decide_nothing),
      TEST(R2_rule_that_matches_nothing_is_an_error),
      TEST(R2_nearest_names_skip_regex_syntax),
      TEST(R2_no_names_at_all),
      TEST(R2_optional_rule_may_match_nothing),
      TEST(R2_shadowed_rule_is_a_warning),
      TEST(R2_partly_shadowed_rule_is_fine),
      TEST(R2_a_bad_pattern_is_reported_with_its_place_and_offset),
      TEST(R2_a_runaway_pattern_is_an_error),
      TEST(R4_thousands_of_names_are_decided_quickly),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
