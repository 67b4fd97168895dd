/* hosts_move.c - moves and sums the pieces of an operation between hosts, in the progress thread.
 *
 * Order of sums: in f32, the ranks of a host in group order, rounded to the type of the sources (of bf16 sources each
 * host's sum is rounded once); then these sums in the order of the hosts' lowest group ranks, in f32, rounded to the
 * type of the result. An all-reduce that is not sliced passes its result on in the type of the sources. This does not
 * depend on sizes, pieces, or who comes first.
 */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/numbers/dtype.h"
#include "comm/collectives/hosts/hosts.h"
#include "comm/collectives/move.h"
#include "comm/collectives/sum.h"

/* ---- flows ---- */

static void begin_flow(ms_hosts_lane *lane, ms_hosts_flow *flow, int used, int p, const ms_hosts_range *asked) {
  ms_hosts_begin_flow(flow, used, p, lane->coll->sliced ? asked : NULL);
}

/* The ranges that the partners ask for are known once they have agreed. */
static void find_first_pieces(const ms_hosts_lane *lane, ms_hosts_partner *x) {
  ms_hosts_find_first(lane, &x->sums_out);
  ms_hosts_find_first(lane, &x->sums_in);
  ms_hosts_find_first(lane, &x->copies_out);
  ms_hosts_find_first(lane, &x->copies_in);
}

void ms_hosts_begin(ms_hosts_lane *lane) {
  const ms_hosts_shape *shape = &lane->shape;
  const ms_coll *coll = lane->coll;
  const int kind = coll->kind, exchanges = kind == MS_COLL_ALL_TO_ALL;
  const int sums = kind == MS_COLL_REDUCE_SCATTER || kind == MS_COLL_ALL_REDUCE || exchanges;
  const int copies = kind == MS_COLL_ALL_GATHER || (kind == MS_COLL_ALL_REDUCE && !coll->sliced);
  const int from = kind == MS_COLL_BROADCAST ? shape->host_of[coll->root] : -1;
  lane->ready = lane->moved = 0;
  begin_flow(lane, &lane->cast, kind == MS_COLL_ALL_GATHER, shape->me, NULL);
  ms_hosts_find_first(lane, &lane->cast);
  for (int i = 0; i < lane->partners; i++) {
    ms_hosts_partner *x = &lane->partner[i];
    x->agreed = x->told = 0;
    x->begun = 0;
    begin_flow(lane, &x->sums_out, x->handled && (sums || from == ms_hosts_here(lane)), x->p, x->asked);
    begin_flow(lane, &x->sums_in, x->handles_me && (sums || from == shape->host_of[x->p]), shape->me, lane->asked);
    x->sums_out.walk.host = ms_hosts_here(lane);
    x->sums_in.walk.host = shape->host_of[x->p];
    begin_flow(lane, &x->copies_out, copies && x->handles_me, shape->me, NULL);
    begin_flow(lane, &x->copies_in, copies && x->handled, x->p, NULL);
  }
}

int ms_hosts_is_over_with(const ms_hosts_partner *x) {
  return x->begun && x->sent_words && ms_hosts_is_ended(&x->sums_out) && ms_hosts_is_ended(&x->sums_in) &&
         ms_hosts_is_ended(&x->copies_out) && ms_hosts_is_ended(&x->copies_in);
}

/* ---- sums ---- */

/* The sum of this host, in the sources' type: at `room`, or a single source itself. An all_to_all adds nothing. */
static void *sum_here(ms_hosts_lane *lane, const ms_hosts_piece *piece, char *room) {
  const ms_hosts_shape *shape = &lane->shape;
  const int here = ms_hosts_here(lane), dtype = lane->coll->part[piece->part].src_dtype;
  if (lane->coll->kind == MS_COLL_BROADCAST) return ms_hosts_piece_in(lane, lane->coll->root, piece);
  if (lane->coll->kind == MS_COLL_ALL_TO_ALL) return ms_hosts_piece_in(lane, piece->from, piece);
  int n = 0;
  for (int i = shape->first[here]; i < shape->first[here + 1]; i++)
    lane->source[n++] = ms_hosts_piece_in(lane, shape->member[i], piece);
  if (n == 1) return ms_hosts_piece_in(lane, shape->me, piece);
  void *sum = room;
  ms_combine_arrays(lane->coll->largest, &sum, 1, dtype, lane->source, n, dtype, piece->n, 0);
  return sum;
}

