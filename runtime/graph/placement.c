/* placement.c - placements: comparison, local shapes, text (placement.h). */
#include "graph/placement.h"

#include <inttypes.h>
#include <stdio.h>

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
