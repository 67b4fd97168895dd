/* placement.c - placements: comparison, local shapes, text, and why one is refused (placement.h). */
#include "graph/partition/placement.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "graph/infer/infer.h"

int ms_placement_same(ms_placement a, ms_placement b) {
  if (a.kind != b.kind) return 0;
  return a.kind != MS_SHARD || (a.axis == b.axis && a.outer == b.outer && a.folded == b.folded);
}

ms_value_info ms_placement_local(const ms_value_info *x, ms_placement p, int64_t ranks) {
  ms_value_info local = *x;
  if (p.kind == MS_SHARD) local.dims[p.axis] /= ranks;
  return local;
}

char *ms_placement_text(ms_placement p, char *text) {
  static const char *const names[] = {"invariant", "replicate", "shard", "partial", "local"};
  if (p.kind != MS_SHARD) snprintf(text, MS_PLACEMENT_TEXT, "%s", names[p.kind]);
  else if (p.outer == 1) snprintf(text, MS_PLACEMENT_TEXT, "shard of axis %d", p.axis);
  else if (p.folded) snprintf(text, MS_PLACEMENT_TEXT, "folded shard of axis %d, %" PRId64 " blocks", p.axis, p.outer);
  else snprintf(text, MS_PLACEMENT_TEXT, "shard of axis %d in %" PRId64 " blocks", p.axis, p.outer);
  return text;
}

char *ms_sizes_near(int64_t size, int64_t divisor, char *text) {
  const int64_t below = size / divisor * divisor, above = below + divisor;
  if (below) snprintf(text, MS_SIZES_TEXT, "%" PRId64 " and %" PRId64 " are the nearest that do", below, above);
  else snprintf(text, MS_SIZES_TEXT, "%" PRId64 " is the smallest that does", divisor);
  return text;
}

char *ms_dimension_text(const char *name, int64_t ranks, int64_t outer, char *text) {
  if (outer == 1) snprintf(text, MS_SIZES_TEXT, "%.24s (%" PRId64 " ranks)", name, ranks);
  else snprintf(text, MS_SIZES_TEXT, "%.24s (%" PRId64 " ranks, in %" PRId64 " blocks)", name, ranks, outer);
  return text;
}

int ms_placement_uneven(const char *what, const ms_value_info *x, int axis, int64_t outer, const char *dimension,
                        int64_t ranks) {
  char shape[MS_SHAPE_TEXT], over[MS_SIZES_TEXT], sizes[MS_SIZES_TEXT];
  return MS_FAIL(MS_ESHAPE, "%s %s: axis %d cannot be divided over %s: its size must be a multiple of %" PRId64 "; %s",
                 what, ms_shape_text(x, shape), axis, ms_dimension_text(dimension, ranks, outer, over), outer * ranks,
                 ms_sizes_near(x->dims[axis], outer * ranks, sizes));
}