/* Sums one piece of a partner's region, for which it waits, and sends it. */
static int send_sum(ms_hosts_lane *lane, ms_hosts_partner *x, int *busy) {
  ms_hosts_flow *flow = &x->sums_out;
  ms_hosts_finish_moved(flow);
  if (!ms_hosts_has_room(flow)) return MS_OK;
  void *sum = sum_here(lane, &flow->next, ms_hosts_slot(flow, flow->posted));
  MS_TRY(ms_hosts_post_piece(lane, x->rank, flow, 0, lane->key, sum));
  *busy |= ms_hosts_has_room(flow);
  return MS_OK;
}

/* 1: what comes is not added to anything, so it lands where it stays. */
static int lands(const ms_hosts_lane *lane) {
  return lane->coll->kind == MS_COLL_BROADCAST || lane->coll->kind == MS_COLL_ALL_TO_ALL;
}

/* What is broadcast comes to the buffer from which the ranks of this host copy it, and in an all_to_all to the chunk of
 * the rank that it is from. */
static void *landing_place(const ms_hosts_lane *lane, const ms_hosts_piece *piece) {
  const ms_coll_part *part = &lane->coll->part[piece->part];
  if (lane->coll->kind == MS_COLL_BROADCAST) return ms_hosts_piece_in(lane, lane->shape.me, piece);
  return (char *)part->dst + (piece->from * part->count + piece->within) * ms_dtype_size(part->dst_dtype);
}

static int receive_sums(ms_hosts_lane *lane, ms_hosts_partner *x) {
  ms_hosts_flow *flow = &x->sums_in;
  if (lands(lane)) ms_hosts_finish_moved(flow);
  while (ms_hosts_has_room(flow)) {
    void *to = lands(lane) ? landing_place(lane, &flow->next) : ms_hosts_slot(flow, flow->posted);
    MS_TRY(ms_hosts_post_piece(lane, x->rank, flow, 1, lane->key, to));
  }
  return MS_OK;
}

/* The flow by which the sums of a host come; NULL: of this host. */
static ms_hosts_flow *flow_from(const ms_hosts_lane *lane, int host) {
  return lane->sender[host] < 0 ? NULL : &lane->partner[lane->sender[host]].sums_in;
}

/* The next piece of this rank's region for which all hosts' sums are here; NULL: there is none. */
static const ms_hosts_piece *find_complete(const ms_hosts_lane *lane) {
  const ms_hosts_piece *piece = NULL;
  for (int host = 0; host < lane->shape.hosts; host++) {
    const ms_hosts_flow *flow = flow_from(lane, host);
    if (!flow) continue;
    if (!ms_hosts_has_moved(flow)) return NULL;
    piece = &flow->piece[flow->finished % (uint64_t)flow->window];
  }
  return piece;
}

/* Adds up the sums of all hosts for one piece of this rank's region. */
static void add_hosts(ms_hosts_lane *lane, int *busy) {
  const ms_hosts_piece *piece = lands(lane) ? NULL : find_complete(lane);
  if (!piece) return;
  const ms_coll_part *part = &lane->coll->part[piece->part];
  const int in_source = ms_hosts_pulls(lane), dtype = in_source ? part->src_dtype : part->dst_dtype;
  void *own = sum_here(lane, piece, lane->own);
  void *dst = in_source ? ms_hosts_piece_in(lane, lane->shape.me, piece)
                        : (char *)part->dst + piece->within * ms_dtype_size(dtype);
  int n = 0;
  for (int host = 0; host < lane->shape.hosts; host++) {
    const ms_hosts_flow *flow = flow_from(lane, host);
    lane->source[n++] = flow ? ms_hosts_slot(flow, flow->finished) : own;
  }
  ms_combine_arrays(lane->coll->largest, &dst, 1, dtype, lane->source, n, part->src_dtype, piece->n,
                    part->accumulate && !in_source);
  for (int host = 0; host < lane->shape.hosts; host++) {
    ms_hosts_flow *flow = flow_from(lane, host);
    if (flow) flow->finished++;
  }
  lane->ready++;
  *busy = 1;
}

/* ---- copies ---- */

/* An all-gather has one result for the host; an all-reduce gathers the sums in the sources. */
static char *place_of(const ms_hosts_lane *lane, const ms_hosts_piece *piece) {
  return ms_hosts_piece_in(lane, lane->coll->kind == MS_COLL_ALL_GATHER ? 0 : lane->shape.me, piece);
}

