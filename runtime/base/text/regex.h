/* regex.h - a PCRE2 pattern for searches in names. Uses the JIT if PCRE2 has one; a match limit stops runaway
 * patterns. */
#ifndef MS_BASE_REGEX_H
#define MS_BASE_REGEX_H

typedef struct ms_regex ms_regex;

/* A bad pattern is MS_ERULE; the message contains `where`, PCRE2's reason, the offset, and the pattern with a caret
 * below it. */
int ms_regex_compile(const char *pattern, const char *where, ms_regex **regex);
/* *found = 1 if the pattern matches anywhere in text. Reaching the match limit is MS_ERULE; the message names pattern
 * and text. */
int ms_regex_search(const ms_regex *regex, const char *text, int *found);
void ms_regex_free(ms_regex *regex);

#endif
