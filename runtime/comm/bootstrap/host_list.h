/* host_list.h - parses Slurm's notation for many host names: "gpu[01-03,7],login". Internal to comm. */
#ifndef MS_COMM_BOOTSTRAP_HOST_LIST_H
#define MS_COMM_BOOTSTRAP_HOST_LIST_H

#include <stddef.h>

/* Counts the hosts in the list, and writes the name of host `index` (from 0) to name [bytes]. Several brackets in one
 * name multiply, the last one varying fastest; leading zeros are kept. Fails with MS_EINVAL on a malformed list, a name
 * that does not fit, or an index past the end. */
int ms_host_list_find(const char *list, int index, char *name, size_t bytes, int *hosts);

#endif
