/* token.h - the secret that the ranks of a job share. Internal to comm and the launcher.
 *
 * It is read from the environment variable MOONSHARD_TOKEN or from the file named by MOONSHARD_TOKEN_FILE, or is
 * generated. It exists only in memory, in one copy that core dumps exclude. The variable is erased at
 * once, so neither `ps` nor a program started by a rank sees it, and it is never printed. Ranks that the launcher forks
 * inherit it. It is kept for the life of the process, which can join again.
 */
#ifndef MS_COMM_BOOTSTRAP_TOKEN_H
#define MS_COMM_BOOTSTRAP_TOKEN_H

#include "comm/bootstrap/store/store.h"

/* Moves MOONSHARD_TOKEN from the environment to memory, for ms_token_get. Called first in a process. Fails with
 * MS_ENOMEM and keeps the variable: a job that was given a token does not run without it. */
int ms_token_hide(void);
/* This process's token, "" without one; belongs to this module. Fails with MS_EINVAL on a token that is too short, or a
 * file that other users can read. */
int ms_token_get(const char **token);
/* The job's token: this process's, or else `launchers`, the one that the launcher made ("": none). */
int ms_token_of_job(const char *launchers, const char **token);
/* Generates a random token, unless the process already has one. */
int ms_token_make(void);
/* Fails with MS_EINVAL, and says what to do, when other hosts can reach the place and there is no token. */
int ms_token_check(const ms_store_place *place, const char *token);

#endif
