/* secret.h - texts that no other process may see, in memory from libsodium: excluded from core dumps, locked against
 * swapping if the system allows it, and wiped when freed. */
#ifndef MS_BASE_SECRET_H
#define MS_BASE_SECRET_H

/* Call before libsodium draws random bytes or maps memory; cheap after the first call. Its hash functions do not need
 * it. */
int ms_secret_start(void);
/* Returns a copy, or NULL (MS_ENOMEM). Free it with ms_secret_free. */
char *ms_secret_copy(const char *text);
/* Wipes the text and frees it; safe on NULL. */
void ms_secret_free(char *secret);

#endif
