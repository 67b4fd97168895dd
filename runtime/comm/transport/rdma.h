/* rdma.h - whether this host has an RDMA network: InfiniBand, RoCE, Slingshot. Internal to transport. */
#ifndef MS_COMM_TRANSPORT_RDMA_H
#define MS_COMM_TRANSPORT_RDMA_H

#include <stddef.h>

/* 1: this host has an RDMA device, whose name goes to `name` (NULL: not wanted), and UCX_TLS lets UCX use it. */
int ms_rdma_device(char *name, size_t bytes);

#endif
