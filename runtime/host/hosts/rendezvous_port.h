/* rendezvous_port.h - chooses, on the first host, the address and port of the rendezvous of --hosts. */
#ifndef MS_HOST_RENDEZVOUS_PORT_H
#define MS_HOST_RENDEZVOUS_PORT_H

#include <stddef.h>

/* Writes a place such as tcp://10.0.0.1:40123 to place. wanted: tcp://host:port of --rendezvous, where port 0 means any
 * free one; "": the address of MOONSHARD_INTERFACE, or the host's name, with any free port. reserved: a descriptor that
 * keeps the chosen port from other programs until it is closed, or -1. Fails with MS_EINVAL or MS_EIO. */
int ms_rendezvous_port_choose(const char *wanted, const char *host, char *place, size_t bytes, int *reserved);

#endif
