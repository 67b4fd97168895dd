/* compare.c - compares fingerprints, which are small, and exchanges texts only when fingerprints differ. */
#include "exec/compare.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"

/* Bytes of text that ranks exchange at most; the rest is cut off. */
enum { LONGEST_TEXT = 1 << 20 };

static int line_length(const char *text) { return (int)strcspn(text, "\n"); }

/* Advances both to the first line that differs. */
static void skip_common_lines(const char **a, const char **b) {
  while (**a && **b) {
    int length = line_length(*a);
    if (length != line_length(*b) || strncmp(*a, *b, (size_t)length)) return;
    *a += length + ((*a)[length] == '\n');
    *b += length + ((*b)[length] == '\n');
  }
}

static int report(const ms_group *group, const char *what, int place, const char *first, const char *other) {
  skip_common_lines(&first, &other);
  return MS_FAIL(MS_EMISMATCH,
                 "ranks have different %s: rank %d has \"%.*s\", rank %d has \"%.*s\"; give all ranks the same model, "
                 "rules, optimizer and its groups, and batches of the same shapes",
                 what, group->rank[0], line_length(first), first, group->rank[place], line_length(other), other);
}

static int compare_texts(ms_group *group, const char *what, const char *text, int place) {
  char **texts;
  char *mine = ms_strdup(text);
  if (!mine) return MS_ENOMEM;
  if (strlen(mine) > LONGEST_TEXT) mine[LONGEST_TEXT] = '\0';
  int rc = ms_group_all_gather_text(group, mine, &texts);
  free(mine);
  if (rc) return rc;
  rc = report(group, what, place, texts[0], texts[place]);
  ms_group_free_texts(group, texts);
  return rc;
}

static int agree(ms_group *group, const char *what, uint64_t fingerprint, const char *text) {
  uint64_t *fingerprints = ms_calloc(group->size, sizeof *fingerprints);
  if (!fingerprints) return MS_ENOMEM;
  int rc = ms_group_all_gather_bytes(group, &fingerprint, sizeof fingerprint, fingerprints);
  for (int i = 1; i < group->size && !rc; i++)
    if (fingerprints[i] != fingerprints[0]) rc = compare_texts(group, what, text, i);
  free(fingerprints);
  return rc;
}

int ms_compare_models(ms_group *group, const ms_model *model, const ms_plan_config *config) {
  ms_text text = {0};
  ms_plan_describe_state(model, config, &text);
  int rc = ms_text_status(&text);
  if (!rc) rc = agree(group, "models", ms_hash_string(MS_HASH_INIT, text.data), text.data);
  ms_text_free(&text);
  return rc;
}

int ms_compare_plans(ms_group *group, const ms_plan *plan) {
  return agree(group, "plans", plan->fingerprint, plan->manifest);
}
