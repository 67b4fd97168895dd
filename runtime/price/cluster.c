/* cluster.c - the description of a cluster: checks that its numbers are in range. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "base/config.h"
#include "base/numbers/dtype.h"
#include "price/price.h"

typedef struct range {
  const char *name;
  double value, low, high;
} range;

static int check_ranges(const char *what, int n, const range *list) {
  for (int i = 0; i < n; i++) {
    const range *r = &list[i];
    if (r->value >= r->low && r->value <= r->high) continue; /* neither for NaN */
    return MS_FAIL(MS_EINVAL, "%s: %s is %g; it must be from %g to %g", what, r->name, r->value, r->low, r->high);
  }
  return MS_OK;
}

#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

/* What is out of these ranges describes nothing, and sums of a step could be infinite. */
static const double SLOWEST = 1, FASTEST = 1e18; /* bytes/s */
static const double MIN_PART = 1e-6, MAX_BYTES = 1e18, MAX_FLOPS = 1e24;

static int check_device(const ms_cluster *c) {
  const range ranges[] = {{"memory", c->memory, 0, MAX_BYTES},
                          {"ranks_per_node", c->ranks_per_node, 1, MS_MAX_RANKS},
                          {"cores", c->cores, 1e-3, 1e6},
                          {"clock", c->clock, MIN_PART, 1},
                          {"memory_rate", c->memory_rate, SLOWEST, FASTEST},
                          {"memory_half", c->memory_half, 0, MAX_BYTES},
                          {"kernel_start", c->kernel_start, 0, 1e3},
                          {"issue", c->issue, 0, 1e3},
                          {"phase_gap", c->phase_gap, 0, 1e3},
                          {"step_gap", c->step_gap, 0, 1e3},
                          {"overlap", c->overlap, 0, 0.9},
                          {"product.efficiency", c->product.efficiency, MIN_PART, 1},
                          {"product.tile_m", c->product.tile_m, c->product.tile_m > 0 ? 1 : 0, 1e6},
                          {"product.tile_n", c->product.tile_n, c->product.tile_m > 0 ? 1 : 0, 1e6},
                          {"product.units", c->product.units, c->product.tile_m > 0 ? 1 : 0, 1e6},
                          {"product.half_tile", c->product.half_tile, MIN_PART, 1},
                          {"product.k_half", c->product.k_half, 0, 1e9},
                          {"attention.forward", c->attention.forward, MIN_PART, 1},
                          {"attention.backward", c->attention.backward, MIN_PART, 1},
                          {"attention.keys_half", c->attention.keys_half, 0, 1e9},
                          {"attention.causal", c->attention.causal, 0.5, 1}};
  MS_TRY(check_ranges("cluster", COUNT(ranges), ranges));
  for (int dtype = 0; dtype < MS_DTYPES; dtype++)
    if (c->peak[dtype] != 0 && !(c->peak[dtype] >= 1 && c->peak[dtype] <= MAX_FLOPS))
      return MS_FAIL(MS_EINVAL, "cluster: peak of %s is %g; it must be 0 (it has none) or 1 to %g FLOP/s",
                     ms_dtype_name(dtype), c->peak[dtype], MAX_FLOPS);
  return MS_OK;
}

int ms_link_check(const ms_link *link, int number) {
  static const double SLOWEST = 1, FASTEST = 1e18; /* bytes/s */
  static const double LONGEST = 1e3;               /* seconds of a start or a step */
  const int every_kind = MS_LINK_ALL_GATHER | MS_LINK_REDUCE_SCATTER | MS_LINK_ALL_REDUCE;
  const range ranges[] = {{"algorithm", link->algorithm, MS_LINK_RING, MS_LINK_SWITCH},
                          {"kinds", link->kinds, 1, every_kind},
                          {"max_nodes", link->max_nodes, 0, MS_MAX_RANKS},
                          {"start", link->start, 0, LONGEST},
                          {"start_between", link->start_between, 0, LONGEST},
                          {"step_inside", link->step_inside, 0, LONGEST},
                          {"step_between", link->step_between, 0, LONGEST},
                          {"hidden", link->hidden, 0, 0.95},
                          {"inside", link->inside, SLOWEST, FASTEST},
                          {"inside_pair", link->inside_pair, 0, FASTEST},
                          {"between", link->between, link->max_nodes == 1 ? 0 : SLOWEST, FASTEST},
                          {"between_rank", link->between_rank, 0, FASTEST},
                          {"log_between", link->log_between, 0, 10},
                          {"processor", link->processor, 0, 1}};
  char what[40];
  snprintf(what, sizeof what, "cluster: link %d", number);
  return check_ranges(what, COUNT(ranges), ranges);
}

int ms_links_check(const ms_cluster *cluster) {
  if (cluster->links < 0 || cluster->links > MS_MAX_LINKS)
    return MS_FAIL(MS_EINVAL, "cluster: %d links; it can have 0 to %d", cluster->links, MS_MAX_LINKS);
  for (int i = 0; i < cluster->links; i++) MS_TRY(ms_link_check(&cluster->link[i], i));
  return MS_OK;
}

static int check_points(const ms_cluster *c) {
  if (c->points < 0 || (c->points && !c->point))
    return MS_FAIL(MS_EINVAL, "cluster: %d measured kernels, and no list of them", c->points);
  const int least = (int)(offsetof(ms_kernel_work, seconds) + sizeof c->point->seconds);
  if (c->points && c->point_size < least)
    return MS_FAIL(MS_EINVAL, "cluster: point_size is %d: give the sizeof of a measured kernel", c->point_size);
  for (int i = 0; i < c->points; i++) {
    ms_kernel_work point = {0};
    MS_TRY(ms_info_take(&point, sizeof point, ms_cluster_point(c, i), c->point_size, "cluster: measured kernels"));
    MS_TRY(ms_kernel_work_check(&point));
    if (!(point.seconds >= 1e-12 && point.seconds <= 1e6))
      return MS_FAIL(MS_EINVAL, "cluster: measured kernel %d takes %g seconds; it must be from 1e-12 to 1e6", i,
                     point.seconds);
  }
  return MS_OK;
}

int ms_cluster_check(const ms_cluster *cluster) {
  MS_TAKE_CLUSTER(c, cluster);
  if (c.device != MS_DEVICE_CPU && c.device != MS_DEVICE_CUDA)
    return MS_FAIL(MS_EINVAL, "cluster: device %d: it must be cpu (%d) or cuda (%d)", c.device, MS_DEVICE_CPU,
                   MS_DEVICE_CUDA);
  MS_TRY(check_device(&c));
  MS_TRY(ms_links_check(&c));
  return check_points(&c);
}
