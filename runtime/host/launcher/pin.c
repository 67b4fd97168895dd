/* pin.c - divides the cores among the ranks. Ranks get whole physical cores if there are enough, in the order of the
 * topology, and one thread per core: two threads of a matrix product on the same core only compete for its units.
 */
#include "host/launcher/pin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/error.h"

/* Parses "3" or "0-3" at *text, and advances *text past it and a comma. Returns 0 if malformed. */
static int read_range(const char **text, int *first, int *last) {
  char *end;
  errno = 0;
  long low = strtol(*text, &end, 10), high = low;
  if (end == *text || **text < '0' || **text > '9') return 0;
  if (*end == '-') {
    const char *second = end + 1;
    high = strtol(second, &end, 10);
    if (end == second || *second < '0' || *second > '9') return 0;
  }
  if (errno || low > high || high >= CPU_SETSIZE || (*end && *end != ',') || (*end == ',' && !end[1])) return 0;
  *text = *end ? end + 1 : end;
  *first = (int)low;
  *last = (int)high;
  return 1;
}

static int find_core(const ms_cores *cores, int core) {
  for (int i = 0; i < cores->n; i++)
    if (cores->core[i] == core) return i;
  return -1;
}

static int refuse_core(const ms_cores *cores, const char *pin, int core) {
  cpu_set_t set;
  char have[256];
  CPU_ZERO(&set);
  for (int i = 0; i < cores->n; i++) CPU_SET(cores->core[i], &set);
  ms_cores_text(&set, have, sizeof have);
  return MS_FAIL(MS_EINVAL, "--pin %s: this process cannot use core %d, only %s", pin, core, have);
}

/* Parses a list of cores, in its order; fails for one that `cores` does not contain. */
static int read_list(const ms_cores *cores, const char *pin, ms_cores *chosen) {
  *chosen = (ms_cores){0};
  for (const char *text = pin; *text;) {
    int first, last;
    if (!read_range(&text, &first, &last))
      return MS_FAIL(MS_EINVAL, "--pin %s: it must be auto, none, or cores like 0-3,8", pin);
    for (int core = first; core <= last; core++) {
      int at = find_core(cores, core);
      if (at < 0) return refuse_core(cores, pin, core);
      if (find_core(chosen, core) >= 0) return MS_FAIL(MS_EINVAL, "--pin %s: core %d is named twice", pin, core);
      if (chosen->n == 0 || cores->physical[at] != cores->physical[find_core(cores, chosen->core[chosen->n - 1])])
        chosen->n_physical++;
      chosen->physical[chosen->n] = chosen->n_physical - 1;
      chosen->core[chosen->n++] = core;
    }
  }
  if (!chosen->n) return MS_FAIL(MS_EINVAL, "--pin: the list of cores is empty");
  chosen->quota = chosen->n;
  return MS_OK;
}

/* Rank r gets the r-th range of physical cores, or of hardware threads if there are more ranks than physical cores. */
static void divide(const ms_cores *cores, int ranks, ms_pinning *pinning) {
  int whole = cores->n_physical >= ranks;
  int share = (whole ? cores->n_physical : cores->n) / ranks;
  for (int i = 0; i < cores->n; i++) {
    int rank = (whole ? cores->physical[i] : i) / share;
    if (rank < ranks) CPU_SET(cores->core[i], &pinning->set[rank]);
  }
}

int ms_pinning_plan(const ms_cores *cores, int granted, const char *pin, int threads, int ranks, ms_pinning *pinning) {
  ms_cores chosen = *cores;
  int automatic = !pin || !strcmp(pin, "auto"), none = pin && !strcmp(pin, "none");
  *pinning = (ms_pinning){.ranks = ranks};
  if (!automatic && !none) {
    MS_TRY(read_list(cores, pin, &chosen));
    if (chosen.n < ranks)
      return MS_FAIL(MS_EINVAL, "--pin %s: %d core%s for %d ranks; name at least one per rank", pin, chosen.n,
                     chosen.n == 1 ? "" : "s", ranks);
  }
  int usable = ms_cores_usable(&chosen), all = usable == chosen.n && (!granted || granted >= chosen.n || !automatic);
  pinning->threads = ms_threads_each(&chosen, automatic || none ? granted : 0, ranks);
  if (!none && all && chosen.n >= ranks) {
    divide(&chosen, ranks, pinning);
    pinning->pinned = !automatic || threads <= pinning->threads;
  }
  if (threads > 0) pinning->threads = threads;
  return MS_OK;
}

void ms_pinning_take(const ms_pinning *pinning, int rank) {
  char text[16];
  snprintf(text, sizeof text, "%d", pinning->threads);
  if (!ms_env_string("OMP_NUM_THREADS", NULL)) setenv("OMP_NUM_THREADS", text, 1);
  if (pinning->pinned) sched_setaffinity(0, sizeof pinning->set[rank], &pinning->set[rank]);
}
