/* launcher_watch.h - ends a rank whose launcher was killed. A launcher that is asked to end also ends its ranks. One
 * that SIGKILL ends cannot, and its ranks would train on without it. */
#ifndef MS_COMM_BOOTSTRAP_LAUNCHER_WATCH_H
#define MS_COMM_BOOTSTRAP_LAUNCHER_WATCH_H

#include "comm/control/control.h"

typedef struct ms_launcher_watch ms_launcher_watch;

/* Watches the program that has set a variable of this process (ms_process_starter) until it ends. The ranks of this
 * host then fail as when a launcher of Moonshard's reports the end of the job, in whatever they wait for; a rank that
 * has not ended some seconds later is killed. *watch is NULL where /proc does not say who it was. */
int ms_launcher_watch_start(const char *variable, ms_control *control, ms_launcher_watch **watch);
/* Before the segment is unmapped; safe on NULL. */
void ms_launcher_watch_stop(ms_launcher_watch *watch);

#endif