/* Casts a piece of this rank's chunk into the host's copy, while others are sent from there. */
static void cast_piece(ms_hosts_lane *lane, int *busy) {
  ms_hosts_flow *flow = &lane->cast;
  const ms_hosts_piece *piece = &flow->next;
  if (!flow->more) return;
  const ms_coll_part *part = &lane->coll->part[piece->part];
  if (part->src) ms_cast_chunk(part, piece->within, piece->n, place_of(lane, piece));
  flow->more = ms_hosts_next_piece(&lane->shape, lane->coll, &flow->walk, &flow->next);
  lane->ready++;
  *busy = 1;
}

static int send_copies(ms_hosts_lane *lane, ms_hosts_partner *x) {
  ms_hosts_flow *flow = &x->copies_out;
  ms_hosts_finish_moved(flow);
  while (ms_hosts_has_room(flow) && flow->posted < lane->ready)
    MS_TRY(ms_hosts_post_piece(lane, x->rank, flow, 0, lane->key + MS_HOSTS_COPY_KEY, place_of(lane, &flow->next)));
  return MS_OK;
}

/* In an all-reduce the result replaces the sources of the sum that this rank has sent. */
static int receive_copies(ms_hosts_lane *lane, ms_hosts_partner *x) {
  ms_hosts_flow *flow = &x->copies_in;
  const int at_once = lane->coll->kind == MS_COLL_ALL_GATHER;
  ms_hosts_finish_moved(flow);
  while (ms_hosts_has_room(flow) && (at_once || flow->posted < x->sums_out.finished))
    MS_TRY(ms_hosts_post_piece(lane, x->rank, flow, 1, lane->key + MS_HOSTS_COPY_KEY, place_of(lane, &flow->next)));
  return MS_OK;
}

static void note_movement(ms_hosts_lane *lane) {
  uint64_t moved = 0;
  for (int i = 0; i < lane->partners; i++) {
    const ms_hosts_partner *x = &lane->partner[i];
    moved += x->sums_out.finished + x->sums_in.finished + x->copies_out.finished + x->copies_in.finished + x->agreed;
  }
  if (moved != lane->moved) lane->moved_at = ms_clock();
  lane->moved = moved;
}

int ms_hosts_move(ms_hosts_lane *lane, int *busy) {
  for (int i = 0; i < lane->partners; i++) {
    ms_hosts_partner *x = &lane->partner[i];
    if (!x->agreed) continue;
    if (!x->begun) find_first_pieces(lane, x);
    x->begun = 1;
    x->sent_words = x->tell.state == MS_TRANSFER_DONE &&
                    (!lane->coll->sliced || !lane->coll->parts || x->tell_asked.state == MS_TRANSFER_DONE);
    MS_TRY(receive_sums(lane, x));
    MS_TRY(send_sum(lane, x, busy));
    MS_TRY(receive_copies(lane, x));
  }
  add_hosts(lane, busy);
  cast_piece(lane, busy);
  for (int i = 0; i < lane->partners; i++)
    if (lane->partner[i].begun) MS_TRY(send_copies(lane, &lane->partner[i]));
  note_movement(lane);
  return MS_OK;
}

/* ---- within the host ---- */

void ms_hosts_pull(const ms_hosts_lane *lane) {
  const ms_hosts_shape *shape = &lane->shape;
  const int me = shape->me;
  for (int i = 0; i < lane->coll->parts; i++) {
    const ms_coll_part *part = &lane->coll->part[i];
    /* Every rank begins with its own region, so they do not all read the same memory at once. */
    for (int turn = 0; turn < shape->size; turn++) {
      int p = (me + turn) % shape->size, from = ms_hosts_handler(shape, ms_hosts_here(lane), p);
      if (lane->coll->kind == MS_COLL_BROADCAST && from != p) continue; /* its host has another copy */
      ms_hosts_range region = ms_hosts_region(shape, lane->coll, i, p, (ms_hosts_range){0});
      if (!region.n || (from == me && part->dst == part->shared[me])) continue;
      void *dst = (char *)part->dst + region.first * ms_dtype_size(part->dst_dtype);
      const void *source = (const char *)part->shared[from] + region.first * ms_dtype_size(part->src_dtype);
      if (part->accumulate) ms_sum_arrays(&dst, 1, part->dst_dtype, &source, 1, part->src_dtype, region.n, 1);
      else ms_copy_arrays(dst, part->dst_dtype, source, part->src_dtype, region.n);
    }
  }
}
