/* keys.h - the transfers that are posted with a peer, by key, and what both sides know of each key: for all transports,
 * whose protocols have the same credits and cancellations. A transport moves the bytes. Internal to transport.
 */
#ifndef MS_COMM_TRANSPORT_KEYS_H
#define MS_COMM_TRANSPORT_KEYS_H

#include "comm/transport/transport.h"

enum { MS_KEY_SIZES = 256 }; /* bytes of a text about two sizes */

/* The posted transfers of one key and direction, oldest first. Their bytes move in order, in pieces: a piece begins to
 * move (ms_key_begin), and later has (ms_key_moved). Several can be under way at a time. */
typedef struct ms_key_queue {
  ms_transfer *first, *last;
  uint64_t posted, finished; /* how many, so far */
  ms_transfer *next;         /* the first of which not all bytes have begun to move */
  int64_t begun;             /* how many of its bytes have */
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

/* What a rank tells a peer about a key: it does not use it any more, or a receive is posted, the peer's credit. */
typedef struct ms_key_notice {
  int cancels;
  uint64_t key, number; /* number, bytes: of the receive */
  int64_t bytes;
} ms_key_notice;

/* NULL: not in use. */
ms_key *ms_keys_find(ms_keys *keys, uint64_t key);

/* ---- what the caller does ---- */

/* Adds a transfer with a peer to its key. Fails with MS_EINVAL: too many keys or transfers, a key that only this rank
 * has cancelled. */
int ms_keys_post(ms_keys *keys, ms_transfer *transfer);
/* All transfers of a key, or of all keys, are over: FAILED. Nothing may refer to their memory any more. */
void ms_key_fail(ms_key *key);
void ms_keys_fail(ms_keys *keys);

/* ---- what is due to the peer ---- */

/* Returns 0: nothing is. A key that both sides have cancelled is forgotten with its notice. */
int ms_keys_next_notice(ms_keys *keys, ms_key_notice *notice);
/* The key whose sends have bytes that the peer waits for, each key in turn. NULL: there is none, or, with a text in
 * `why`, the sizes of a send of `rank` and of its receive differ. */
ms_key *ms_keys_next_send(ms_keys *keys, int rank, char why[MS_KEY_SIZES]);

/* ---- what the peer says ---- */

/* These return NULL, or what is wrong with it. */
const char *ms_keys_take_credit(ms_keys *keys, uint64_t key, uint64_t number, int64_t bytes);
const char *ms_keys_take_cancel(ms_keys *keys, uint64_t key);
/* Whether these bytes of the peer's send are the next ones of the key's receives. key NULL: not in use. */
const char *ms_key_check_data(const ms_key *key, uint64_t number, int64_t offset, int64_t bytes);
/* 1: data of this key, which may be NULL, is dropped: the peer sent it before it heard that the key is cancelled. */
int ms_key_drops(const ms_key *key);
/* 1: the peer may give no further credit before a send is over. */
int ms_key_has_all_credits(const ms_key *key);

/* ---- pieces ---- */

/* The next bytes of a queue begin to move; returns the transfer to which they belong. */
ms_transfer *ms_key_begin(ms_key_queue *queue, int64_t bytes);
/* So many bytes of a transfer have moved. Transfers are DONE in order, each when all of its bytes have. Returns
 * how many now are. */
int ms_key_moved(ms_key_queue *queue, ms_transfer *transfer, int64_t bytes);

/* ---- deadlines ---- */

/* 1: transfers are posted that this peer has not cancelled. */
int ms_keys_are_awaited(const ms_keys *keys);
/* 1: some receive has come in part, or begun to, and the peer has not cancelled it. */
int ms_keys_are_half_received(const ms_keys *keys);

#endif
