/* remote.h - the program that `moonshard run --hosts` starts on each host through its agent (ssh).
 *
 * It reads the token and its orders from standard input, forks the host's launcher as an ordinary `moonshard run
 * --nodes`, and passes the launcher's output, report and exit status on through standard output, in frames. The end of
 * standard input ends the launcher: the connection is the sign that the run still exists.
 */
#ifndef MS_HOST_REMOTE_H
#define MS_HOST_REMOTE_H

/* Returns the exit status of the program. */
int ms_remote_main(void);

#endif
