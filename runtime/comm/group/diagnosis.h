/* diagnosis.h - what waits and comparisons want to know when they fail: who is behind, who waits for whom, what a rank
** entered. The answers are read from flight recorders by the floor above (comm/diagnose), which hands this table down to
** each world when a rank joins.
*/
#ifndef MS_COMM_GROUP_DIAGNOSIS_H
#define MS_COMM_GROUP_DIAGNOSIS_H

#include "comm/control/control.h"

typedef struct ms_diagnosis {
  /* Appends to the error of rank `me` that waited for `missing`: "; rank 1 is outside the engine ...". */
  void (*behind)(const ms_control *control, int me, const ms_rank_set *missing, char *text, size_t bytes);
  /* The ranks that wait for each other, so that none of them can ever go on. A rank that is about to wake up may be among
  ** them: they are sure to be stuck when *state, a hash of where they are, stays the same. */
  ms_rank_set (*deadlock)(const ms_control *control, uint64_t *state);
  /* "phase evaluate of step 3", of the record with this sequence number in a group's ring; "" when it is gone. */
  void (*entered)(const ms_control *control, int rank, uint32_t group, uint64_t sequence, char *text, size_t bytes);
  /* The noted failure of a rank whose program caught it and went on; "" when there is none. */
  void (*noted)(const ms_control *control, char *text, size_t bytes);
} ms_diagnosis;

#endif
