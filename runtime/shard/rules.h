/* rules.h - a policy: an ordered list of patterns over names, with a record of which rule decided each name. */
#ifndef MS_SHARD_RULES_H
#define MS_SHARD_RULES_H

#include "base/handle.h"
#include "base/text/regex.h"
#include "moonshard.h"

typedef struct ms_rule {
  char *pattern, *where;
  char *context;   /* prefix of its messages: "recipe.lua:12: policy" */
  ms_regex *regex; /* NULL: pattern is an exact name or a dotted prefix */
  int optional;
} ms_rule;

struct ms_rules {
  ms_handle handle;
  char *policy;
  ms_rule *rules;
  int count, capacity;
  char **warnings; /* from the last ms_rules_resolve */
  int warning_count, warning_capacity;
};

#endif
