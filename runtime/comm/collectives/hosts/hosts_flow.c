/* hosts_flow.c - flows: the pieces on their way to or from a partner, in order, a few at a time. */
#include "base/error.h"
#include "base/numbers/dtype.h"
#include "comm/collectives/hosts/hosts.h"

void ms_hosts_begin_flow(ms_hosts_flow *flow, int used, int p, const ms_hosts_range *asked) {
  flow->walk = (ms_hosts_walk){.p = p, .asked = asked};
  flow->posted = flow->finished = 0;
  flow->more = used;
}

void ms_hosts_find_first(const ms_hosts_lane *lane, ms_hosts_flow *flow) {
  if (flow->more) flow->more = ms_hosts_next_piece(&lane->shape, lane->coll, &flow->walk, &flow->next);
}

int ms_hosts_is_ended(const ms_hosts_flow *flow) { return !flow->more && flow->finished == flow->posted; }

int ms_hosts_has_room(const ms_hosts_flow *flow) {
  return flow->more && flow->posted - flow->finished < (uint64_t)flow->window;
}

int ms_hosts_has_moved(const ms_hosts_flow *flow) {
  return flow->finished < flow->posted &&
         flow->transfer[flow->finished % (uint64_t)flow->window].state == MS_TRANSFER_DONE;
}

void ms_hosts_finish_moved(ms_hosts_flow *flow) {
  while (ms_hosts_has_moved(flow)) flow->finished++;
}

char *ms_hosts_slot(const ms_hosts_flow *flow, uint64_t number) {
  return flow->slot ? flow->slot + number % (uint64_t)flow->window * MS_HOSTS_PIECE : NULL;
}

int ms_hosts_post_piece(ms_hosts_lane *lane, int peer, ms_hosts_flow *flow, int receives, uint64_t key, void *data) {
  const uint64_t place = flow->posted % (uint64_t)flow->window;
  const ms_hosts_piece *piece = &flow->next;
  flow->piece[place] = *piece;
  flow->transfer[place] =
      (ms_transfer){.peer = peer,
                    .receives = receives,
                    .key = key,
                    .data = data,
                    .bytes = piece->n * ms_dtype_size(ms_hosts_wire_dtype(lane->coll, piece->part))};
  flow->posted++;
  flow->more = ms_hosts_next_piece(&lane->shape, lane->coll, &flow->walk, &flow->next);
  return ms_hosts_post(lane, &flow->transfer[place]);
}

char *ms_hosts_piece_in(const ms_hosts_lane *lane, int p, const ms_hosts_piece *piece) {
  const ms_coll_part *part = &lane->coll->part[piece->part];
  return (char *)part->shared[p] + piece->first * ms_dtype_size(ms_hosts_wire_dtype(lane->coll, piece->part));
}
