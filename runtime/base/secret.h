/* secret.h - texts that no other process may see: in memory of their own that core dumps leave out, that is not swapped where
** the system allows it, and that is wiped when it is freed. The memory is libsodium's.
*/
#ifndef MS_BASE_SECRET_H
#define MS_BASE_SECRET_H

/* Before libsodium draws random bytes or maps memory; cheap after the first time. Its hashes need no start. */
int ms_secret_start(void);
/* A copy, or NULL (MS_ENOMEM). */
char *ms_secret_copy(const char *text);
/* Wipes it first. NULL: nothing. */
void ms_secret_free(char *secret);

#endif
