/* keys.c - the keys in use with a peer, and the queues of their transfers. */
#include "comm/transport/keys.h"

#include <stdio.h>

#include "base/error.h"

ms_key *ms_keys_find(ms_keys *keys, uint64_t key) {
  for (int i = 0; i < keys->reach; i++)
    if (keys->slot[i].used && keys->slot[i].key == key) return &keys->slot[i];
  return NULL;
}

static ms_key *add_key(ms_keys *keys, uint64_t key) {
  ms_key *found = ms_keys_find(keys, key);
  for (int i = 0; i < MS_TRANSPORT_KEYS && !found; i++) {
    if (keys->slot[i].used) continue;
    found = &keys->slot[i];
    *found = (ms_key){.key = key, .used = 1};
    if (keys->reach <= i) keys->reach = i + 1;
  }
  return found;
}

static void forget_key(ms_keys *keys, ms_key *key) {
  key->used = 0;
  while (keys->reach && !keys->slot[keys->reach - 1].used) keys->reach--;
}

static void queue_add(ms_key_queue *queue, ms_transfer *transfer) {
  transfer->number = queue->posted++;
  transfer->moved = 0;
  transfer->next = NULL;
  transfer->state = MS_TRANSFER_POSTED;
  if (queue->last) queue->last->next = transfer;
  else queue->first = transfer;
  queue->last = transfer;
  if (queue->next) return;
  queue->next = transfer;
  queue->begun = 0;
}

int ms_keys_post(ms_keys *keys, ms_transfer *transfer) {
  const unsigned long long name = transfer->key;
  ms_key *key = add_key(keys, transfer->key);
  if (!key) return MS_FAIL(MS_EINVAL, "transport: more than %d keys with rank %d", MS_TRANSPORT_KEYS, transfer->peer);
  if (key->cancelled == MS_KEY_BY_CALLER)
    return MS_FAIL(MS_EINVAL, "transport: key %llx is cancelled, but not yet by rank %d", name, transfer->peer);
  ms_key_queue *queue = transfer->receives ? &key->receives : &key->sends;
  if (queue->posted - queue->finished >= MS_TRANSPORT_UNDER_WAY)
    return MS_FAIL(MS_EINVAL, "transport: more than %d transfers of key %llx with rank %d", MS_TRANSPORT_UNDER_WAY,
                   name, transfer->peer);
  key->cancelled = MS_KEY_IN_USE;
  queue_add(queue, transfer);
  if (transfer->receives && !key->uncredited) key->uncredited = transfer;
  return MS_OK;
}

/* The first transfer is over. */
static void finish(ms_key_queue *queue, enum ms_transfer_state state) {
  ms_transfer *transfer = queue->first;
  queue->first = transfer->next;
  if (!queue->first) queue->last = NULL;
  if (queue->next == transfer) queue->next = queue->first;
  queue->finished++;
  transfer->next = NULL;
  transfer->state = state; /* from here on it is the caller's */
}

void ms_key_fail(ms_key *key) {
  while (key->sends.first) finish(&key->sends, MS_TRANSFER_FAILED);
  while (key->receives.first) finish(&key->receives, MS_TRANSFER_FAILED);
  key->uncredited = NULL;
}

void ms_keys_fail(ms_keys *keys) {
  for (int i = 0; i < keys->reach; i++)
    if (keys->slot[i].used) ms_key_fail(&keys->slot[i]);
}

/* ---- what is due ---- */

static int next_notice_of(ms_keys *keys, ms_key *key, ms_key_notice *notice) {
  ms_transfer *receive = key->uncredited;
  /* Transports that cannot take memory back at once have transfers of a cancelled key for a while. */
  if (key->cancelled && !key->told && !key->sends.first && !key->receives.first) {
    *notice = (ms_key_notice){.cancels = 1, .key = key->key};
    key->told = 1;
    if (key->peer_cancelled) forget_key(keys, key);
    return 1;
  }
  if (!receive || key->cancelled || key->peer_cancelled) return 0;
  *notice = (ms_key_notice){.key = key->key, .number = receive->number, .bytes = receive->bytes};
  key->uncredited = receive->next;
  return 1;
}

int ms_keys_next_notice(ms_keys *keys, ms_key_notice *notice) {
  for (int i = 0; i < keys->reach; i++)
    if (keys->slot[i].used && next_notice_of(keys, &keys->slot[i], notice)) return 1;
  return 0;
}

