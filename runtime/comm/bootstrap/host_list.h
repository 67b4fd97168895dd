/* host_list.h - Slurm's way to write many host names: "gpu[01-03,7],login". Internal to comm. */
#ifndef MS_COMM_BOOTSTRAP_HOST_LIST_H
#define MS_COMM_BOOTSTRAP_HOST_LIST_H

#include <stddef.h>

/* How many hosts the list names, and the name of the index-th (0 first) in name [bytes]. Several brackets in a name multiply,
** the last one counting fastest; leading zeros are kept. Fails with MS_EINVAL on a list that is none, on names that do not
** fit, and when there is no index-th host. */
int ms_host_list_find(const char *list, int index, char *name, size_t bytes, int *hosts);

#endif
