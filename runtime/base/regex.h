/* regex.h - one PCRE2 pattern that searches in names. JIT where PCRE2 has it; a match limit stops runaway patterns. */
#ifndef MS_BASE_REGEX_H
#define MS_BASE_REGEX_H

typedef struct ms_regex ms_regex;

/* On a bad pattern: MS_ERULE with where, PCRE2's reason, the offset, and the pattern with a caret under it. */
int ms_regex_compile(const char *pattern, const char *where, ms_regex **regex);
/* *found = 1 when the pattern matches somewhere in text. A match limit reached is MS_ERULE naming pattern and text. */
int ms_regex_search(const ms_regex *regex, const char *text, int *found);
void ms_regex_free(ms_regex *regex);

#endif
