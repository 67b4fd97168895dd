/* inject_delay.c - ms_inject_delay: parses "gather:100ms,update:1s@2" and selects the delays of a rank. */
#include "exec/bound/inject_delay.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/numbers/number.h"
#include "base/testing.h"

/* Points: the streams of collectives by their numbers, then the end of forward, the beginning of update and each of its
 * kernels. */
enum { FIRST = MS_STREAM_COMPUTE + 1, FORWARD = MS_NAMED_STREAMS, UPDATE, UPDATE_KERNEL, POINTS, MAX_DELAYS = 32 };

static const char *name_of(int point) {
  static const char *const names[] = {"forward", "update", "update_kernel"};
  return point >= FORWARD ? names[point - FORWARD] : ms_stream_name(point);
}

typedef struct injected {
  int point, rank; /* rank -1: all */
  double seconds;
} injected;

/* Set before execs are made, by one thread. */
static injected list[MAX_DELAYS];
static int listed;

static int refuse(const char *spec, const char *why) {
  char points[128];
  size_t used = 0;
  for (int p = FIRST; p < POINTS && used < sizeof points; p++)
    used += (size_t)snprintf(points + used, sizeof points - used, "%s%s", p > FIRST ? ", " : "", name_of(p));
  return MS_FAIL(
      MS_EINVAL,
      "delay '%s': %s; write POINT:TIME or POINT:TIME@RANK, separated by commas, as in gather:100ms,update:1s@2 "
      "(points: %s; times in us, ms or s)",
      spec, why, points);
}

static int find_point(const char *name, size_t length) {
  for (int p = FIRST; p < POINTS; p++)
    if (strlen(name_of(p)) == length && !strncmp(name_of(p), name, length)) return p;
  return -1;
}

/* "100ms" -> 0.1; advances *text past it. */
static int read_time(const char *spec, const char **text, double *seconds) {
  static const struct {
    const char *name;
    double seconds;
  } units[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
  char *end;
  double number = ms_number_read(*text, &end);
  if (end == *text || !isfinite(number) || number < 0) return refuse(spec, "a time is missing or negative");
  for (int u = 0; u < 3; u++) {
    size_t length = strlen(units[u].name);
    if (strncmp(end, units[u].name, length)) continue;
    *seconds = number * units[u].seconds;
    *text = end + length;
    return MS_OK;
  }
  return refuse(spec, "a time has no unit");
}

static int read_one(const char *spec, const char **text, injected *out) {
  size_t length = strcspn(*text, ":,");
  out->point = find_point(*text, length);
  if (out->point < 0 || (*text)[length] != ':') return refuse(spec, "a point is unknown or has no time");
  *text += length + 1;
  MS_TRY(read_time(spec, text, &out->seconds));
  out->rank = -1;
  if (**text != '@') return MS_OK;
  char *end;
  out->rank = (int)strtol(*text + 1, &end, 10);
  if (end == *text + 1 || out->rank < 0) return refuse(spec, "a rank is not a number");
  *text = end;
  return MS_OK;
}

int ms_inject_delay(const char *spec) {
  injected read[MAX_DELAYS];
  int n = 0;
  for (const char *text = spec; text && *text;) {
    if (n == MAX_DELAYS) return refuse(spec, "more than 32 delays");
    MS_TRY(read_one(spec, &text, &read[n++]));
    if (*text && *text != ',') return refuse(spec, "unexpected text after a delay");
    if (*text) text++;
  }
  memcpy(list, read, (size_t)n * sizeof *read);
  listed = n;
  return MS_OK;
}

void ms_delays_get(int rank, ms_delays *delays) {
  *delays = (ms_delays){0};
  for (int i = 0; i < listed; i++) {
    if (list[i].rank >= 0 && list[i].rank != rank) continue;
    if (list[i].point == FORWARD) delays->forward = list[i].seconds;
    else if (list[i].point == UPDATE) delays->update = list[i].seconds;
    else if (list[i].point == UPDATE_KERNEL) delays->update_kernel = list[i].seconds;
    else delays->before[list[i].point] = list[i].seconds;
    delays->any |= list[i].seconds > 0;
  }
}

void ms_delay_sleep(double seconds) {
  struct timespec time = {.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * (seconds - floor(seconds)))};
  nanosleep(&time, NULL);
}
