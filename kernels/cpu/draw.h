/* draw.h - random words for many elements at once: the bits of base/philox.h. */
#ifndef MS_KERNELS_CPU_DRAW_H
#define MS_KERNELS_CPU_DRAW_H

#include "kernels/cpu/block.h"

/* words[i] = the 32 bits of element 4 block + i, MS_BLOCK of them. */
typedef void ms_draw_fn(uint64_t seed, uint64_t stream, uint64_t block, uint32_t *words);

/* The fastest that this processor has. */
ms_draw_fn *ms_pick_draw(void);

#endif
