/* hosts_pair.c - sends and receives between two hosts. They concern two ranks, so they have a key of their own and wait
 * for no other rank of the group: both say what they entered, and once that fits, the source's pieces move. The
 * receiver casts them from staging memory.
 */
#include "base/clock.h"
#include "base/error.h"
#include "base/numbers/dtype.h"
#include "comm/collectives/hosts/hosts.h"
#include "comm/collectives/sum.h"

int ms_hosts_meet_peer(ms_hosts_lane *lane, int p) {
  if (!lane->met) lane->met = ms_calloc(lane->shape.size, sizeof *lane->met);
  if (!lane->met) return MS_ENOMEM;
  if (!lane->met[p]) MS_TRY(ms_progress_connect(lane->thread, 1, &lane->rank[p]));
  lane->met[p] = 1;
  return MS_OK;
}

void ms_hosts_begin_pair(ms_hosts_lane *lane) {
  ms_hosts_partner *x = &lane->peer;
  const int sends = lane->coll->kind == MS_COLL_SEND;
  x->p = lane->coll->root;
  x->rank = lane->rank[x->p];
  x->agreed = x->told = x->begun = 0;
  lane->moved = 0;
  x->sums_out.window = x->sums_in.window = MS_HOSTS_UNDER_WAY;
  x->sums_in.slot = lane->staging;
  ms_hosts_begin_flow(&x->sums_out, sends, x->p, NULL);
  ms_hosts_begin_flow(&x->sums_in, !sends, x->p, NULL);
}

/* The receive comes first, so that the peer's message is expected before it can be sent. */
static int agree(ms_hosts_lane *lane, ms_hosts_partner *x, uint64_t key) {
  if (!x->told) {
    x->take = (ms_transfer){.peer = x->rank, .receives = 1, .key = key, .data = &x->theirs, .bytes = sizeof x->theirs};
    x->tell = (ms_transfer){.peer = x->rank, .key = key, .data = &lane->mine, .bytes = sizeof lane->mine};
    x->told = 1;
    MS_TRY(ms_hosts_post(lane, &x->take));
    MS_TRY(ms_hosts_post(lane, &x->tell));
  }
  if (x->take.state != MS_TRANSFER_DONE || x->tell.state != MS_TRANSFER_DONE) return MS_OK;
  MS_TRY(ms_hosts_compare(lane, x));
  ms_hosts_find_first(lane, &x->sums_out);
  ms_hosts_find_first(lane, &x->sums_in);
  x->agreed = x->begun = x->sent_words = 1;
  return MS_OK;
}

static void take_piece(ms_hosts_lane *lane, ms_hosts_flow *flow) {
  const ms_hosts_piece *piece = &flow->piece[flow->finished % (uint64_t)flow->window];
  const ms_coll_part *part = &lane->coll->part[piece->part];
  ms_copy_arrays((char *)part->dst + piece->first * ms_dtype_size(part->dst_dtype), part->dst_dtype,
                 ms_hosts_slot(flow, flow->finished), part->src_dtype, piece->n);
  flow->finished++;
}

int ms_hosts_move_pair(ms_hosts_lane *lane, int *news) {
  ms_hosts_partner *x = &lane->peer;
  ms_hosts_flow *out = &x->sums_out, *in = &x->sums_in;
  const uint64_t key = lane->key + MS_HOSTS_PAIR_KEY;
  if (!x->agreed) {
    MS_TRY(agree(lane, x, key));
    if (!x->agreed) return MS_OK;
    *news = 1;
    lane->moved_at = ms_clock();
  }
  ms_hosts_finish_moved(out);
  while (ms_hosts_has_room(out))
    MS_TRY(ms_hosts_post_piece(lane, x->rank, out, 0, key, ms_hosts_piece_in(lane, lane->shape.me, &out->next)));
  while (ms_hosts_has_moved(in)) take_piece(lane, in);
  while (ms_hosts_has_room(in)) MS_TRY(ms_hosts_post_piece(lane, x->rank, in, 1, key, ms_hosts_slot(in, in->posted)));
  if (out->finished + in->finished != lane->moved) lane->moved_at = ms_clock();
  lane->moved = out->finished + in->finished;
  return MS_OK;
}
