/* rank_list.h - ranks as people write them: "2, 5-7". Internal to comm. */
#ifndef MS_COMM_CONTROL_RANK_LIST_H
#define MS_COMM_CONTROL_RANK_LIST_H

#include <stddef.h>
#include <stdint.h>

/* The ranks below size with chosen[rank] != 0; where they do not fit, the list ends with "...". Returns how many are chosen. */
int ms_rank_list(const uint8_t *chosen, int size, char *text, size_t bytes);

#endif
