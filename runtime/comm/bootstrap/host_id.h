/* host_id.h - which processes are on one host, in the sense that they can share memory. Internal to comm. */
#ifndef MS_COMM_BOOTSTRAP_HOST_ID_H
#define MS_COMM_BOOTSTRAP_HOST_ID_H

#include <stddef.h>
#include <stdint.h>

enum { MS_HOST_ID = 16 };

/* Processes with the same id were booted together (one kernel), see each other's processes and network, and belong to the
** same node of `moonshard run --nodes` where that started them. */
int ms_host_id(uint8_t id[MS_HOST_ID]);
/* The host's name, cut to fit. */
void ms_host_name(char *name, size_t bytes);
/* When a process started, in clock ticks since boot; 0: there is no such process. With its pid it names a process for ever. */
uint64_t ms_process_start(int pid);
/* The nearest ancestor that was started without an environment variable which this process has: who set it, past the shells
** and wrappers in between. start: as of ms_process_start. 0: /proc does not tell. */
int ms_process_starter(const char *variable, uint64_t *start);

#endif
