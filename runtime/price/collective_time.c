/* collective_time.c - how long a collective takes: that of the fastest link which can carry it.
 *
 * A link is a model with a few constants: a start, steps from rank to rank, and bytes at a rate. Which steps there are,
 * and how many bytes a rank and a node move, follows from the algorithm. Pipelining hides a part of the steps behind
 * the bytes: while a long message is on the wire, the next ranks already pass on its beginning. A power mean of latency
 * and transfer describes it with one number between adding up and the longer one alone.
 */
#include "price/collective_time.h"

#include <math.h>
#include <stddef.h>

#include "base/config.h"
#include "price/price.h"

/* ---- checks ----------------------------------------------------------------------------------------------------- */

static const char *name_of(int kind) {
  switch (kind) {
    case MS_LINK_ALL_GATHER: return "all_gather";
    case MS_LINK_REDUCE_SCATTER: return "reduce_scatter";
    case MS_LINK_ALL_REDUCE: return "all_reduce";
    case MS_LINK_ALL_TO_ALL: return "all_to_all";
    default: return NULL;
  }
}

static int check_work(const ms_collective_work *w) {
  if (!name_of(w->kind))
    return MS_FAIL(MS_EINVAL,
                   "collective: kind %d: it must be MS_LINK_ALL_GATHER (%d), _REDUCE_SCATTER (%d), _ALL_REDUCE (%d) "
                   "or _ALL_TO_ALL (%d)",
                   w->kind, MS_LINK_ALL_GATHER, MS_LINK_REDUCE_SCATTER, MS_LINK_ALL_REDUCE, MS_LINK_ALL_TO_ALL);
  if (w->nodes < 1 || w->ranks < w->nodes)
    return MS_FAIL(MS_EINVAL, "%s: %d ranks on %d nodes: there must be a node, and a rank on each", name_of(w->kind),
                   w->ranks, w->nodes);
  if (w->groups < 1)
    return MS_FAIL(MS_EINVAL, "%s: groups is %d: the collective's own group is one", name_of(w->kind), w->groups);
  const struct {
    const char *name;
    double value;
  } bytes[] = {{"bytes", w->bytes}, {"inside", w->inside}, {"wire", w->wire}};
  for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
    if (!(bytes[i].value >= 0 && bytes[i].value < INFINITY)) /* NaN, too */
      return MS_FAIL(MS_EINVAL, "%s: %s is %g; it must be a number of bytes", name_of(w->kind), bytes[i].name,
                     bytes[i].value);
  return MS_OK;
}

/* ---- latency ---------------------------------------------------------------------------------------------------- */

static double passes_of(const ms_collective_work *w) { return w->kind == MS_LINK_ALL_REDUCE ? 2 : 1; }

static double latency(const ms_link *link, const ms_collective_work *w) {
  const double n = w->ranks, nodes = w->nodes, here = n / nodes;
  double inside = 0, between = 0; /* steps of a pass */
  switch (link->algorithm) {
    case MS_LINK_RING:
      inside = n - nodes;
      between = nodes - 1;
      break;
    case MS_LINK_TREE:
      inside = here - 1;
      between = log2(nodes);
      break;
    case MS_LINK_HOSTS: /* a rank hears from the others of its node, and its node from every other */
      inside = here - 1;
      between = nodes - 1;
      break;
    case MS_LINK_SWITCH:
      inside = here > 1 ? 1 : 0;
      between = log2(nodes);
      break;
  }
  return passes_of(w) * (inside * link->step_inside + between * link->step_between);
}

/* ---- transfer --------------------------------------------------------------------------------------------------- */

/* Bytes/s of a rank to others of its node: a group of few ranks has few of the wires between pairs. */
static double rate_inside(const ms_link *link, double here) {
  return link->inside_pair > 0 ? fmin(link->inside, link->inside_pair * (here - 1)) : link->inside;
}

/* Bytes/s of the group's ranks on a node, to other nodes. */
static double rate_between(const ms_link *link, const ms_collective_work *w, double share) {
  const double here = (double)w->ranks / w->nodes;
  double rate = link->between / share;
  if (link->between_rank > 0) rate = fmin(rate, link->between_rank * here);
  return rate / (1 + link->log_between * log2(w->nodes / 2.0));
}

