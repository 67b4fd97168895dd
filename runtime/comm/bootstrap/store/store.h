/* store.h - the meeting point of ranks that moonshard's launcher did not start: a small server in a thread of rank 0,
 * and the client side that every rank runs.
 *
 * The store gathers bytes from every rank and sends all of them to every rank. It knows which ranks have connected, so
 * a timeout is reported to all with the missing ranks. Every rank keeps its connection while it runs, so the store
 * detects a rank that dies and reports it to the others. The store refuses ranks with the wrong token, protocol version
 * or job, and drops connections that are no ranks at all (garbage, silence, floods, oversized frames), which delay no
 * rank.
 */
#ifndef MS_COMM_BOOTSTRAP_STORE_H
#define MS_COMM_BOOTSTRAP_STORE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
  MS_STORE_VERSION = 2,
  MS_STORE_MAX_RANKS = 4096,
  MS_STORE_ROUND = 512,
  MS_STORE_TEXT = 1024,
  MS_STORE_POST = 24 << 10, /* bytes of the payload of a post */
  MS_STORE_JOB = 128
};

enum ms_store_kind {
  MS_STORE_TCP = 0,   /* host and port */
  MS_STORE_LOCAL = 1, /* an abstract unix socket: for this host and this user */
  MS_STORE_FILE = 2   /* a file in which rank 0 publishes its address to the ranks of this host */
};

typedef struct ms_store_place {
  int kind, port;
  char host[256]; /* TCP: name or address */
  char name[256]; /* LOCAL: name of the socket; FILE: path */
  char text[320]; /* for messages: tcp://10.0.0.1:29500 */
} ms_store_place;

/* Parses tcp://host:port, tcp://[ipv6]:port or file:///path. */
int ms_store_place_parse(const char *url, ms_store_place *place);
int ms_store_place_tcp(const char *host, int port, ms_store_place *place);
/* A place on this host, shared by processes of this user with the same key. text: for messages. */
void ms_store_place_local(const char *key, const char *text, ms_store_place *place);
/* 1 when only processes of this host can reach the place. */
int ms_store_place_is_local(const ms_store_place *place);

/* 1 for an address of IPv4 or IPv6, 0 for a name. */
int ms_is_address(const char *host);

typedef struct ms_store_config {
  const ms_store_place *place;
  const char *job;   /* job id; at most MS_STORE_JOB - 1 bytes */
  const char *token; /* "": no token */
  int rank, size;
  double timeout; /* seconds for the whole rendezvous */
  /* The rendezvous fails with MS_EPEER once this is not 0: the job has ended on this host. NULL: never. */
  const _Atomic uint32_t *ended;
} ms_store_config;

typedef struct ms_store ms_store;

/* Rank 0 opens the store, the others connect to it. Fails with MS_ETIMEOUT when nothing answers there, MS_EMISMATCH
 * when the store refuses this rank (token, version, job, size, or a rank that is already connected), MS_EIO when rank 0
 * cannot listen (port in use). */
int ms_store_open(const ms_store_config *config, ms_store **store);
/* Gathers `bytes` bytes (1 to MS_STORE_ROUND, the same on every rank) from every rank into all [size][bytes] on every
 * rank. Collective. Fails with MS_ETIMEOUT on every connected rank, naming the missing ones, or with MS_EPEER when a
 * rank died. */
int ms_store_gather(ms_store *store, const void *mine, int bytes, void *all);
/* Says which host this rank is on, in a world of several. A gather must follow before any rank posts. */
int ms_store_set_node(ms_store *store, int node);

/* What reaches the other hosts: see comm/group/mirror.h. The store itself knows two of the kinds. */
enum ms_post_kind {
  MS_POST_GROUP = 1,
  MS_POST_TICKET = 2,
  MS_POST_ANNOUNCE = 3,
  MS_POST_ROW = 4,
  MS_POST_RECORDS = 5,
  MS_POST_LOOK = 6, /* the store drops those that come too often, and sends others to one rank of every host */
  MS_POST_LEFT = 7, /* only the store posts it: the rank has left in order, this is its last post */
  MS_POST_KINDS = 8
};

/* The functions that the store's thread calls. */
typedef struct ms_store_listener {
  /* A rank died or gave up, or the store cannot be reached: at most a few times. */
  void (*failed)(void *context, const char *why);
  /* The connection to the store ended: rank 0 died, or the link to its host is down. NULL: failed says so. */
  void (*lost)(void *context);
  /* A post of a rank of another host, on the lowest connected rank of each host; in the order in which that rank
   * posted. LOOK: of any host, on any rank of each. */
  void (*posted)(void *context, int from, int kind, const uint8_t *payload, size_t bytes);
  /* Rank 0 has left in order, and with it the store. */
  void (*closed)(void *context);
} ms_store_listener;

/* Starts the thread that reads what the store sends. The listener lives as long as the store. */
int ms_store_watch(ms_store *store, const ms_store_listener *listener, void *context);
/* Sends up to MS_STORE_POST bytes to one rank of every other host. Never blocks; any thread can call it, also within
 * `posted`. */
void ms_store_post(ms_store *store, int kind, const void *payload, size_t bytes);
/* Reports to all other ranks that this rank gives up. */
void ms_store_abort(ms_store *store, const char *why);
/* Leaves from an exit handler: the store is unusable afterwards, but is not freed, since other threads may still read
 * it. hurry 1: the run has failed, and some ranks may never answer, so it waits for none for long. */
void ms_store_leave_at_exit(ms_store *store, int hurry);
/* Leaves; rank 0 also stops the server. NULL is allowed. */
void ms_store_close(ms_store *store);

#endif
