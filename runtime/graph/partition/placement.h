/* placement.h - how a value lies on the ranks of one mesh dimension.
 *
 * A placement says what each rank holds of a value, and with it what each rank holds of the value's gradient:
 *
 *   invariant   each rank holds all of it, and all of its gradient
 *   replicate   each rank holds all of it, and a summand of its gradient: ranks use it for different parts of the work
 *   shard       each rank holds a part of one axis, and the gradient of that part
 *   partial     each rank holds a summand, and all of its gradient
 *   local       each rank holds a value of its own, of the shape that the graph says, and the gradient of that
 *
 * An axis is divided in blocks: it is seen as [outer, ranks, rest], and rank r holds [:, r, :]. More than one block is
 * what merging axes leaves: where T of [B,T] is divided, the axis [B T] is divided in B blocks. All ranks hold equal
 * sizes.
 *
 * A folded axis has pairs of blocks: rank r holds [:, r, :] of the first of each pair and [:, ranks - 1 - r, :] of the
 * second. Under a causal mask, each rank then has as much work as any other.
 */
#ifndef MS_GRAPH_PLACEMENT_H
#define MS_GRAPH_PLACEMENT_H

#include "moonshard.h"

enum ms_placement_kind { MS_INVARIANT = 0, MS_REPLICATE = 1, MS_SHARD = 2, MS_PARTIAL = 3, MS_LOCAL = 4 };

typedef struct ms_placement {
  int kind;      /* enum ms_placement_kind */
  int axis;      /* of MS_SHARD, otherwise 0 */
  int64_t outer; /* blocks of MS_SHARD, at least 1; otherwise 0 */
  int folded;    /* 1: outer is even, and the order of ranks is mirrored in every second block */
} ms_placement;

enum { MS_PLACEMENT_TEXT = 64 }; /* largest output of ms_placement_text */

static inline ms_placement ms_shard(int axis, int64_t outer) { return (ms_placement){MS_SHARD, axis, outer, 0}; }
/* Two blocks, folded. */
static inline ms_placement ms_shard_folded(int axis) { return (ms_placement){MS_SHARD, axis, 2, 1}; }

int ms_placement_same(ms_placement a, ms_placement b);
/* What a rank holds of a value of this shape. */
ms_value_info ms_placement_local(const ms_value_info *x, ms_placement p, int64_t ranks);
/* Writes e.g. "shard of axis 1" to text and returns text. */
char *ms_placement_text(ms_placement p, char *text);

/* ---- for errors ------------------------------------------------------------------------------------------------- */

enum { MS_SIZES_TEXT = 64 }; /* largest output of the next two */
/* Writes e.g. "9 and 12 are the nearest that do", sizes that the divisor divides, to text and returns text. */
char *ms_sizes_near(int64_t size, int64_t divisor, char *text);
/* Writes e.g. "tensor (4 ranks)" or "tensor (4 ranks, in 3 blocks)" to text and returns text. */
char *ms_dimension_text(const char *name, int64_t ranks, int64_t outer, char *text);
/* Fails: the ranks of a dimension cannot divide this axis of x in `outer` blocks. what: "parameter w". */
int ms_placement_uneven(const char *what, const ms_value_info *x, int axis, int64_t outer, const char *dimension,
                        int64_t ranks);

#endif
