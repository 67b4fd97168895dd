/* test_settings.c - the rows of settings.def: defaults are in range, what is out of range is refused by name, and every
 * row of what excludes what takes effect. */
#include "tests/c/support/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/settings/settings.h"

static const char *const types[] = {"ms_param_group", "ms_param_config", "ms_unit_config", "ms_plan_config"};
enum { TYPES = sizeof types / sizeof *types };

typedef union any_config {
  ms_param_group group;
  ms_param_config param;
  ms_unit_config unit;
  ms_plan_config plan;
} any_config;

static any_config defaults_of(const char *type) {
  any_config config;
  must(ms_settings_give(ms_settings_of(type), &config, sizeof config));
  return config;
}

static void set(any_config *config, const ms_setting *s, double value) {
  char *at = (char *)config + s->at;
  if (s->kind == MS_SETTING_INT) *(int *)at = (int)value;
  else *(double *)at = value;
}

/* A group has no struct_size, which would stand in its first field. */
static void defaults_are_in_range(void **state) {
  (void)state;
  int settings = 0;
  for (int t = 1; t < TYPES; t++) {
    any_config config = defaults_of(types[t]);
    must(ms_config_check(types[t], &config, sizeof config));
    const ms_settings *of = ms_settings_of(types[t]);
    for (int i = 0; i < of->rows; i++) {
      if (!ms_setting_is_number(&of->row[i])) continue;
      assert_true(ms_setting_value(&of->row[i], &config) == of->row[i].initial);
      settings++;
    }
  }
  assert_true(settings > 60);
}

/* Values that no range has: numbers below and above it, and NaN. */
static void values_out_of_range_are_refused_by_name(void **state) {
  (void)state;
  static const double wrong[] = {NAN, -2, INFINITY, 1e9};
  int refused = 0;
  for (int t = 0; t < TYPES; t++) {
    const ms_settings *of = ms_settings_of(types[t]);
    for (int i = 0; i < of->rows; i++) {
      const ms_setting *s = &of->row[i];
      if (!ms_setting_is_number(s)) continue;
      for (size_t w = s->kind == MS_SETTING_INT; w < sizeof wrong / sizeof *wrong; w++) {
        if (s->kind == MS_SETTING_INT && isinf(wrong[w])) continue;
        const int status = ms_setting_check(s, wrong[w]);
        if (status == MS_OK) continue;
        assert_int_equal(status, s->range.is_dtype ? MS_EDTYPE : MS_EINVAL);
        char facts[128];
        snprintf(facts, sizeof facts, "%s must be", s->name);
        assert_has(ms_error_message(), facts);
        refused++;
      }
      if (s->kind == MS_SETTING_DOUBLE) assert_int_equal(ms_setting_check(s, NAN), MS_EINVAL);
    }
  }
  assert_true(refused > 100);
  ms_error_clear();
}

/* Another value than the default that is in range. */
static double other_value(const ms_setting *s) {
  static const double tries[] = {1, 0.5, 2, 0, -0.5, 7, 3};
  for (size_t i = 0; i < sizeof tries / sizeof *tries; i++)
    if (tries[i] != s->initial && (s->kind == MS_SETTING_DOUBLE || tries[i] == (int)tries[i]) &&
        ms_setting_check(s, tries[i]) == MS_OK)
      return tries[i];
  fail_msg("%s: no value but the default", s->name);
  return 0;
}

enum { SET = -1000000 };
static const struct {
  int status;
  const char *type, *name;
  int value;
  const char *other;
  int other_value;
  const char *needed; /* one of what the first needs */
} exclusions[] = {
#define MS_NEEDS(type, name, others, why) {MS_EINVAL, "ms_" #type, #name, SET, NULL, 0, others},
#define MS_EXCLUDES(status, type, name, value, other, other_value, why) \
  {status, "ms_" #type, #name, value, #other, other_value, NULL},
#include "base/settings/each_setting.h"
};

/* Sets what a setting needs, so that nothing but the exclusion is refused. */
static void give_needs(any_config *config, const char *type, const char *name) {
  for (size_t i = 0; i < sizeof exclusions / sizeof *exclusions; i++) {
    char first[64];
    if (!exclusions[i].needed || strcmp(exclusions[i].type, type) || strcmp(exclusions[i].name, name)) continue;
    snprintf(first, sizeof first, "%.*s", (int)strcspn(exclusions[i].needed, " "), exclusions[i].needed);
    const ms_setting *s = ms_setting_find(ms_settings_of(type), first);
    assert_non_null(s);
    set(config, s, other_value(s));
  }
}

static void what_excludes_each_other_is_refused(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof exclusions / sizeof *exclusions; i++) {
    const ms_settings *of = ms_settings_of(exclusions[i].type);
    const ms_setting *s = ms_setting_find(of, exclusions[i].name), *other = NULL;
    assert_non_null(s);
    any_config config = defaults_of(exclusions[i].type);
    set(&config, s, exclusions[i].value == SET ? other_value(s) : exclusions[i].value);
    if (exclusions[i].other) {
      other = ms_setting_find(of, exclusions[i].other);
      assert_non_null(other);
      set(&config, other, exclusions[i].other_value == SET ? other_value(other) : exclusions[i].other_value);
    }
    if (other) {
      give_needs(&config, exclusions[i].type, s->name);
      give_needs(&config, exclusions[i].type, other->name);
    }
    char facts[128];
    snprintf(facts, sizeof facts, "%s | %s", s->name, other ? other->name : "needs");
    assert_fails(ms_config_check(exclusions[i].type, &config, sizeof config), exclusions[i].status, facts);
    if (other) continue;
    give_needs(&config, exclusions[i].type, s->name);
    ms_error_clear();
    must(ms_config_check(exclusions[i].type, &config, sizeof config));
  }
}

