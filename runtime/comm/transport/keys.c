/* keys.c - the keys in use with a peer, and the queues of their transfers. */
#include "comm/transport/keys.h"

#include <stdio.h>

#include "base/error.h"

ms_key *ms_keys_find(ms_keys *keys, uint64_t key) {
  for (int i = 0; i < keys->reach; i++)
    if (keys->slot[i].used && keys->slot[i].key == key) return &keys->slot[i];
  return NULL;
}

ms_key *ms_keys_add(ms_keys *keys, uint64_t key) {
  ms_key *found = ms_keys_find(keys, key);
  for (int i = 0; i < MS_TRANSPORT_KEYS && !found; i++) {
    if (keys->slot[i].used) continue;
    found = &keys->slot[i];
    *found = (ms_key){.key = key, .used = 1};
    if (keys->reach <= i) keys->reach = i + 1;
  }
  return found;
}

void ms_keys_forget(ms_keys *keys, ms_key *key) {
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
  ms_key *key = ms_keys_add(keys, transfer->key);
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

void ms_key_finish(ms_key_queue *queue, enum ms_transfer_state state) {
  ms_transfer *transfer = queue->first;
  queue->first = transfer->next;
  if (!queue->first) queue->last = NULL;
  if (queue->next == transfer) queue->next = queue->first;
  queue->finished++;
  transfer->next = NULL;
  transfer->state = state; /* from here on it is the caller's */
}

void ms_key_fail(ms_key *key) {
  while (key->sends.first) ms_key_finish(&key->sends, MS_TRANSFER_FAILED);
  while (key->receives.first) ms_key_finish(&key->receives, MS_TRANSFER_FAILED);
  key->uncredited = NULL;
}

const char *ms_keys_take_cancel(ms_keys *keys, uint64_t name) {
  ms_key *key = ms_keys_add(keys, name);
  if (!key) return "a cancellation of one key too many";
  if (key->peer_cancelled) return "a second cancellation";
  key->peer_cancelled = 1;
  if (!key->cancelled && !key->sends.posted && !key->receives.posted) key->cancelled = MS_KEY_BY_PEER;
  if (key->told) ms_keys_forget(keys, key);
  return NULL;
}

const char *ms_key_compare_sizes(const ms_key *key, const ms_transfer *send, int rank, char why[MS_KEY_SIZES]) {
  const int64_t wanted = key->credit[send->number % MS_TRANSPORT_UNDER_WAY];
  if (wanted == send->bytes) return NULL;
  snprintf(why, MS_KEY_SIZES,
           "the sizes of a transfer differ: rank %d sends %lld bytes, rank %d receives %lld (key %llx, number %llu)",
           rank, (long long)send->bytes, send->peer, (long long)wanted, (unsigned long long)key->key,
           (unsigned long long)send->number);
  return why;
}

ms_transfer *ms_key_next_send(const ms_key *key) {
  ms_transfer *send = key->sends.first;
  return key->used && !key->peer_cancelled && send && send->number < key->credits ? send : NULL;
}

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
    if (key->used && !key->peer_cancelled && key->receives.first && key->receives.first->moved) return 1;
  }
  return 0;
}
