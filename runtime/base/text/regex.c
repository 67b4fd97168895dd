/* regex.c - patterns with PCRE2 in UTF mode; bytes of a name that are not UTF-8 match nothing instead of causing an
 * error.
 *
 * The limits bound the cost of a runaway pattern to about ten milliseconds per name. JIT code is used if PCRE2 can
 * generate it; if that runs out of its small stack, the interpreter takes over with the same limits.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "base/text/regex.h"

#include "base/error.h"
#include "base/text/text.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum { MATCH_LIMIT = 1000000, DEPTH_LIMIT = 10000, SHOWN_BYTES = 60 };

struct ms_regex {
  char *pattern, *where;
  pcre2_code *code;
  pcre2_match_data *match;
  pcre2_match_context *limits;
};

static int continues_character(char c) { return ((unsigned char)c & 0xc0) == 0x80; }

/* Appends the line of the pattern that holds the offset, at most SHOWN_BYTES to either side, and a caret below. */
static void append_caret(ms_text *out, const char *pattern, size_t offset) {
  size_t start = offset, end = offset;
  while (start > 0 && pattern[start - 1] != '\n' && offset - start < SHOWN_BYTES) start--;
  while (pattern[end] && pattern[end] != '\n' && end - offset < SHOWN_BYTES) end++;
  while (start > 0 && start < offset && continues_character(pattern[start])) start++;
  while (continues_character(pattern[end])) end++;
  ms_text_append(out, "\n  %.*s\n  ", (int)(end - start), pattern + start);
  for (size_t i = start; i < offset; i++)
    if (!continues_character(pattern[i])) ms_text_append(out, "%c", pattern[i] == '\t' ? '\t' : ' ');
  ms_text_append(out, "^");
}

static int fail_pattern(const char *pattern, const char *where, int reason, size_t offset) {
  char why[256];
  if (pcre2_get_error_message(reason, (PCRE2_UCHAR *)why, sizeof why) < 0) strcpy(why, "unknown reason");
  ms_text shown = {0};
  append_caret(&shown, pattern, offset);
  int rc = ms_text_status(&shown);
  if (!rc)
    rc = MS_FAIL(MS_ERULE, "%s%sbad pattern at offset %zu: %s%s", where, *where ? ": " : "", offset, why, shown.data);
  ms_text_free(&shown);
  return rc;
}

int ms_regex_search(const ms_regex *regex, const char *text, int *found) {
  PCRE2_SPTR subject = (PCRE2_SPTR)text;
  size_t length = strlen(text);
  int rc = pcre2_match(regex->code, subject, length, 0, 0, regex->match, regex->limits);
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
    rc = pcre2_match(regex->code, subject, length, 0, PCRE2_NO_JIT, regex->match, regex->limits);
  *found = rc >= 0;
  if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH) return MS_OK;
  const char *where = regex->where, *colon = *where ? ": " : "";
  if (rc == PCRE2_ERROR_MATCHLIMIT || rc == PCRE2_ERROR_DEPTHLIMIT || rc == PCRE2_ERROR_HEAPLIMIT)
    return MS_FAIL(MS_ERULE, "%s%spattern /%s/ reached the match limit on \"%s\"; avoid nested repeats", where, colon,
                   regex->pattern, text);
  char why[256];
  if (pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why) < 0) strcpy(why, "unknown reason");
  return MS_FAIL(MS_ERULE, "%s%spattern /%s/ failed on \"%s\": %s", where, colon, regex->pattern, text, why);
}

void ms_regex_free(ms_regex *regex) {
  if (!regex) return;
  pcre2_match_context_free(regex->limits);
  pcre2_match_data_free(regex->match);
  pcre2_code_free(regex->code);
  free(regex->where);
  free(regex->pattern);
  free(regex);
}

int ms_regex_compile(const char *pattern, const char *where, ms_regex **regex) {
  int rc = MS_ENOMEM, reason;
  size_t offset;
  const uint32_t options = PCRE2_UTF | PCRE2_MATCH_INVALID_UTF;
  *regex = NULL;
  if (!where) where = "";
  ms_regex *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  if (!(made->pattern = ms_strdup(pattern)) || !(made->where = ms_strdup(where))) goto fail;
  made->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &reason, &offset, NULL);
  if (!made->code) {
    rc = fail_pattern(pattern, where, reason, offset);
    goto fail;
  }
  made->match = pcre2_match_data_create(1, NULL);
  made->limits = pcre2_match_context_create(NULL);
  if (!made->match || !made->limits) {
    rc = MS_FAIL(MS_ENOMEM, "out of memory for a pattern");
    goto fail;
  }
  pcre2_set_match_limit(made->limits, MATCH_LIMIT);
  pcre2_set_depth_limit(made->limits, DEPTH_LIMIT);
  pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE); /* if this fails, pcre2_match interprets the pattern */
  *regex = made;
  return MS_OK;
fail:
  ms_regex_free(made);
  return rc;
}
