/* link.h - the launcher's end of a socket to the program that started it on this host for `moonshard run --hosts`
 * (host/hosts/remote.c): what the launcher must know and the job's token come in, its report goes out.
 *
 * The environment variable MOONSHARD_HOST_LINK names the descriptor. The token comes through the socket so that neither
 * the command line nor the environment of any process shows it.
 */
#ifndef MS_HOST_LINK_H
#define MS_HOST_LINK_H

#include <stddef.h>

enum { MS_LINK_BYTES = 65536 }; /* largest message */

/* In a report: where the failure began. A host whose link is down has lost sight of all others, and each of them only
 * of that one. */
enum ms_link_began {
  MS_LINK_BEGAN_ELSEWHERE = 0, /* its ranks ended because of others */
  MS_LINK_BEGAN_UNSEEN,        /* its ranks could not reach several other hosts: right if most hosts say so */
  MS_LINK_BEGAN_SEEN,          /* they could not reach one other host, or the store said why */
  MS_LINK_BEGAN_HERE           /* one of its ranks failed */
};

typedef struct ms_launch_link {
  int fd;           /* a socket that keeps messages whole; -1 once the other end has closed */
  int first, world; /* rank of the first rank of this host, and number of ranks of all hosts */
  char host[256];   /* name of this host, as given to --hosts */
} ms_launch_link;

/* Reads the first message, if the environment names a link, and moves the token from it to the environment variable
 * that ms_token_hide reads. Called before ms_token_hide. Fails with MS_EINVAL. */
int ms_link_take(void);
/* NULL: this process was not started for --hosts. */
ms_launch_link *ms_link_get(void);
/* 1: the ranks must end, for the reason in why. 0: no message. */
int ms_link_receive(ms_launch_link *link, char *why, size_t bytes);
/* Sends how the launch ended. began: enum ms_link_began; reason: of the first rank that
 * failed, or ""; text: the lines to print. */
void ms_link_report(ms_launch_link *link, int began, const char *reason, const char *text);

#endif
