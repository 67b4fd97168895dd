/* collective_time.h - how long a collective takes, in two parts: what it waits, and what it occupies. */
#ifndef MS_PRICE_COLLECTIVE_TIME_H
#define MS_PRICE_COLLECTIVE_TIME_H

#include "moonshard.h"

typedef struct ms_collective_time {
  double seconds;   /* alone on its links */
  double transfer;  /* of these, at least this part moves bytes: what another collective on the same links adds */
  double processor; /* HOSTS: processor time of a node in which it moves bytes to and from others, seconds */
  int between;      /* 1: the links to other nodes bound the transfer; 0: those inside a node */
  int link;         /* index in the cluster; -1: of one rank, which takes no time */
} ms_collective_time;

/* The fastest link's. MS_EINVAL if a number of the work is out of range, MS_EUNSUPPORTED if no link can carry it. The
 * cluster has been checked. */
int ms_collective_time_of(const ms_cluster *cluster, const ms_collective_work *work, ms_collective_time *time);

#endif
