/* tcp_key.c - the keys in use with a peer, and the queues of their transfers. */
#include <string.h>

#include "comm/transport/tcp.h"

ms_tcp_key *ms_tcp_find_key(ms_tcp_keys *keys, uint64_t key) {
  for (int i = 0; i < keys->reach; i++)
    if (keys->slot[i].used && keys->slot[i].key == key) return &keys->slot[i];
  return NULL;
}

ms_tcp_key *ms_tcp_add_key(ms_tcp_keys *keys, uint64_t key) {
  ms_tcp_key *found = ms_tcp_find_key(keys, key);
  for (int i = 0; i < MS_TRANSPORT_KEYS && !found; i++) {
    if (keys->slot[i].used) continue;
    found = &keys->slot[i];
    *found = (ms_tcp_key){.key = key, .used = 1};
    if (keys->reach <= i) keys->reach = i + 1;
  }
  return found;
}

void ms_tcp_forget_key(ms_tcp_keys *keys, ms_tcp_key *key) {
  key->used = 0;
  while (keys->reach && !keys->slot[keys->reach - 1].used) keys->reach--;
}

void ms_tcp_queue_add(ms_tcp_queue *queue, ms_transfer *transfer) {
  transfer->number = queue->posted++;
  transfer->moved = 0;
  transfer->next = NULL;
  transfer->state = MS_TRANSFER_POSTED;
  if (queue->last) queue->last->next = transfer;
  else queue->first = transfer;
  queue->last = transfer;
}

void ms_tcp_queue_finish(ms_tcp_queue *queue, enum ms_transfer_state state) {
  ms_transfer *transfer = queue->first;
  queue->first = transfer->next;
  if (!queue->first) queue->last = NULL;
  queue->finished++;
  transfer->next = NULL;
  transfer->state = state; /* from here on it is the caller's */
}

void ms_tcp_fail_transfers(ms_tcp_key *key) {
  while (key->sends.first) ms_tcp_queue_finish(&key->sends, MS_TRANSFER_FAILED);
  while (key->receives.first) ms_tcp_queue_finish(&key->receives, MS_TRANSFER_FAILED);
  key->uncredited = NULL;
}

ms_transfer *ms_tcp_next_send(const ms_tcp_key *key) {
  ms_transfer *send = key->sends.first;
  return key->used && !key->peer_cancelled && send && send->number < key->credits ? send : NULL;
}

int ms_tcp_is_awaited(const ms_tcp_keys *keys) {
  for (int i = 0; i < keys->reach; i++) {
    const ms_tcp_key *key = &keys->slot[i];
    if (key->used && !key->peer_cancelled && (key->sends.first || key->receives.first)) return 1;
  }
  return 0;
}

int ms_tcp_is_half_received(const ms_tcp_keys *keys) {
  for (int i = 0; i < keys->reach; i++) {
    const ms_tcp_key *key = &keys->slot[i];
    if (key->used && !key->peer_cancelled && key->receives.first && key->receives.first->moved) return 1;
  }
  return 0;
}
