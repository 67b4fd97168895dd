/* fake_hosts.h - ranks as threads that pretend to be on several hosts, and a transport among the threads of one
 * process: the second implementation of ms_transport_api, which shows that the table is enough.
 */
#ifndef MS_TESTS_FAKE_HOSTS_H
#define MS_TESTS_FAKE_HOSTS_H

#include "comm/collectives/channel.h"
#include "comm/collectives/hosts/hosts_plan.h"
#include "comm/collectives/hosts/progress_thread.h"
#include "tests/c/support/ranks/ranks.h"

enum { MAX_HOST_RANKS = 6 };

typedef struct fake_hosts {
  const char *name;
  int ranks, node[MAX_HOST_RANKS];
} fake_hosts;

/* 2x1, 2x2, 3x1, 4x1, 2x3, uneven ones, and one whose hosts alternate. */
extern const fake_hosts all_fake_hosts[];
extern const int n_fake_hosts;

extern const ms_transport_api threads_transport;

/* In threads_transport: ends the connections of a rank; keeps back all but first messages. */
void cut_off_rank(int rank);
void hold_pieces(int hold);
/* 1: a rank has named the other as its peer. */
int has_peer(int rank, int other);

/* Runs the body as the ranks of a world on these hosts, over a transport. */
void run_ranks_on_hosts(const fake_hosts *hosts, const ms_transport_api *api, rank_body *body, void *context);
/* ms_world_recover, which the ranks of such a world can call because they share a segment. */
int recover_on_hosts(ms_world *world);
/* Bytes that the rank's endpoint has moved; waits until they are `sent` and `received`, or some seconds. */
ms_transport_counts await_counts(ms_world *world, int64_t sent, int64_t received);

#endif
