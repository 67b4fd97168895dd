/* leftovers.h - programs that ranks started and that still run after a failed run.
 *
 * While it runs, the launcher is the subreaper of its descendants: it becomes the parent of orphans and can kill them.
 */
#ifndef MS_HOST_LEFTOVERS_H
#define MS_HOST_LEFTOVERS_H

#include <sys/types.h>

enum { MS_LEFTOVERS_KNOWN = 64 };

typedef struct ms_leftovers {
  int adopts, adopted_before;
  int known; /* children that existed before; ranks did not start them */
  pid_t known_pid[MS_LEFTOVERS_KNOWN];
} ms_leftovers;

void ms_leftovers_adopt(ms_leftovers *leftovers);
/* After all ranks have ended. end 1: kills the programs that they left, and waits for them; 0: lets them run. */
void ms_leftovers_finish(ms_leftovers *leftovers, int end);

#endif
