/* rank_list.c - runs of ranks, never cut inside of a number: a rank that is named wrongly is worse than one that is not. */
#include "comm/control/rank_list.h"

#include <stdio.h>
#include <string.h>

static const char MORE[] = ", ...";

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
