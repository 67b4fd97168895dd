/* leftovers.h - programs that ranks started and that are still there when a run has failed.
**
** While it runs, the launcher is the parent that orphans below it fall to, so that it can end them.
*/
#ifndef MS_HOST_LEFTOVERS_H
#define MS_HOST_LEFTOVERS_H

#include <sys/types.h>

enum { MS_LEFTOVERS_KNOWN = 64 };

typedef struct ms_leftovers {
  int adopts, adopted_before;
  int known; /* children that were there before: none of the ranks' doing */
  pid_t known_pid[MS_LEFTOVERS_KNOWN];
} ms_leftovers;

void ms_leftovers_adopt(ms_leftovers *leftovers);
/* All ranks have ended. end 1: kills what they left and waits for its end; 0: lets it go its way. */
void ms_leftovers_finish(ms_leftovers *leftovers, int end);

#endif
