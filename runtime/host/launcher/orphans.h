/* orphans.h - programs that ranks started and that still run after a failed run.
 *
 * While it runs, the launcher is the subreaper of its descendants: it becomes the parent of orphans and can kill them.
 */
#ifndef MS_HOST_ORPHANS_H
#define MS_HOST_ORPHANS_H

#include <sys/types.h>

enum { MS_ORPHANS_KNOWN = 64 };

typedef struct ms_orphans {
  int adopts, adopted_before;
  int known; /* children that existed before; ranks did not start them */
  pid_t known_pid[MS_ORPHANS_KNOWN];
} ms_orphans;

void ms_orphans_adopt(ms_orphans *orphans);
/* After all ranks have ended. end 1: kills the programs that they left, and waits for them; 0: lets them run. */
void ms_orphans_finish(ms_orphans *orphans, int end);

#endif
