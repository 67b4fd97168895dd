/* host_memory.h - the blocks of arenas that the ranks of one host map together. */
#ifndef MS_EXEC_HOST_MEMORY_H
#define MS_EXEC_HOST_MEMORY_H

#include "exec/state/state.h"

/* Finds the ranks of the model that are on this host (ms_state.host), and those of its own replica (replica_here);
 * opens groups for them if others are elsewhere. Collective over the model's ranks. */
int ms_host_memory_open(ms_state *state);
void ms_host_memory_close(ms_state *state);
/* The number of blocks of an arena that the ranks of this host map together; 0: the arena is private. */
int ms_host_memory_blocks(const ms_state *state, int arena);
/* The index of the block that a world rank uses; -1 when it is on another host. Only for arenas that are shared. */
int ms_host_memory_block_of(const ms_state *state, int arena, int rank);
/* How many copies of the state the ranks of this host hold, and the index of this rank's: each copy's ranks need shared
 * memory of their own when they gather from it. */
int ms_host_memory_windows(const ms_state *state);
int ms_host_memory_window_of(const ms_state *state);

#endif
