/* tickets.h - counts how far each rank of a group has come in its sequence of collectives, in words that all of them
 * map.
 *
 * Every rank counts three steps per operation in its ticket: entered, shared (peers can read its part of a result),
 * finished. Send and recv are counted separately per pair, because the other ranks of the group take no part. A
 * signature says what was entered, for comparison by the peers. Internal to collectives.
 */
#ifndef MS_COMM_COLLECTIVES_TICKETS_H
#define MS_COMM_COLLECTIVES_TICKETS_H

#include "comm/collectives/channel.h"

typedef struct ms_tickets {
  ms_channel_config config;
  const uint8_t *apart; /* [size] 1: on another host, without tickets here; NULL: all ranks are on this host */
  const ms_coll *coll;
  enum ms_ticket_step phase;
  int arrived;   /* group ranks 0 .. arrived-1 have reached the current phase */
  uint64_t base; /* this rank's ticket before the operation */
} ms_tickets;

int ms_coll_is_pairwise(int kind);
/* Number of the next operation: of the pair for send and recv, of the group for all others. */
uint64_t ms_tickets_next(const ms_tickets *tickets, const ms_coll *coll);
/* The end of a message about ranks that enter the same operation as parts of something else (ms_coll.part_of). */
extern const char ms_tickets_part_of_another[];
/* Begins an operation: takes this rank's ticket as its base. */
void ms_tickets_begin(ms_tickets *tickets, const ms_coll *coll);
/* Publishes the signature of what this rank enters; then the step that it has reached, and rings the others'
 * doorbells. */
void ms_tickets_sign(ms_tickets *tickets);
void ms_tickets_publish(ms_tickets *tickets, enum ms_ticket_step step);
/* The same for a send or recv; count: the pair's. */
void ms_tickets_publish_pair(ms_tickets *tickets, _Atomic uint32_t *count);
/* Counts of sends from group rank `from` to `to`, and of receives by `by` from `from`. */
_Atomic uint32_t *ms_tickets_sent(const ms_tickets *tickets, int from, int to);
_Atomic uint32_t *ms_tickets_received(const ms_tickets *tickets, int by, int from);
/* Makes the operation wait until the others reach `phase`. */
void ms_tickets_await(ms_tickets *tickets, enum ms_ticket_step phase);
int ms_tickets_all_have_come(ms_tickets *tickets);
/* World ranks that the current phase still waits for; world ranks that have not finished the operation. */
ms_rank_set ms_tickets_missing(const ms_tickets *tickets);
ms_rank_set ms_tickets_unfinished(const ms_tickets *tickets);
/* Fails with MS_EMISMATCH when the signatures differ, and says which rank entered what. */
int ms_tickets_compare(const ms_tickets *tickets);

#endif