typedef struct moved {
  double inside, between; /* bytes of a rank, and of a node */
} moved;

static moved bytes_moved(const ms_link *link, const ms_collective_work *w) {
  const double n = w->ranks, nodes = w->nodes, passes = passes_of(w);
  const double by_rank = passes * w->bytes * (n - 1) / n, here = n / nodes;
  if (w->kind == MS_LINK_ALL_TO_ALL && link->algorithm != MS_LINK_HOSTS)
    return (moved){w->bytes * (here - 1) / n, here * w->bytes * (n - here) / n};
  switch (link->algorithm) {
    case MS_LINK_HOSTS: return (moved){w->inside, w->wire};
    case MS_LINK_SWITCH:
      return (moved){w->kind == MS_LINK_ALL_REDUCE ? w->bytes : by_rank, passes * w->bytes * (nodes - 1) / nodes};
    default: return (moved){by_rank, by_rank};
  }
}

static void transfer(const ms_link *link, const ms_collective_work *w, ms_collective_time *time) {
  const int hosts = link->algorithm == MS_LINK_HOSTS;
  const double here = (double)w->ranks / w->nodes;
  const moved bytes = bytes_moved(link, w);
  double inside = 0, between = 0;
  if (hosts) inside = bytes.inside / link->inside;
  else if (here > 1) inside = bytes.inside / rate_inside(link, here);
  /* The work's `wire` is that of all groups already. */
  if (w->nodes > 1) between = bytes.between / rate_between(link, w, hosts ? 1 : w->groups);
  time->transfer = hosts ? inside + between : fmax(inside, between);
  time->processor = hosts && w->nodes > 1 ? bytes.between * link->processor : 0;
  time->between = between > inside;
}

/* ---- collectives ------------------------------------------------------------------------------------------------ */

/* (a^p + b^p)^(1/p), without overflow: the larger one is taken out. */
static double overlapped(double a, double b, double hidden) {
  const double p = 1 / (1 - hidden), larger = fmax(a, b), smaller = fmin(a, b);
  return larger > 0 ? larger * pow(1 + pow(smaller / larger, p), 1 / p) : 0;
}

static ms_collective_time time_on(const ms_link *link, const ms_collective_work *w) {
  ms_collective_time time;
  transfer(link, w, &time);
  time.seconds = link->start + (w->nodes > 1 ? link->start_between : 0) +
                 overlapped(latency(link, w), time.transfer, link->hidden);
  return time;
}

static int can_carry(const ms_link *link, const ms_collective_work *w) {
  const int kind = w->kind == MS_LINK_ALL_TO_ALL ? MS_LINK_REDUCE_SCATTER : w->kind;
  return (link->kinds & kind) && (link->max_nodes == 0 || w->nodes <= link->max_nodes);
}

int ms_collective_time_of(const ms_cluster *cluster, const ms_collective_work *work, ms_collective_time *time) {
  MS_TRY(check_work(work));
  *time = (ms_collective_time){.link = -1};
  if (work->ranks == 1) return MS_OK;
  for (int i = 0; i < cluster->links; i++) {
    if (!can_carry(&cluster->link[i], work)) continue;
    ms_collective_time found = time_on(&cluster->link[i], work);
    found.link = i;
    if (time->link < 0 || found.seconds < time->seconds) *time = found;
  }
  if (time->link < 0)
    return MS_FAIL(MS_EUNSUPPORTED,
                   "the cluster has no link for %s over %d node%s: add one whose kinds and max_nodes allow it",
                   name_of(work->kind), work->nodes, work->nodes == 1 ? "" : "s");
  return MS_OK;
}

int ms_cluster_collective_time(const ms_cluster *cluster, const ms_collective_work *work, int size, double *seconds,
                               int *link) {
  MS_GIVEN(cluster);
  MS_GIVEN(work);
  MS_GIVEN(seconds);
  MS_TAKE_CONFIG(ms_cluster, own, cluster);
  MS_TRY(ms_links_check(&own));
  ms_collective_time time;
  MS_TAKE_INFO(ms_collective_work, collective, work, size);
  MS_TRY(ms_collective_time_of(&own, &collective, &time));
  *seconds = time.seconds;
  if (link) *link = time.link;
  return MS_OK;
}
