/* divided.h - which elements of a parameter a rank of the tensor dimension has.
 *
 * A rank's part of a divided parameter is [blocks, run] of the whole [blocks, ranks, run]: elements of the part are
 * numbered as they lie in it, and elements of the whole by their index in the whole. If a parameter is not divided,
 * the two are the same, with one run.
 */
#ifndef MS_SHARD_DIVIDED_H
#define MS_SHARD_DIVIDED_H

#include "shard/model.h"

int64_t ms_param_whole_numel(const ms_model *model, const ms_param *p);
/* The part at `place` in the tensor dimension. */
ms_division ms_param_division(const ms_model *model, const ms_param *p, int place);

/* The index in the whole of an element of a part; *run: the number of elements, with this one, that lie one after
 * another in both. */
int64_t ms_division_index(const ms_division *part, int64_t element, int64_t *run);
/* The number of elements of a part with an index in the whole below `index`. */
int64_t ms_division_below(const ms_division *part, int64_t index);

#endif
