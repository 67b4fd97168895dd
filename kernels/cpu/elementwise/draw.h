/* draw.h - random words for many elements at once; the same bits as base/numbers/philox.h. */
#ifndef MS_KERNELS_CPU_DRAW_H
#define MS_KERNELS_CPU_DRAW_H

#include "kernels/cpu/block.h"

/* words[i] = the 32 bits of element 4 block + i; words: [MS_BLOCK]. */
typedef void ms_draw_fn(uint64_t seed, uint64_t stream, uint64_t block, uint32_t *words);

/* The fastest implementation for this processor. */
ms_draw_fn *ms_pick_draw(void);

#endif
