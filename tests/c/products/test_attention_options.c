/* test_attention_options.c - the options of attention are read from the slots that the op table gives their names, each
 * row's attributes are options, so that none is added to the table alone, and the work of a call follows from them. */
#include "tests/c/support/check.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "graph/graph.h"
#include "kernels/attention_options.h"

static const int OPS[] = {MS_OP_attention, MS_OP_attention_backward, MS_OP_document_attention,
                          MS_OP_document_attention_backward};
enum { OP_COUNT = 4, FIELDS = 7, KEYS = 12, HEAD = 16 };
static const char *const NAMES[FIELDS] = {"causal", "start", "part", "window", "prefix", "scale", "softcap"};
static const ms_value_info INPUTS[3] = {{.dtype = MS_F32, .ndim = 4, .dims = {2, 6, 4, HEAD}},
                                        {.dtype = MS_F32, .ndim = 4, .dims = {2, KEYS, 2, HEAD}},
                                        {.dtype = MS_F32, .ndim = 4, .dims = {2, KEYS, 2, HEAD}}};

static ms_attention_options options_of(int op, const ms_op_attrs *attrs) {
  return ms_attention_options_of(op, attrs, INPUTS);
}

static double field(const ms_attention_options *o, int name) {
  const double fields[FIELDS] = {o->causal,         o->start,         (double)o->part.ranks, (double)o->window,
                                 (double)o->prefix, (double)o->scale, (double)o->softcap};
  return fields[name];
}

/* Sets attribute `name` to another value than its default. */
static void change(int op, ms_op_attrs *attrs, int name) {
  const ms_part half = {.run = 6, .ranks = 2};
  int64_t *integer = ms_op_integer(op, attrs, NAMES[name]);
  if (integer) *integer = !strcmp(NAMES[name], "part") ? ms_part_attr(half) : !strcmp(NAMES[name], "causal") ? 0 : 5;
  else if (!strcmp(NAMES[name], "scale")) attrs->attention.scale = 3;
  else attrs->attention.softcap = 3;
}

static void every_attribute_is_an_option(void **state) {
  (void)state;
  for (int i = 0; i < OP_COUNT; i++) {
    char name[16];
    int read = 0, found = 0;
    for (const char *at = ms_op_row_of(OPS[i])->attrs; sscanf(at, "%15[^=]=%*[^ ]%n", name, &read) == 1;
         at += read + strspn(at + read, " ")) {
      int changed = -1;
      for (int n = 0; n < FIELDS; n++)
        if (!strcmp(NAMES[n], name)) changed = n;
      if (changed < 0) fail_msg("%s: attribute %s is no option", ms_op_row_of(OPS[i])->name, name);
      ms_op_attrs attrs;
      must(ms_op_row_defaults(OPS[i], &attrs));
      const ms_attention_options before = options_of(OPS[i], &attrs);
      change(OPS[i], &attrs, changed);
      const ms_attention_options after = options_of(OPS[i], &attrs);
      for (int n = 0; n < FIELDS; n++)
        if ((field(&before, n) != field(&after, n)) != (n == changed))
          fail_msg("%s: attribute %s, option %s: %g, then %g", ms_op_row_of(OPS[i])->name, name, NAMES[n],
                   field(&before, n), field(&after, n));
      found++;
    }
    assert_int_equal(found, i / 2 ? 5 : 6); /* documents have no prefix */
  }
}

static void the_op_decides_documents_and_direction(void **state) {
  (void)state;
  for (int i = 0; i < OP_COUNT; i++) {
    const ms_op_attrs none = {0};
    const ms_attention_options o = options_of(OPS[i], &none);
    assert_int_equal(o.backward, i % 2);
    assert_int_equal(o.documents, i / 2);
    assert_int_equal(o.causal, i / 2); /* documents are, whatever their start */
  }
}

