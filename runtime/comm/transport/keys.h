/* keys.h - the transfers that are posted with a peer, by key, and what both sides know of each key (keys.c): for all
 * transports, whose protocols have the same credits and cancellations. Internal to transport.
 */
#ifndef MS_COMM_TRANSPORT_KEYS_H
#define MS_COMM_TRANSPORT_KEYS_H

#include "comm/transport/transport.h"

enum { MS_KEY_SIZES = 256 }; /* bytes of a text about two sizes */

/* The posted transfers of one key and direction, oldest first. */
typedef struct ms_key_queue {
  ms_transfer *first, *last;
  uint64_t posted, finished; /* how many, so far */
  /* For mpi, which moves several at once: the first of which not all bytes have begun to move, and how many have. */
  ms_transfer *next;
  int64_t begun;
} ms_key_queue;

typedef struct ms_key {
  uint64_t key;
  ms_key_queue sends, receives;
  ms_transfer *uncredited;                /* the first receive whose credit has not been sent */
  uint64_t credits;                       /* that the peer has given: sends below this number can move */
  int64_t credit[MS_TRANSPORT_UNDER_WAY]; /* sizes of the peer's receives, by number */
  uint8_t used;
  uint8_t cancelled;      /* enum ms_key_cancelled */
  uint8_t told;           /* the peer has been sent CANCEL */
  uint8_t peer_cancelled; /* it has sent CANCEL */
} ms_key;

enum ms_key_cancelled {
  MS_KEY_IN_USE = 0,
  MS_KEY_BY_PEER = 1, /* the peer cancelled a key that this rank never used: agreed */
  MS_KEY_BY_CALLER = 2
};

typedef struct ms_keys {
  ms_key *slot; /* [MS_TRANSPORT_KEYS] */
  int reach;    /* used slots are below */
  int turn;     /* the slot that sends next */
} ms_keys;

/* NULL: not in use. */
ms_key *ms_keys_find(ms_keys *keys, uint64_t key);
/* Finds or adds it; NULL: too many keys. */
ms_key *ms_keys_add(ms_keys *keys, uint64_t key);
void ms_keys_forget(ms_keys *keys, ms_key *key);
/* Adds a transfer with a peer to its key. Fails with MS_EINVAL: too many keys or transfers, a key that only this rank
 * has cancelled. */
int ms_keys_post(ms_keys *keys, ms_transfer *transfer);
/* The first transfer is over. */
void ms_key_finish(ms_key_queue *queue, enum ms_transfer_state state);
/* All transfers are over: FAILED. */
void ms_key_fail(ms_key *key);
/* The peer does not use the key any more. Returns NULL, or what is wrong with that. */
const char *ms_keys_take_cancel(ms_keys *keys, uint64_t key);
/* NULL: the receive that the peer has given credit for is as large as this send of `rank`; otherwise why, in `why`. */
const char *ms_key_compare_sizes(const ms_key *key, const ms_transfer *send, int rank, char why[MS_KEY_SIZES]);
/* The send of a key that can move now, or NULL. */
ms_transfer *ms_key_next_send(const ms_key *key);
/* 1: transfers are posted that this peer has not cancelled. */
int ms_keys_are_awaited(const ms_keys *keys);
/* 1: some receive has come in part, and the peer has not cancelled it. */
int ms_keys_are_half_received(const ms_keys *keys);

#endif
