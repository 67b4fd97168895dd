/* store.h - where the ranks of a job meet when no launcher of ours made them: a small server that rank 0 runs, a thread,
** and what every rank does there.
**
** The store gathers: every rank gives some bytes and gets everybody's. It knows who has come, so a deadline is told to
** all with the ranks that are missing; and since every rank keeps its connection while it runs, it notices a rank that
** dies and tells the others. Who does not know the job's token, speaks another version or belongs to another job is
** refused; what is no peer at all (garbage, silence, floods, oversized frames) is dropped and holds up nobody.
*/
#ifndef MS_COMM_BOOTSTRAP_STORE_H
#define MS_COMM_BOOTSTRAP_STORE_H

#include <stddef.h>

enum {
  MS_STORE_VERSION = 1,
  MS_STORE_MAX_RANKS = 4096,
  MS_STORE_ROUND = 512,
  MS_STORE_TEXT = 1024,
  MS_STORE_JOB = 128
};

enum ms_store_kind {
  MS_STORE_TCP = 0,   /* host and port */
  MS_STORE_LOCAL = 1, /* an abstract unix socket: this host, this user */
  MS_STORE_FILE = 2   /* a file through which rank 0 tells the others of this host where it is */
};

typedef struct ms_store_place {
  int kind, port;
  char host[256]; /* TCP: name or address */
  char name[256]; /* LOCAL: of the socket; FILE: path */
  char text[320]; /* for messages: tcp://10.0.0.1:29500 */
} ms_store_place;

/* Reads tcp://host:port, tcp://[ipv6]:port or file:///path. */
int ms_store_place_parse(const char *url, ms_store_place *place);
int ms_store_place_tcp(const char *host, int port, ms_store_place *place);
/* A place on this host that processes of this user with the same key share. text: for messages. */
void ms_store_place_local(const char *key, const char *text, ms_store_place *place);
/* 1 when only processes of this host can come there. */
int ms_store_place_is_local(const ms_store_place *place);

/* 1 for an address of IPv4 or IPv6, 0 for a name. */
int ms_is_address(const char *host);

typedef struct ms_store_config {
  const ms_store_place *place;
  const char *job;   /* id; at most MS_STORE_JOB - 1 bytes */
  const char *token; /* "": none */
  int rank, size;
  double timeout; /* seconds for all of the rendezvous */
} ms_store_config;

typedef struct ms_store ms_store;

/* Rank 0 opens the store, the others come to it. Fails with MS_ETIMEOUT when nobody is there, MS_EMISMATCH when this rank
** is refused (token, version, job, size, a rank that is there already), MS_EIO when rank 0 cannot listen (port in use). */
int ms_store_open(const ms_store_config *config, ms_store **store);
/* Every rank's `bytes` bytes (1 to MS_STORE_ROUND, the same everywhere) to every rank: all is [size][bytes]. Collective. Fails
** with MS_ETIMEOUT in every rank that has come, naming those that have not; MS_EPEER when a rank died. */
int ms_store_gather(ms_store *store, const void *mine, int bytes, void *all);
/* From here on a thread listens for what the store tells: calls `failed` once if a rank died or gave up. */
int ms_store_watch(ms_store *store, void (*failed)(void *context, const char *why), void *context);
/* Tells all others that this rank gives up. */
void ms_store_abort(ms_store *store, const char *why);
/* Leaves from an exit handler: the store is not to be used any more, but stays where another thread may still see it. */
void ms_store_leave_at_exit(ms_store *store);
/* Leaves; rank 0 ends the server. NULL is allowed. */
void ms_store_close(ms_store *store);

#endif
