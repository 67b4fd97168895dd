/* rules.c - decides names by ordered patterns.
 *
 * Every rule is expected to have an effect: a rule that matches no name is an error, and a rule whose matches are
 * all taken by earlier rules causes a warning. For both, each rule must also be tried on names that are already
 * decided, but only until its first match, so a long list of rules over many names stays cheap.
 */
#include "shard/rules.h"

#include "base/error.h"
#include "base/text/text.h"
#include "shard/name_suggestions.h"

#include <stdlib.h>
#include <string.h>

/* What ms_rules_resolve finds out about a rule. */
typedef struct tally {
  int wins;
  int first_match; /* index of a name, or -1 */
} tally;

static void free_rule(ms_rule *rule) {
  ms_regex_free(rule->regex);
  free(rule->pattern);
  free(rule->where);
  free(rule->context);
}

/* Returns NULL without memory; the caller frees the text. */
static char *compose_context(const char *where, const char *policy) {
  ms_text text = {0};
  ms_text_append(&text, "%s%s%s", where, *where ? ": " : "", policy);
  if (ms_text_status(&text)) ms_text_free(&text);
  return text.data;
}

static void clear_warnings(ms_rules *rules) {
  for (int i = 0; i < rules->warning_count; i++) free(rules->warnings[i]);
  rules->warning_count = 0;
}

static void destroy_rules(void *object) {
  ms_rules *rules = object;
  for (int i = 0; i < rules->count; i++) free_rule(&rules->rules[i]);
  clear_warnings(rules);
  free(rules->warnings);
  free(rules->rules);
  free(rules->policy);
}

int ms_rules_new(const char *policy, ms_rules **rules) {
  MS_GIVEN(rules);
  *rules = NULL;
  ms_rules *made = ms_handle_new(MS_HANDLE_RULES, sizeof *made, destroy_rules);
  if (!made) return MS_ENOMEM;
  made->policy = ms_strdup(policy && *policy ? policy : "rules");
  if (!made->policy) {
    ms_free(made);
    return MS_ENOMEM;
  }
  *rules = made;
  return MS_OK;
}

int ms_rules_add(ms_rules *rules, const char *pattern, int is_regex, int optional, const char *where) {
  MS_HANDLE(rules, RULES);
  MS_GIVEN(pattern);
  ms_rule rule = {.optional = optional};
  int rc = MS_ENOMEM;
  if (!pattern) return MS_FAIL(MS_EINVAL, "%s: a rule has no pattern", rules->policy);
  rule.pattern = ms_strdup(pattern);
  rule.where = ms_strdup(where ? where : "");
  if (!rule.pattern || !rule.where || !(rule.context = compose_context(rule.where, rules->policy))) goto fail;
  if (is_regex) MS_GOTO(ms_regex_compile(pattern, rule.context, &rule.regex));
  MS_GOTO(ms_grow((void **)&rules->rules, &rules->capacity, rules->count + 1, sizeof *rules->rules));
  rules->rules[rules->count++] = rule;
  return MS_OK;
fail:
  free_rule(&rule);
  return rc;
}

/* Sets *matches to 1 when the pattern matches the name, regardless of other rules. */
static int matches_name(const ms_rule *rule, const char *name, int *matches) {
  if (rule->regex) return ms_regex_search(rule->regex, name, matches);
  size_t length = strlen(rule->pattern);
  *matches = !strncmp(name, rule->pattern, length) && (name[length] == '\0' || name[length] == '.');
  return MS_OK;
}

/* Appends the regular expression that a string probably means. In a plan of PyTorch, "layers.*.wq", a star is one level
 * of the name. */
static void append_regex(ms_text *regex, const char *pattern) {
  const int is_plan = !strpbrk(pattern, "^$+?[]()|\\") && (strstr(pattern, ".*.") || !strncmp(pattern, "*.", 2));
  for (const char *c = pattern; *c; c++)
    if (is_plan && *c == '*') ms_text_string(regex, "\\w+");
    else ms_text_append(regex, is_plan && *c == '.' ? "\\%c" : "%c", *c);
}

/* The number of names that have a string somewhere, and the first of them. */
static int names_with(const char *text, int n, const char *const *names, const char **first) {
  int count = 0;
  for (int i = n - 1; i >= 0; i--)
    if (strstr(names[i], text)) count++, *first = names[i];
  return count;
}

/* The error of a rule that matches no name. A string that looks like a regular expression, or is a part of names, gets
 * different advice. */
