/* strangers.h - which connection makes room for a new one where as many as there are places have not proved the token.
 *
 * A rank far away needs a round trip or two to prove it, and a process nearby can connect a thousand times meanwhile.
 * So the oldest of all cannot be the one that goes: it would be the rank. The origin with the most
 * connections makes room, with its oldest. An origin is an address: this host is one, whichever of its addresses is
 * used for loopback, and so is an IPv6 network of 64 bits, since one host can have all of its addresses.
 */
#ifndef MS_COMM_TRANSPORT_STRANGERS_H
#define MS_COMM_TRANSPORT_STRANGERS_H

#include <stdint.h>
#include <sys/socket.h>

/* Origins are counted by this number of classes, so that a crowd costs one pass. */
enum { MS_STRANGER_ORIGINS = 4096 };

typedef struct ms_stranger {
  double since;    /* when it connected: ms_clock */
  uint16_t origin; /* below MS_STRANGER_ORIGINS */
} ms_stranger;

/* The stranger at the other end of a new connection, from now on. */
ms_stranger ms_stranger_new(int fd);
uint16_t ms_stranger_origin(const struct sockaddr *address);

/* The stranger in place i; NULL: there is none. */
typedef const ms_stranger *ms_stranger_at(const void *context, int i);
/* The place, of n, that has to make room; -1 when no place has a stranger. */
int ms_stranger_to_drop(ms_stranger_at *at, const void *context, int n);

#endif
