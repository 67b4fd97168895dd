/* token.c - reads, generates and keeps the job's token. */
#include "comm/bootstrap/token.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/env.h"
#include "base/error.h"
#include "comm/transport/wire.h"

/* An attacker who sees a proof can guess its token offline, so short tokens are refused. */
enum { SHORTEST = 16, LONGEST = 256, RANDOM_BYTES = 16 };

static struct {
  char *given; /* value of MOONSHARD_TOKEN, not yet checked */
  char *text;  /* NULL: unknown; otherwise kept for the life of the process, which can join again */
} known;

static int keep(const char *token, const char *source) {
  size_t n = strlen(token);
  if (n < SHORTEST || n > LONGEST)
    return MS_FAIL(MS_EINVAL, "%s: a token must have %d to %d characters, not %zu; `openssl rand -hex 16` makes one",
                   source, SHORTEST, LONGEST, n);
  known.text = ms_secret_copy(token);
  return known.text ? MS_OK : MS_ENOMEM;
}

/* Regular files only: a pipe without a writer would block the rank. */
static int check_file(int fd, const char *path) {
  struct stat info;
  if (fstat(fd, &info)) return MS_FAIL(MS_EINVAL, "MOONSHARD_TOKEN_FILE=%s: %s", path, strerror(errno));
  if (!S_ISREG(info.st_mode)) return MS_FAIL(MS_EINVAL, "MOONSHARD_TOKEN_FILE=%s: not a regular file", path);
  if (info.st_mode & (S_IRWXG | S_IRWXO))
    return MS_FAIL(MS_EINVAL, "MOONSHARD_TOKEN_FILE=%s: other users can access it: chmod 600 %s", path, path);
  return MS_OK;
}

static int read_file(const char *path) {
  char text[LONGEST + 3];
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return MS_FAIL(MS_EINVAL, "MOONSHARD_TOKEN_FILE=%s: %s", path, strerror(errno));
  int rc = check_file(fd, path);
  ssize_t n = rc ? 0 : read(fd, text, sizeof text - 1);
  if (n < 0) rc = MS_FAIL(MS_EINVAL, "MOONSHARD_TOKEN_FILE=%s: %s", path, strerror(errno));
  close(fd);
  if (rc) return rc;
  text[n] = '\0';
  text[strcspn(text, "\r\n")] = '\0';
  rc = keep(text, "MOONSHARD_TOKEN_FILE");
  sodium_memzero(text, sizeof text);
  return rc;
}

int ms_token_hide(void) {
  char *given = getenv("MOONSHARD_TOKEN");
  if (!given || !*given) return MS_OK;
  char *copy = ms_secret_copy(given);
  if (!copy) return MS_ENOMEM;
  ms_secret_free(known.given);
  known.given = copy;
  memset(given, 'x', strlen(given)); /* the bytes that /proc shows */
  unsetenv("MOONSHARD_TOKEN");
  return MS_OK;
}

/* The first copy is not needed any more, whatever the result. */
static int keep_given(void) {
  int rc = keep(known.given, "MOONSHARD_TOKEN");
  ms_secret_free(known.given);
  known.given = NULL;
  return rc;
}

int ms_token_get(const char **token) {
  MS_TRY(ms_token_hide());
  if (!known.text) {
    const char *file = ms_env_string("MOONSHARD_TOKEN_FILE", NULL);
    if (known.given && file)
      return MS_FAIL(MS_EINVAL, "MOONSHARD_TOKEN and MOONSHARD_TOKEN_FILE are both set: set only one of them");
    if (known.given) MS_TRY(keep_given());
    else if (file) MS_TRY(read_file(file));
  }
  *token = known.text ? known.text : "";
  return MS_OK;
}

int ms_token_of_job(const char *launchers, const char **token) {
  MS_TRY(ms_token_get(token));
  if (!**token) *token = launchers;
  return MS_OK;
}

int ms_token_make(void) {
  const char *token;
  uint8_t random[RANDOM_BYTES];
  char text[2 * RANDOM_BYTES + 1];
  MS_TRY(ms_token_get(&token));
  if (*token) return MS_OK;
  MS_TRY(ms_secret_random(random, sizeof random));
  for (int i = 0; i < RANDOM_BYTES; i++) snprintf(text + 2 * i, 3, "%02x", random[i]);
  int rc = keep(text, "a random token");
  sodium_memzero(random, sizeof random);
  sodium_memzero(text, sizeof text);
  return rc;
}

int ms_token_check(const ms_store_place *place, const char *token) {
  if (*token || ms_store_place_is_local(place)) return MS_OK;
  return MS_FAIL(
      MS_EINVAL,
      "rendezvous at %s: other hosts can reach this place, so the ranks need a token: give each the same one in "
      "the environment variable MOONSHARD_TOKEN (`openssl rand -hex 16` makes one), or in a file with mode 600 "
      "named by MOONSHARD_TOKEN_FILE",
      place->text);
}
