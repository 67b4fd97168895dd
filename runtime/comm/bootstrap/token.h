/* token.h - the secret that the ranks of a job share. Internal to comm and the launcher.
**
** It comes from the environment variable MOONSHARD_TOKEN, from the file that MOONSHARD_TOKEN_FILE names, or is made. It is
** kept in memory alone, in one copy that core dumps leave out (base/secret.h): the variable is erased before anything else
** is done, so neither `ps` nor a program that a rank starts sees it, and it is never printed. Ranks that the launcher forks
** inherit it. It stays for the life of the process, which may join again.
*/
#ifndef MS_COMM_BOOTSTRAP_TOKEN_H
#define MS_COMM_BOOTSTRAP_TOKEN_H

#include "comm/bootstrap/store.h"

/* Takes MOONSHARD_TOKEN out of the environment, for ms_token_get: the first thing that a process does. Fails
** with MS_ENOMEM, and leaves it there: a job that was given a token does not go on without. */
int ms_token_hide(void);
/* This process's token, "" when it was given none. Fails with MS_EINVAL on one that is too short, or a file that others can read. */
int ms_token_get(const char **token);
/* Gives this process a random one, unless it has one. */
int ms_token_make(void);
/* Fails with MS_EINVAL, and says what to do, where other hosts can come to a place and there is no token. */
int ms_token_check(const ms_store_place *place, const char *token);

#endif
