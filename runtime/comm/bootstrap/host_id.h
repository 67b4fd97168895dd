/* host_id.h - identifies the processes of one host, that is, those that can share memory. Internal to comm. */
#ifndef MS_COMM_BOOTSTRAP_HOST_ID_H
#define MS_COMM_BOOTSTRAP_HOST_ID_H

#include <stddef.h>
#include <stdint.h>

enum { MS_HOST_ID = 16 };

/* Processes with the same id run on one kernel since the same boot, share the PID and network namespaces, and belong to
 * the same node of `moonshard run --nodes` if that started them. */
int ms_host_id(uint8_t id[MS_HOST_ID]);
/* The host's name, truncated to fit; in a rank of `moonshard run --hosts` the one given there (MOONSHARD_HOST_NAME). */
void ms_host_name(char *name, size_t bytes);
/* Start time of a process in clock ticks since boot; 0: no such process. Together with the pid it identifies a process
 * uniquely. */
uint64_t ms_process_start(int pid);
/* Pid of the nearest ancestor whose initial environment lacks a variable that this process has, that is, of the
 * program that set it, past the shells and wrappers in between. start: as returned by ms_process_start. 0: /proc
 * does not say. */
int ms_process_starter(const char *variable, uint64_t *start);

#endif