static int can_send(const ms_key *key) {
  const ms_transfer *send = key->sends.next;
  return key->used && !key->cancelled && !key->peer_cancelled && send && send->number < key->credits;
}

ms_key *ms_keys_next_send(ms_keys *keys, int rank, char why[MS_KEY_SIZES]) {
  *why = 0;
  for (int i = 0; i < keys->reach; i++) {
    ms_key *key = &keys->slot[(keys->turn + i) % keys->reach];
    if (!can_send(key)) continue;
    const ms_transfer *send = key->sends.next;
    const int64_t wanted = key->credit[send->number % MS_TRANSPORT_UNDER_WAY];
    keys->turn = (int)(key - keys->slot) + 1;
    if (wanted == send->bytes) return key;
    snprintf(why, MS_KEY_SIZES,
             "the sizes of a transfer differ: rank %d sends %lld bytes, rank %d receives %lld (key %llx, number %llu)",
             rank, (long long)send->bytes, send->peer, (long long)wanted, (unsigned long long)key->key,
             (unsigned long long)send->number);
    return NULL;
  }
  return NULL;
}

/* ---- what the peer says ---- */

int ms_key_has_all_credits(const ms_key *key) {
  return !key->cancelled && key->credits - key->sends.finished >= MS_TRANSPORT_UNDER_WAY;
}

const char *ms_keys_take_credit(ms_keys *keys, uint64_t name, uint64_t number, int64_t bytes) {
  ms_key *key = add_key(keys, name);
  if (!key) return "a credit for one key too many";
  if (key->peer_cancelled) return "a credit for a key that it cancelled";
  if (bytes < 1 || number != key->credits) return "a credit out of turn";
  if (ms_key_has_all_credits(key)) return "too many credits";
  key->credit[key->credits++ % MS_TRANSPORT_UNDER_WAY] = bytes;
  return NULL;
}

int ms_key_drops(const ms_key *key) { return key && key->cancelled && !key->peer_cancelled; }

const char *ms_key_check_data(const ms_key *key, uint64_t number, int64_t offset, int64_t bytes) {
  const ms_transfer *receive = key ? key->receives.next : NULL;
  if (!receive || receive == key->uncredited || number != receive->number) return "data that no receive waits for";
  if (key->peer_cancelled) return "data of a key that it cancelled";
  if (offset != key->receives.begun) return "data that does not follow";
  if (bytes > receive->bytes - key->receives.begun) return "data beyond the end of a receive";
  return NULL;
}

const char *ms_keys_take_cancel(ms_keys *keys, uint64_t name) {
  ms_key *key = add_key(keys, name);
  if (!key) return "a cancellation of one key too many";
  if (key->peer_cancelled) return "a second cancellation";
  key->peer_cancelled = 1;
  if (!key->cancelled && !key->sends.posted && !key->receives.posted) key->cancelled = MS_KEY_BY_PEER;
  if (key->told) forget_key(keys, key);
  return NULL;
}

/* ---- pieces ---- */

ms_transfer *ms_key_begin(ms_key_queue *queue, int64_t bytes) {
  ms_transfer *transfer = queue->next;
  queue->begun += bytes;
  if (queue->begun < transfer->bytes) return transfer;
  queue->next = transfer->next;
  queue->begun = 0;
  return transfer;
}

int ms_key_moved(ms_key_queue *queue, ms_transfer *transfer, int64_t bytes) {
  int done = 0;
  transfer->moved += bytes;
  for (; queue->first && queue->first->moved == queue->first->bytes; done++) finish(queue, MS_TRANSFER_DONE);
  return done;
}

/* ---- deadlines ---- */

int ms_keys_are_awaited(const ms_keys *keys) {
  for (int i = 0; i < keys->reach; i++) {
    const ms_key *key = &keys->slot[i];
    if (key->used && !key->peer_cancelled && (key->sends.first || key->receives.first)) return 1;
  }
  return 0;
}

int ms_keys_are_half_received(const ms_keys *keys) {
  for (int i = 0; i < keys->reach; i++) {
    const ms_key *key = &keys->slot[i];
    const ms_key_queue *queue = &key->receives;
    if (key->used && !key->peer_cancelled && queue->first && (queue->begun || queue->next != queue->first)) return 1;
  }
  return 0;
}
