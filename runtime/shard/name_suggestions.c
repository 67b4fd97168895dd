/* name_suggestions.c - edit distance from a pattern to names (Sellers 1980: approximate matching of a pattern inside
 * a text). */
#include "shard/name_suggestions.h"

#include "base/error.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 3, MAX_LITERAL = 128 };

typedef struct candidate {
  const char *name;
  int length, distance;
} candidate;

/* Extracts the literal characters of a regular expression; a digit class counts as '0', other syntax is skipped. */
static void literal_of_regex(const char *pattern, char literal[MAX_LITERAL]) {
  int length = 0;
  for (const char *p = pattern; *p && length < MAX_LITERAL - 1; p++) {
    if (*p == '\\' && p[1]) {
      p++;
      if (*p == 'd') literal[length++] = '0';
      else if (!isalnum((unsigned char)*p)) literal[length++] = *p;
    } else if (*p == '[' || *p == '{') {
      const char *close = strchr(p + 1, *p == '[' ? ']' : '}');
      if (close) p = close;
    } else if (*p == '(' && p[1] == '?') {
      while (p[1] && strchr("?:=!<>Pimsx", p[1])) p++;
    } else if (!strchr(".^$()|*+?]}", *p)) {
      literal[length++] = *p;
    }
  }
  literal[length] = '\0';
}

/* Any two digits are alike: a wrong layer number is a likely mistake. */
static int alike(char a, char b) {
  if (isdigit((unsigned char)a) && isdigit((unsigned char)b)) return 1;
  return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* The smallest distance of literal to a dotted prefix of name or (prefix = 0) to any part of it. row: [strlen(name)
 * + 1] scratch. */
static candidate nearest_part(const char *literal, int prefix, const char *name, int *row) {
  int columns = (int)strlen(name);
  for (int j = 0; j <= columns; j++) row[j] = prefix ? j : 0;
  for (int i = 0; literal[i]; i++) {
    int diagonal = row[0];
    row[0] = i + 1;
    for (int j = 1; j <= columns; j++) {
      int replaced = diagonal + !alike(literal[i], name[j - 1]);
      int removed = row[j] + 1, inserted = row[j - 1] + 1;
      diagonal = row[j];
      row[j] = removed < inserted ? removed : inserted;
      if (replaced < row[j]) row[j] = replaced;
    }
  }
  candidate best = {name, columns, row[columns]};
  for (int j = columns - 1; j >= 0; j--) {
    if (row[j] >= best.distance || (prefix && (name[j] != '.' || j == 0))) continue;
    best.distance = row[j];
    if (prefix) best.length = j;
  }
  return best;
}

static int same_text(const candidate *a, const candidate *b) {
  return a->length == b->length && !memcmp(a->name, b->name, (size_t)a->length);
}

/* Keeps best[] sorted by distance, earlier names first among equals, without duplicates. */
static void keep(candidate best[SHOWN], int *count, candidate found) {
  for (int i = 0; i < *count; i++)
    if (same_text(&best[i], &found)) return;
  int at = *count;
  while (at > 0 && found.distance < best[at - 1].distance) at--;
  if (at == SHOWN) return;
  if (*count < SHOWN) ++*count;
  memmove(best + at + 1, best + at, (size_t)(*count - 1 - at) * sizeof *best);
  best[at] = found;
}

int ms_suggest_names(const char *pattern, int is_regex, int n, const char *const *names, ms_text *out) {
  char literal[MAX_LITERAL];
  if (is_regex) literal_of_regex(pattern, literal);
  else strncpy(literal, pattern, sizeof literal - 1)[sizeof literal - 1] = '\0';

  size_t longest = 0;
  for (int i = 0; i < n; i++)
    if (strlen(names[i]) > longest) longest = strlen(names[i]);
  int *row = ms_calloc((int64_t)longest + 1, sizeof *row);
  if (!row) return MS_ENOMEM;

  candidate best[SHOWN];
  int count = 0;
  for (int i = 0; i < n; i++) keep(best, &count, nearest_part(literal, !is_regex, names[i], row));
  for (int i = 0; i < count; i++) ms_text_append(out, "%s%.*s", i ? ", " : "", best[i].length, best[i].name);
  free(row);
  return ms_text_status(out);
}
