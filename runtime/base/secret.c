/* secret.c - libsodium's guarded memory for texts. */
#include "base/secret.h"

#include <sodium.h>
#include <string.h>

#include "base/error.h"

int ms_secret_start(void) {
  return sodium_init() >= 0 ? MS_OK : MS_FAIL(MS_EIO, "libsodium cannot start: the system provides no random bytes");
}

char *ms_secret_copy(const char *text) {
  size_t bytes = strlen(text) + 1;
  if (ms_secret_start()) return NULL;
  char *copy = sodium_malloc(bytes);
  if (copy) memcpy(copy, text, bytes);
  else MS_FAIL(MS_ENOMEM, "out of memory: %zu bytes for a secret", bytes);
  return copy;
}

void ms_secret_free(char *secret) { sodium_free(secret); }
