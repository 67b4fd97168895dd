/* name_suggestions.h - which names a pattern that matches nothing was probably meant for. */
#ifndef MS_SHARD_NAME_SUGGESTIONS_H
#define MS_SHARD_NAME_SUGGESTIONS_H

#include "base/text.h"

/* Appends the names nearest to the pattern, best first, at most three, as "a, b, c". A plain pattern is compared with
** names and their dotted prefixes, a regular expression's literal characters with any part of a name. Returns MS_OK or
** MS_ENOMEM. */
int ms_suggest_names(const char *pattern, int is_regex, int n, const char *const *names, ms_text *out);

#endif
