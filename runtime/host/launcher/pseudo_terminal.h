/* pseudo_terminal.h - a terminal that the launcher holds the other end of, so that ranks behave as on a terminal. */
#ifndef MS_HOST_PSEUDO_TERMINAL_H
#define MS_HOST_PSEUDO_TERMINAL_H

/* ends: what this process reads and writes, then the terminal, which does not become a controlling one. Returns -1 with
 * errno. */
int ms_pseudo_terminal_open(int ends[2]);

#endif
