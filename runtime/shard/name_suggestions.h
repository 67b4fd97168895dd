/* name_suggestions.h - names that a pattern without matches was probably meant for. */
#ifndef MS_SHARD_NAME_SUGGESTIONS_H
#define MS_SHARD_NAME_SUGGESTIONS_H

#include "base/text/text.h"

/* Appends at most three names nearest to the pattern, best first, as "a, b, c". Compares a plain pattern with names
 * and their dotted prefixes, and the literal characters of a regular expression with any part of a name. Returns
 * MS_OK or MS_ENOMEM. */
int ms_suggest_names(const char *pattern, int is_regex, int n, const char *const *names, ms_text *out);

#endif
