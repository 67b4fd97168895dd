/* pack.h - places for buffers in one arena. */
#ifndef MS_PLAN_PACK_H
#define MS_PLAN_PACK_H

#include "plan/kept.h"

/* Offsets [n] for buffers with sizes and lifetimes: those that live at once, or differ in ranks, share no byte. */
int ms_pack(const ms_packing_item *item, int n, int64_t *offset);

#endif