static int fail_unmatched(const ms_rule *rule, int n, const char *const *names) {
  const char *quote = rule->regex ? "/" : "\"";
  const char *of_lua = "regular expressions have \\d and \\. where Lua's patterns have %d and %.";
  if (n == 0)
    return MS_FAIL(MS_ERULE, "%s: rule %s%s%s matches nothing: there are no names", rule->context, quote, rule->pattern,
                   quote);
  int looks_like_regex = !rule->regex && rule->pattern[strcspn(rule->pattern, "^$*+?[]()|\\")];
  const char *level = strchr(rule->pattern, ']') ? "=" : ""; /* level of Lua's long brackets */
  const char *first = NULL;
  const int parts = rule->regex ? 0 : names_with(rule->pattern, n, names, &first);
  ms_text near = {0}, regex = {0};
  int rc = ms_suggest_names(rule->pattern, rule->regex != NULL, n, names, &near);
  append_regex(&regex, rule->pattern);
  if (!rc) rc = ms_text_status(&regex);
  if (!rc && looks_like_regex)
    rc = MS_FAIL(
        MS_ERULE,
        "%s: rule \"%s\" matches none of %d name%s; nearest: %s; a string matches a name or a dotted prefix of names: "
        "for a regular expression write re[%s[%s]%s]",
        rule->context, rule->pattern, n, n == 1 ? "" : "s", near.data, level, regex.data, level);
  else if (!rc && parts)
    rc = MS_FAIL(MS_ERULE,
                 "%s: rule \"%s\" matches none of %d names; a string matches a name or a dotted prefix of names: the "
                 "regular expression re[[%s]] matches %d, first %s",
                 rule->context, rule->pattern, n, rule->pattern, parts, first);
  else if (!rc)
    rc = MS_FAIL(MS_ERULE, "%s: rule %s%s%s matches none of %d name%s; nearest: %s; %s", rule->context, quote,
                 rule->pattern, quote, n, n == 1 ? "" : "s", near.data,
                 rule->regex && strchr(rule->pattern, '%') ? of_lua : "mark the rule optional if that is meant");
  ms_text_free(&near), ms_text_free(&regex);
  return rc;
}

static int warn_shadowed(ms_rules *rules, const ms_rule *rule, const ms_rule *winner, const char *name) {
  ms_text text = {0};
  const char *quote = rule->regex ? "/" : "\"", *winner_quote = winner->regex ? "/" : "\"";
  int rc;
  ms_text_append(&text, "%s: rule %s%s%s never decides: earlier rules take all it matches; rule %s%s%s", rule->context,
                 quote, rule->pattern, quote, winner_quote, winner->pattern, winner_quote);
  if (winner->where[0]) ms_text_append(&text, " (%s)", winner->where);
  ms_text_append(&text, " takes %s", name);
  MS_GOTO(ms_text_status(&text));
  MS_GOTO(
      ms_grow((void **)&rules->warnings, &rules->warning_capacity, rules->warning_count + 1, sizeof *rules->warnings));
  rules->warnings[rules->warning_count++] = text.data;
  return MS_OK;
fail:
  ms_text_free(&text);
  return rc;
}

/* The first rule that matches decides. Later rules are tried only if they have not matched any name yet. */
static int decide_name(const ms_rules *rules, tally *tallies, int index, const char *name, int *decided) {
  *decided = -1;
  for (int r = 0; r < rules->count; r++) {
    if (*decided >= 0 && tallies[r].first_match >= 0) continue;
    int matches;
    MS_TRY(matches_name(&rules->rules[r], name, &matches));
    if (!matches) continue;
    if (tallies[r].first_match < 0) tallies[r].first_match = index;
    if (*decided >= 0) continue;
    *decided = r;
    tallies[r].wins++;
  }
  return MS_OK;
}

int ms_rules_resolve(ms_rules *rules, int n, const char *const *names, int *decided) {
  MS_HANDLE(rules, RULES);
  MS_NOT_NEGATIVE(n);
  if (n > 0) MS_GIVEN(names);
  if (n > 0) MS_GIVEN(decided);
  for (int i = 0; i < n; i++) MS_GIVEN(names[i]);
  int rc = MS_OK;
  clear_warnings(rules);
  tally *tallies = ms_calloc(rules->count, sizeof *tallies);
  if (!tallies) return MS_ENOMEM;
  for (int r = 0; r < rules->count; r++) tallies[r] = (tally){0, -1};
  for (int i = 0; i < n; i++) MS_GOTO(decide_name(rules, tallies, i, names[i], &decided[i]));
  for (int r = 0; r < rules->count; r++) {
    const ms_rule *rule = &rules->rules[r];
    int match = tallies[r].first_match;
    if (match < 0 && !rule->optional) MS_GOTO(fail_unmatched(rule, n, names));
    if (match >= 0 && !tallies[r].wins)
      MS_GOTO(warn_shadowed(rules, rule, &rules->rules[decided[match]], names[match]));
  }
fail:
  free(tallies);
  return rc;
}

const char *ms_rules_warning(const ms_rules *rules, int i) {
  MS_HANDLE_OR(NULL, rules, RULES);
  return i >= 0 && i < rules->warning_count ? rules->warnings[i] : NULL;
}
