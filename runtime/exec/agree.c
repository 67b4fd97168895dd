/* agree.c - fingerprints first, since they are small; the lines behind them only when they differ. */
#include "exec/agree.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* What an exchange of texts takes. */
enum { LONGEST_TEXT = 1 << 20 };

static int line_length(const char *text) { return (int)strcspn(text, "\n"); }

/* Moves both to the first line that differs. */
static void skip_common_lines(const char **a, const char **b) {
  while (**a && **b) {
    int length = line_length(*a);
    if (length != line_length(*b) || strncmp(*a, *b, (size_t)length)) return;
    *a += length + ((*a)[length] == '\n');
    *b += length + ((*b)[length] == '\n');
  }
}

static int report(int rank, const char *first, const char *other) {
  skip_common_lines(&first, &other);
  return MS_FAIL(MS_EMISMATCH, "ranks have different plans: rank 0 has \"%.*s\", rank %d has \"%.*s\"",
                 line_length(first), first, rank, line_length(other), other);
}

static int compare_manifests(ms_world *world, const ms_plan *plan, int rank) {
  char *texts[MS_MAX_LOCAL_RANKS];
  char *mine = ms_strdup(plan->manifest);
  if (!mine) return MS_ENOMEM;
  if (strlen(mine) > LONGEST_TEXT) mine[LONGEST_TEXT] = '\0';
  int rc = ms_world_exchange_text(world, mine, texts);
  free(mine);
  if (rc) return rc;
  rc = report(rank, texts[0], texts[rank]);
  for (int r = 0; r < ms_world_size(world); r++) free(texts[r]);
  return rc;
}

int ms_exec_agree(ms_world *world, const ms_plan *plan) {
  uint64_t fingerprints[MS_MAX_LOCAL_RANKS];
  MS_TRY(ms_world_exchange(world, &plan->fingerprint, sizeof plan->fingerprint, fingerprints));
  for (int rank = 1; rank < ms_world_size(world); rank++)
    if (fingerprints[rank] != fingerprints[0]) return compare_manifests(world, plan, rank);
  return MS_OK;
}
