/* tickets.h - how far the ranks of a group have come in their sequence of collectives, in words that all of them map.
**
** Every rank counts three steps an operation in its ticket: entered, shared (its part of a result is where peers can read
** it), finished. Send and recv count apart, pair by pair, because the other ranks of the group take no part. A signature
** tells peers what was entered. Internal to collectives.
*/
#ifndef MS_COMM_COLLECTIVES_TICKETS_H
#define MS_COMM_COLLECTIVES_TICKETS_H

#include "comm/collectives/transport.h"

/* What an operation waits for; the value is the step of the ticket. */
enum ms_ticket_step { MS_TICKET_IDLE = 0, MS_TICKET_ENTERED = 1, MS_TICKET_SHARED = 2, MS_TICKET_FINISHED = 3 };

typedef struct ms_tickets {
  ms_channel_config config;
  const ms_coll *coll;
  enum ms_ticket_step phase;
  int arrived;   /* group ranks 0 .. arrived-1 have come to the current wait */
  uint64_t base; /* own ticket before the operation */
} ms_tickets;

int ms_coll_is_pairwise(int kind);
/* The number of the next operation: of the pair for send and recv, of the group for all others. */
uint64_t ms_tickets_next(const ms_tickets *tickets, const ms_coll *coll);
/* Begins an operation: takes this rank's ticket as the base. */
void ms_tickets_begin(ms_tickets *tickets, const ms_coll *coll);
/* Publishes what this rank enters, then that it has come to `step`, and rings the others. */
void ms_tickets_sign(ms_tickets *tickets);
void ms_tickets_publish(ms_tickets *tickets, enum ms_ticket_step step);
/* The same of a send or recv; count: of the pair. */
void ms_tickets_publish_pair(ms_tickets *tickets, _Atomic uint32_t *count);
/* From here on the operation waits for the others to come to `phase`. */
void ms_tickets_await(ms_tickets *tickets, enum ms_ticket_step phase);
int ms_tickets_all_have_come(ms_tickets *tickets);
/* The world ranks that the current wait is for; those that have not finished the operation. */
ms_rank_set ms_tickets_missing(const ms_tickets *tickets);
ms_rank_set ms_tickets_unfinished(const ms_tickets *tickets);
/* Fails with MS_EMISMATCH, saying which rank entered what, where the signatures differ. */
int ms_tickets_compare(const ms_tickets *tickets);

#endif
