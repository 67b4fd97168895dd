/* diagnosis.h - what a failing wait or comparison needs to know: which ranks are behind, which wait for each other,
 * what a rank entered. The layer above (comm/diagnose) reads the answers from the flight recorders, and passes this
 * table to each world when a rank joins.
 */
#ifndef MS_COMM_GROUP_DIAGNOSIS_H
#define MS_COMM_GROUP_DIAGNOSIS_H

#include "comm/control/control.h"

typedef struct ms_diagnosis {
  /* The suffix for the error of rank `me` that waited for `missing`: "; rank 1 is outside the engine ...". */
  void (*behind)(const ms_control *control, int me, const ms_rank_set *missing, char *text, size_t bytes);
  /* The ranks that wait for each other, so that none of them can ever continue. A rank that is about to wake up can be
   * among them: they are certainly deadlocked when *state, a hash of where they are, is the same in two calls. */
  ms_rank_set (*deadlock)(const ms_control *control, uint64_t *state);
  /* "phase evaluate of step 3", for the record with this sequence number in a group's ring; "" when it is
   * overwritten. */
  void (*entered)(const ms_control *control, int rank, uint32_t group, uint64_t sequence, char *text, size_t bytes);
  /* The noted failure of a rank whose program caught it and continued; "" when there is none. */
  void (*noted)(const ms_control *control, char *text, size_t bytes);
} ms_diagnosis;

#endif
