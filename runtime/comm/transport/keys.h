/* keys.h - the transfers that are posted with a peer, by key, and what both sides know of each key (keys.c): for all
 * transports, whose protocols have the same credits and cancellations. Internal to transport.
 */
#ifndef MS_COMM_TRANSPORT_KEYS_H
#define MS_COMM_TRANSPORT_KEYS_H

#include "comm/transport/transport.h"

enum { MS_TCP_SIZES = 256 }; /* bytes of a text about two sizes */

/* The posted transfers of one key and direction, oldest first. */
typedef struct ms_tcp_queue {
  ms_transfer *first, *last;
  uint64_t posted, finished; /* how many, so far */
  /* For mpi, which moves several at once: the first of which not all bytes have begun to move, and how many have. */
  ms_transfer *next;
  int64_t begun;
} ms_tcp_queue;

typedef struct ms_tcp_key {
  uint64_t key;
  ms_tcp_queue sends, receives;
  ms_transfer *uncredited;                /* the first receive whose credit has not been sent */
  uint64_t credits;                       /* that the peer has given: sends below this number can move */
  int64_t credit[MS_TRANSPORT_UNDER_WAY]; /* sizes of the peer's receives, by number */
  uint8_t used;
  uint8_t cancelled;      /* enum ms_tcp_cancelled */
  uint8_t told;           /* the peer has been sent CANCEL */
  uint8_t peer_cancelled; /* it has sent CANCEL */
} ms_tcp_key;

enum ms_tcp_cancelled {
  MS_TCP_IN_USE = 0,
  MS_TCP_BY_PEER = 1, /* the peer cancelled a key that this rank never used: agreed */
  MS_TCP_BY_CALLER = 2
};

typedef struct ms_tcp_keys {
  ms_tcp_key *slot; /* [MS_TRANSPORT_KEYS] */
  int reach;        /* used slots are below */
  int turn;         /* the slot that sends next */
} ms_tcp_keys;

/* NULL: not in use. */
ms_tcp_key *ms_tcp_find_key(ms_tcp_keys *keys, uint64_t key);
/* Finds or adds it; NULL: too many keys. */
ms_tcp_key *ms_tcp_add_key(ms_tcp_keys *keys, uint64_t key);
void ms_tcp_forget_key(ms_tcp_keys *keys, ms_tcp_key *key);
/* Adds a transfer with a peer to its key. Fails with MS_EINVAL: too many keys or transfers, a key that only this rank
 * has cancelled. */
int ms_tcp_post(ms_tcp_keys *keys, ms_transfer *transfer);
/* The first transfer is over. */
void ms_tcp_queue_finish(ms_tcp_queue *queue, enum ms_transfer_state state);
/* All transfers are over: FAILED. */
void ms_tcp_fail_transfers(ms_tcp_key *key);
/* The peer does not use the key any more. Returns NULL, or what is wrong with that. */
const char *ms_tcp_take_cancel(ms_tcp_keys *keys, uint64_t key);
/* NULL: the receive that the peer has given credit for is as large as this send of `rank`; otherwise why, in `why`. */
const char *ms_tcp_compare_sizes(const ms_tcp_key *key, const ms_transfer *send, int rank, char why[MS_TCP_SIZES]);
/* The send of a key that can move now, or NULL. */
ms_transfer *ms_tcp_next_send(const ms_tcp_key *key);
/* 1: transfers are posted that this peer has not cancelled. */
int ms_tcp_is_awaited(const ms_tcp_keys *keys);
/* 1: some receive has come in part, and the peer has not cancelled it. */
int ms_tcp_is_half_received(const ms_tcp_keys *keys);

#endif
