/* tokenizer_pieces.c - the pattern that splits text into pieces, compiled by PCRE2.
 *
 * Patterns are written for other engines, whose \s is Unicode's White_Space; PCRE2's also includes U+180E. \s and \S
 * are therefore rewritten as explicit sets. Patterns with lookbehind would see where a text was split, and are
 * rejected.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "base/error.h"
#include "base/text/text.h"
#include "io/tokenizer/tokenizer.h"

#include <ctype.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#define WHITE_SPACE "\\x09-\\x0d\\x{85}\\p{Z}"

/* Letter escapes with the same meaning in all engines. */
#define SAME_EVERYWHERE "pPdDrnt"

enum { MATCH_LIMIT = 100000000, STACK_BYTES = 32 * 1024, MAX_STACK_BYTES = 8 * 1024 * 1024 };

struct ms_pieces {
  pcre2_code *code;
  int compiled; /* to machine code */
};

struct ms_piece_matcher {
  const ms_pieces *pieces;
  pcre2_match_data *match;
  pcre2_match_context *context;
  pcre2_jit_stack *stack;
};

static int rewrite(const char *pattern, ms_text *out) {
  int in_class = 0;
  for (const char *p = pattern; *p; p++) {
    if (*p == '\\' && p[1]) {
      p++;
      if (*p == 's') {
        ms_text_append(out, in_class ? "%s" : "[%s]", WHITE_SPACE);
      } else if (*p == 'S' && in_class) {
        return MS_FAIL(MS_EINVAL, "\\S inside of [] is not supported");
      } else if (*p == 'S') {
        ms_text_append(out, "[^%s]", WHITE_SPACE);
      } else if (isalnum((unsigned char)*p) && !strchr(SAME_EVERYWHERE, *p)) {
        return MS_FAIL(MS_EINVAL, "\\%c is not supported", *p);
      } else {
        ms_text_append(out, "\\%c", *p);
      }
      continue;
    }
    if (in_class && *p == '&' && p[1] == '&') return MS_FAIL(MS_EINVAL, "&& inside of [] is not supported");
    if (in_class && *p == '[' && (p[1] == '^' || p[1] == ':'))
      return MS_FAIL(MS_EINVAL, "[%c inside of [] is not supported", p[1]);
    if (in_class && (*p == '[' || (*p == ']' && in_class > 1))) { /* a set within a set: their union */
      in_class += *p == '[' ? 1 : -1;
      continue;
    }
    if (!in_class && (*p == '^' || *p == '$')) return MS_FAIL(MS_EINVAL, "%c outside of [] is not supported", *p);
    if (!in_class && !strncmp(p, "(?<", 3) && (p[3] == '=' || p[3] == '!'))
      return MS_FAIL(MS_EINVAL, "looking behind, %.4s, is not supported", p);
    if (*p == '[') {
      in_class = 1;
      if (p[1] == '^') ms_text_append(out, "%c", *p++);
    } else if (*p == ']') {
      in_class = 0;
    }
    ms_text_append(out, "%c", *p);
  }
  return ms_text_status(out);
}

static int compile(const char *pattern, ms_pieces *pieces) {
  int reason;
  size_t offset;
  pieces->code =
      pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &reason, &offset, NULL);
  if (!pieces->code) {
    char why[256];
    if (pcre2_get_error_message(reason, (PCRE2_UCHAR *)why, sizeof why) < 0) strcpy(why, "unknown reason");
    return MS_FAIL(MS_EINVAL, "bad pattern: %s at offset %zu of %s", why, offset, pattern);
  }
  pieces->compiled = !pcre2_jit_compile(pieces->code, PCRE2_JIT_COMPLETE);
  return MS_OK;
}

int ms_pieces_compile(const char *pattern, ms_pieces **pieces) {
  ms_text text = {0};
  *pieces = NULL;
  ms_pieces *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  int rc = rewrite(pattern, &text);
  if (!rc) rc = compile(text.data ? text.data : "", made);
  ms_text_free(&text);
  if (rc) {
    ms_pieces_free(made);
    return rc;
  }
  *pieces = made;
  return MS_OK;
}

void ms_pieces_free(ms_pieces *pieces) {
  if (!pieces) return;
  pcre2_code_free(pieces->code);
  free(pieces);
}

int ms_piece_matcher_new(const ms_pieces *pieces, ms_piece_matcher **matcher) {
  *matcher = NULL;
  ms_piece_matcher *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  made->pieces = pieces;
  made->match = pcre2_match_data_create(1, NULL);
  made->context = pcre2_match_context_create(NULL);
  made->stack = pcre2_jit_stack_create(STACK_BYTES, MAX_STACK_BYTES, NULL);
  if (!made->match || !made->context || !made->stack) {
    ms_piece_matcher_free(made);
    return MS_FAIL(MS_ENOMEM, "out of memory: a pattern");
  }
  pcre2_set_match_limit(made->context, MATCH_LIMIT);
  pcre2_jit_stack_assign(made->context, NULL, made->stack);
  *matcher = made;
  return MS_OK;
}

void ms_piece_matcher_free(ms_piece_matcher *matcher) {
  if (!matcher) return;
  pcre2_jit_stack_free(matcher->stack);
  pcre2_match_context_free(matcher->context);
  pcre2_match_data_free(matcher->match);
  free(matcher);
}

int ms_piece_match(ms_piece_matcher *matcher, ms_span text, int64_t from, int64_t *begin, int64_t *end) {
  const ms_pieces *pieces = matcher->pieces;
  const size_t length = (size_t)text.bytes, start = (size_t)from;
  int rc = PCRE2_ERROR_JIT_STACKLIMIT;
  if (pieces->compiled) rc = pcre2_jit_match(pieces->code, text.at, length, start, 0, matcher->match, matcher->context);
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* there is no machine code, or it ran out of stack */
    rc = pcre2_match(pieces->code, text.at, length, start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, matcher->match,
                     matcher->context);
  *begin = *end = -1;
  if (rc == PCRE2_ERROR_NOMATCH) return MS_OK;
  if (rc < 0) {
    char why[256];
    if (pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why) < 0) strcpy(why, "unknown reason");
    return MS_FAIL(MS_EINVAL, "a pattern of the tokenizer failed at byte %lld: %s", (long long)from, why);
  }
  const size_t *span = pcre2_get_ovector_pointer(matcher->match);
  *begin = (int64_t)span[0];
  *end = (int64_t)span[1];
  return MS_OK;
}

int ms_piece_next(ms_piece_matcher *matcher, ms_span text, int64_t from, int64_t *end) {
  int64_t begin;
  MS_TRY(ms_piece_match(matcher, text, from, &begin, end));
  if (begin < 0) *end = text.bytes;
  if (begin > from) *end = begin;
  if (*end <= from)
    return MS_FAIL(MS_EINVAL, "the pattern of the pre-tokenizer matches nothing at byte %lld", (long long)from);
  return MS_OK;
}
