/* rank_set.c - writes sets of ranks as runs of ranks. A text that does not fit is never cut within a number, since a
 * wrong rank is worse than a missing one. */
#include "comm/control/rank_set.h"

#include <stdio.h>
#include <string.h>

static const char MORE[] = ", ...";

ms_rank_set ms_rank_set_all(int size) {
  ms_rank_set all = {{0}};
  for (int rank = 0; rank < size; rank++) ms_rank_set_add(&all, rank);
  return all;
}

ms_rank_set ms_rank_set_both(const ms_rank_set *a, const ms_rank_set *b) {
  ms_rank_set both;
  for (int i = 0; i < MS_RANK_SET_WORDS; i++) both.word[i] = a->word[i] & b->word[i];
  return both;
}

int ms_rank_set_count(const ms_rank_set *set) {
  int count = 0;
  for (int i = 0; i < MS_RANK_SET_WORDS; i++) count += __builtin_popcountll(set->word[i]);
  return count;
}

void ms_rank_set_text(const ms_rank_set *set, char *text, size_t bytes) {
  uint8_t chosen[64 * MS_RANK_SET_WORDS];
  for (int rank = 0; rank < 64 * MS_RANK_SET_WORDS; rank++) chosen[rank] = (uint8_t)ms_rank_set_has(set, rank);
  size_t used = (size_t)snprintf(text, bytes, ms_rank_set_count(set) == 1 ? "rank " : "ranks ");
  if (used < bytes) ms_rank_list(chosen, 64 * MS_RANK_SET_WORDS, text + used, bytes - used);
}

int ms_rank_list(const uint8_t *chosen, int size, char *text, size_t bytes) {
  int count = 0, cut = 0;
  size_t used = 0;
  text[0] = '\0';
  for (int rank = 0; rank < size; rank++) {
    if (!chosen[rank]) continue;
    char item[32];
    int last = rank;
    while (last + 1 < size && chosen[last + 1]) last++;
    count += last - rank + 1;
    const char *format = last > rank ? "%s%d-%d" : "%s%d";
    size_t n = (size_t)snprintf(item, sizeof item, format, used ? ", " : "", rank, last);
    if (!cut && used + n + sizeof MORE > bytes) {
      cut = 1;
      snprintf(text + used, bytes - used, "%s", MORE);
    }
    if (!cut) memcpy(text + used, item, n + 1);
    if (!cut) used += n;
    rank = last;
  }
  return count;
}
