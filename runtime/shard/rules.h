/* rules.h - a policy: an ordered list of patterns over names, and who in it decided what. */
#ifndef MS_SHARD_RULES_H
#define MS_SHARD_RULES_H

#include "base/handle.h"
#include "base/regex.h"
#include "moonshard.h"

typedef struct ms_rule {
  char *pattern, *where;
  char *context;   /* "recipe.lua:12: policy", what its messages open with */
  ms_regex *regex; /* NULL: pattern is an exact name or a dotted prefix of one */
  int optional;
} ms_rule;

struct ms_rules {
  ms_handle handle;
  char *policy;
  ms_rule *rules;
  int count, capacity;
  char **warnings; /* of the last resolve */
  int warning_count, warning_capacity;
};

/* *matches = 1 when the rule alone would take the name. */
int ms_rule_matches(const ms_rule *rule, const char *name, int *matches);

#endif
