/* message.h - what tests check of messages: the facts that they hold. Sentences are worded for their readers and change
 * when that reads better; names, numbers, values, places and commands are what a message must say. */
#ifndef MS_TESTS_MESSAGE_H
#define MS_TESTS_MESSAGE_H

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static inline int message_is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* Whether the fact at text[at] is there as a whole: rank 1 is not in rank 12, nor 5 in 1.5, nor lr in clr. Words of
 * more than three letters may go on, so that "differ" is in "differs". */
static inline int message_stands_alone(const char *text, size_t at, const char *fact, size_t length) {
  const char *after = text + at + length;
  char last = fact[length - 1];
  if (at > 0 && message_is_word(fact[0]) && message_is_word(text[at - 1])) return 0;
  if (at > 1 && isdigit((unsigned char)fact[0]) && text[at - 1] == '.' && isdigit((unsigned char)text[at - 2]))
    return 0;
  if (isdigit((unsigned char)last) && after[0] == '.' && isdigit((unsigned char)after[1])) return 0;
  return !(message_is_word(last) && message_is_word(after[0])) || (length > 3 && isalpha((unsigned char)last));
}

/* The first fact that the text lacks, or NULL: a copy that the next call overwrites, of each thread. Facts are
 * separated by " | ", in any order and case: "rank 2 | layers.1 | all_gather". */
static inline const char *message_lacks(const char *text, const char *facts) {
  static _Thread_local char lacking[512];
  for (const char *fact = facts, *next; fact; fact = next) {
    const char *end = strstr(fact, " | ");
    size_t length = end ? (size_t)(end - fact) : strlen(fact), size = strlen(text);
    int found = 0;
    next = end ? end + 3 : NULL;
    for (size_t at = 0; length && at + length <= size && !found; at++)
      found = !strncasecmp(text + at, fact, length) && message_stands_alone(text, at, fact, length);
    if (found) continue;
    snprintf(lacking, sizeof lacking, "%.*s", (int)length, fact);
    return lacking;
  }
  return NULL;
}

#endif
