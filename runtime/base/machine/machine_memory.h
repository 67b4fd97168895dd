/* machine_memory.h - the memory of this machine, and what control groups leave of it (ms_memory_describe). */
#ifndef MS_BASE_MACHINE_MEMORY_H
#define MS_BASE_MACHINE_MEMORY_H

#include "moonshard.h"

/* root: "", or in tests a folder used in place of /. */
void ms_memory_read(const char *root, ms_memory_info *memory);

#endif
