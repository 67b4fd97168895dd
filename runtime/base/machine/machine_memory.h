/* machine_memory.h - the memory of this machine, and what control groups leave of it. */
#ifndef MS_BASE_MACHINE_MEMORY_H
#define MS_BASE_MACHINE_MEMORY_H

#include <stdint.h>

/* In bytes; -1: unknown. */
typedef struct ms_machine_memory {
  int64_t total, available; /* as ms_device_info.memory_bytes and available */
  int64_t limit;
  char limit_file[1024];
} ms_machine_memory;

/* root: "", or in tests a folder used in place of /. */
void ms_machine_memory_read(const char *root, ms_machine_memory *memory);

#endif
