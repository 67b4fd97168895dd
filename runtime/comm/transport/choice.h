/* choice.h - which transport moves bytes between hosts: MOONSHARD_TRANSPORT, or what fits this host's network. */
#ifndef MS_COMM_TRANSPORT_CHOICE_H
#define MS_COMM_TRANSPORT_CHOICE_H

#include "comm/transport/transport.h"

enum { MS_TRANSPORT_WHY = 256 };

/* The transport of this rank; *why: one line, e.g. "tcp: this host has no RDMA device". All ranks must choose the same
 * one, which ms_progress_open compares. Fails with MS_EINVAL: MOONSHARD_TRANSPORT is none of auto, tcp, ucx, mpi;
 * MS_EUNSUPPORTED: this host or build lacks the transport that it names. */
int ms_transport_choose(const ms_transport_api **api, char why[MS_TRANSPORT_WHY]);

#endif
