/* compare.c - compares fingerprints, which are small, and exchanges texts only when fingerprints differ. */
#include "exec/state/compare.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text/hash.h"

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

/* What ranks compare, and what to do if it differs. */
typedef struct subject {
  const char *what, *advice;
} subject;

static const char give_all[] =
    "give all ranks the same model, rules, optimizer and its groups, and batches of the same shapes";
static const subject models = {"models", give_all}, plans = {"plans", give_all};
static const subject instruction_sets = {
    "instruction sets",
    "replicas compute the same updates, which these round differently: use hosts with the same processors, or a mesh "
    "whose ranks all have other weights (only shard)"};

static int report(const ms_group *group, const subject *of, int place, const char *first, const char *other) {
  skip_common_lines(&first, &other);
  return MS_FAIL(MS_EMISMATCH, "ranks have different %s: rank %d has \"%.*s\", rank %d has \"%.*s\"; %s", of->what,
                 group->rank[0], line_length(first), first, group->rank[place], line_length(other), other, of->advice);
}

static int gather(ms_group *group, const char *text, char ***texts) {
  char *mine = ms_strdup(text);
  if (!mine) return MS_ENOMEM;
  if (strlen(mine) > LONGEST_TEXT) mine[LONGEST_TEXT] = '\0';
  int rc = ms_group_all_gather_text(group, mine, texts);
  free(mine);
  return rc;
}

static int compare_texts(ms_group *group, const subject *of, const char *text, int place) {
  char **texts;
  MS_TRY(gather(group, text, &texts));
  int rc = report(group, of, place, texts[0], texts[place]);
  ms_group_free_texts(group, texts);
  return rc;
}

/* Advances both, of ms_plan_describe_kernels, to what the first kernel with another hash computes. 0: it reads alike,
 * or there is none. */
static int find_other_kernel(const char **a, const char **b) {
  enum { HASH = 17 }; /* digits and a blank */
  while (**a && **b && !strncmp(*a, *b, HASH)) {
    *a += line_length(*a);
    *b += line_length(*b);
    *a += **a == '\n'; /* a text that was cut ends within a line */
    *b += **b == '\n';
  }
  if (line_length(*a) < HASH || line_length(*b) < HASH) return 0;
  *a += HASH;
  *b += HASH;
  const int length = line_length(*a);
  return length != line_length(*b) || strncmp(*a, *b, (size_t)length);
}

/* A plan's manifest has only a hash of the kernels that follow each other: whether that is what differs. */
static int differs_in_kernels(const char *first, const char *other) {
  skip_common_lines(&first, &other);
  const char *kernels = strstr(first, ": kernels of ");
  return kernels && kernels < first + line_length(first);
}

/* Ranks exchange what each kernel computes. manifests: reported where all of it reads alike. */
static int report_kernels(ms_group *group, const ms_plan *plan, int place, char **manifests) {
  char **lines;
  ms_text text = {0};
  ms_plan_describe_kernels(plan, &text);
  int rc = ms_text_status(&text);
  if (!rc) rc = gather(group, text.data, &lines);
  ms_text_free(&text);
  if (rc) return rc;
  const char *first = lines[0], *other = lines[place];
  rc = find_other_kernel(&first, &other) ? report(group, &plans, place, first, other)
                                         : report(group, &plans, place, manifests[0], manifests[place]);
  ms_group_free_texts(group, lines);
  return rc;
}

static int compare_plan_texts(ms_group *group, const ms_plan *plan, int place) {
  char **texts;
  MS_TRY(gather(group, plan->manifest, &texts));
  int rc = differs_in_kernels(texts[0], texts[place]) ? report_kernels(group, plan, place, texts)
                                                      : report(group, &plans, place, texts[0], texts[place]);
  ms_group_free_texts(group, texts);
  return rc;
}

static int agree(ms_group *group, const subject *of, uint64_t fingerprint, const char *text, const ms_plan *plan) {
  uint64_t *fingerprints = ms_calloc(group->size, sizeof *fingerprints);
  if (!fingerprints) return MS_ENOMEM;
  int rc = ms_group_all_gather_bytes(group, &fingerprint, sizeof fingerprint, fingerprints);
  for (int i = 1; i < group->size && !rc; i++)
    if (fingerprints[i] != fingerprints[0])
      rc = plan ? compare_plan_texts(group, plan, i) : compare_texts(group, of, text, i);
  free(fingerprints);
  return rc;
}

int ms_compare_models(ms_group *group, const ms_model *model, const ms_plan_config *config) {
  ms_text text = {0};
  ms_plan_describe_state(model, config, &text);
  int rc = ms_text_status(&text);
  if (!rc) rc = agree(group, &models, ms_hash_string(MS_HASH_INIT, text.data), text.data, NULL);
  ms_text_free(&text);
  return rc;
}

int ms_compare_plans(ms_group *group, const ms_plan *plan) {
  return agree(group, &plans, plan->fingerprint, plan->manifest, plan);
}

int ms_compare_instruction_sets(ms_group *group, const char *text) {
  return agree(group, &instruction_sets, ms_hash_string(MS_HASH_INIT, text), text, NULL);
}