static void usual_values_are_filled_in(void **state) {
  (void)state;
  const ms_op_attrs usual = {.attention = {.causal = 1}}, whole = {.attention = {.causal = 1, .window = KEYS}},
                    most = {.attention = {.causal = 1, .window = KEYS - 1, .scale = 0.25}};
  ms_attention_options o = options_of(MS_OP_attention, &usual);
  assert_true(o.scale == (float)(1 / sqrt((double)HEAD)) && o.window == 0 && o.part.ranks == 0);
  assert_int_equal(ms_attention_queries(&o, 6), 6);
  assert_int_equal(options_of(MS_OP_attention, &whole).window, 0);
  o = options_of(MS_OP_attention, &most);
  assert_true(o.scale == 0.25f && o.window == KEYS - 1);
  o.part.ranks = 2;
  assert_int_equal(ms_attention_queries(&o, 6), 12);
}

static void numbers_that_no_option_can_have_are_refused(void **state) {
  (void)state;
  const ms_op_attrs open = {.attention = {.prefix = 3}}, both = {.attention = {.causal = 1, .window = 2, .prefix = 3}},
                    negative = {.attention = {.causal = 1, .window = -1}}, cap = {.attention = {.softcap = -1}},
                    tiny = {.attention = {.softcap = 1e-60}};
  assert_fails(ms_attention_options_check("attention", MS_OP_attention, &open), MS_EINVAL,
               "attention | prefix | 3 | causal");
  assert_fails(ms_attention_options_check("attention", MS_OP_attention, &both), MS_EINVAL, "prefix | 3 | window");
  assert_fails(ms_attention_options_check("attention", MS_OP_attention, &negative), MS_EINVAL, "window | -1");
  assert_fails(ms_attention_options_check("attention", MS_OP_attention, &cap), MS_EINVAL, "softcap | -1");
  assert_fails(ms_attention_options_check("attention", MS_OP_attention, &tiny), MS_EINVAL, "softcap | 1e-60");
  must(ms_attention_options_check("document_attention", MS_OP_document_attention, &open));
}

/* Calls with windows on both sides, or without one, and values of any width: products with the keys that queries
 * see, one with the keys and one with the values forward, three and two backward. */
static void work_counts_pairs_and_both_widths(void **state) {
  (void)state;
  const int64_t windows[] = {0, 1, 3, 5, 8, 40}, queries = 6, keys = 9, heads = 4, d = 16;
  for (int i = 0; i < 6; i++)
    for (int64_t e = 4; e <= 32; e *= 2)
      for (int back = 0; back < 2; back++) {
        const ms_op_attrs attrs = {.attention = {.window = windows[i]}};
        const ms_value_info q = {.ndim = 4, .dims = {2, queries, heads, d}}, k = {.ndim = 4, .dims = {2, keys, 2, d}},
                            v = {.ndim = 4, .dims = {2, keys, 2, e}}, in[6] = {q, k, v}, out[3] = {q, k, v};
        const ms_cost_case c = {.op = back ? MS_OP_attention_backward : MS_OP_attention,
                                .attrs = &attrs,
                                .inputs = back ? 6 : 3,
                                .outputs = back ? 3 : 2,
                                .in = in,
                                .out = out};
        double pairs = 0;
        for (int64_t at = keys - queries; at < keys; at++)
          for (int64_t key = 0; key < keys; key++) pairs += !windows[i] || llabs(at - key) < windows[i];
        const double expected = 2.0 * 2 * (double)heads * pairs * (double)(back ? 3 * d + 2 * e : d + e);
        const double flops = ms_op_row_of(c.op)->work(&c).flops;
        if (fabs(flops / expected - 1) > 1e-12)
          fail_msg("window %d, values of %d, backward %d: %g operations instead of %g", (int)windows[i], (int)e, back,
                   flops, expected);
      }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_attribute_is_an_option),
      cmocka_unit_test(the_op_decides_documents_and_direction),
      cmocka_unit_test(usual_values_are_filled_in),
      cmocka_unit_test(numbers_that_no_option_can_have_are_refused),
      cmocka_unit_test(work_counts_pairs_and_both_widths),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