static void one_value_of_an_exclusion_is_allowed_alone(void **state) {
  (void)state;
  ms_param_config p;
  must(ms_config_default("ms_param_config", &p, sizeof p));
  p.gather_dtype = MS_I8;
  p.fp8 = MS_FP8_ROWWISE;
  must(ms_config_check("ms_param_config", &p, sizeof p));
  p.fp8 = MS_FP8_TENSORWISE;
  assert_fails(ms_config_check("ms_param_config", &p, sizeof p), MS_EUNSUPPORTED, "gather_dtype i8 | fp8 tensorwise");
  ms_plan_config c;
  must(ms_config_default("ms_plan_config", &c, sizeof c));
  c.sgd.nesterov = 1;
  assert_fails(ms_config_check("ms_plan_config", &c, sizeof c), MS_EINVAL, "sgd.nesterov needs sgd.momentum");
  c.sgd.momentum = 0.9;
  must(ms_config_check("ms_plan_config", &c, sizeof c));
  assert_fails(ms_config_check("ms_world_config", &c, sizeof c), MS_ENAME, "ms_world_config");
  assert_fails(ms_config_check("ms_plan_config", NULL, sizeof c), MS_EINVAL, "config is NULL");
}

static void defaults_are_of_a_struct_by_name(void **state) {
  (void)state;
  ms_model_dims dims;
  must(ms_config_default("ms_model_dims", &dims, sizeof dims));
  assert_int_equal(dims.struct_size, sizeof dims);
  assert_int_equal(dims.shard, -1);
  assert_fails(ms_config_default("ms_param_group", &dims, sizeof dims), MS_ENAME, "ms_param_group");
  assert_fails(ms_config_default("ms_nothing", &dims, sizeof dims), MS_ENAME, "ms_nothing");
  assert_fails(ms_config_default("ms_model_dims", &dims, 3), MS_EINVAL, "size is 3 | ms_model_dims");
  assert_fails(ms_config_default("ms_model_dims", NULL, sizeof dims), MS_EINVAL, "config is NULL");
}

/* Lines for other ranks name what differs from the defaults, and dtypes by name. */
static void a_description_has_what_is_set(void **state) {
  (void)state;
  ms_unit_config u;
  ms_text text = {0};
  must(ms_config_default("ms_unit_config", &u, sizeof u));
  ms_settings_describe(ms_settings_of("ms_unit_config"), &u, MS_SCOPE_STATE, &text);
  assert_int_equal(text.length, 0);
  u.param_dtype = MS_BF16;
  u.fragment = 3;
  u.reshard = MS_RESHARD_ALWAYS;
  ms_settings_describe(ms_settings_of("ms_unit_config"), &u, MS_SCOPE_STATE, &text);
  assert_string_equal(text.data, ", param_dtype bf16, fragment 3");
  ms_settings_describe(ms_settings_of("ms_unit_config"), &u, MS_SCOPE_PLAN, &text);
  assert_string_equal(text.data, ", param_dtype bf16, fragment 3, reshard always");
  ms_text_free(&text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(defaults_are_in_range),
      TEST(values_out_of_range_are_refused_by_name),
      TEST(what_excludes_each_other_is_refused),
      TEST(one_value_of_an_exclusion_is_allowed_alone),
      TEST(defaults_are_of_a_struct_by_name),
      TEST(a_description_has_what_is_set),
  };
  return cmocka_run_group_tests_name("settings", tests, NULL, NULL);
}
