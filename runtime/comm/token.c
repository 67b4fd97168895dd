/* token.c - reads, makes and keeps the job's token. */
#include "comm/token.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/env.h"
#include "base/error.h"
#include "comm/store_wire.h"

/* A token can be guessed at leisure by who saw a proof made with it: short ones are refused. */
enum { SHORTEST = 16, LONGEST = 256, RANDOM_BYTES = 16 };

static struct {
  int known;
  char *given; /* what MOONSHARD_TOKEN said, as yet unchecked; kept for the life of the process */
  char text[LONGEST + 1];
} kept;

static int keep(const char *token, const char *source) {
  size_t n = strlen(token);
  if (n < SHORTEST || n > LONGEST)
    return MS_FAIL(MS_EINVAL, "%s: a token has %d to %d characters, this one %zu; `openssl rand -hex 16` makes one",
                   source, SHORTEST, LONGEST, n);
  memcpy(kept.text, token, n + 1);
  kept.known = 1;
  return MS_OK;
}

/* Regular files alone: a pipe without a writer would keep the rank waiting. */
static int read_file(const char *path) {
  char text[LONGEST + 3];
  struct stat info;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return MS_FAIL(MS_EINVAL, "MOONSHARD_TOKEN_FILE=%s: %s", path, strerror(errno));
  ssize_t n = fstat(fd, &info) ? -1 : read(fd, text, sizeof text - 1);
  int why = errno;
  close(fd);
  if (n < 0) return MS_FAIL(MS_EINVAL, "MOONSHARD_TOKEN_FILE=%s: %s", path, strerror(why));
  if (!S_ISREG(info.st_mode)) return MS_FAIL(MS_EINVAL, "MOONSHARD_TOKEN_FILE=%s: it is no regular file", path);
  if (info.st_mode & (S_IRWXG | S_IRWXO))
    return MS_FAIL(MS_EINVAL, "MOONSHARD_TOKEN_FILE=%s: other users may use it: chmod 600 %s", path, path);
  text[n] = '\0';
  text[strcspn(text, "\r\n")] = '\0';
  return keep(text, "MOONSHARD_TOKEN_FILE");
}

void ms_token_hide(void) {
  char *given = getenv("MOONSHARD_TOKEN"), *copy;
  if (!given || !*given || !(copy = ms_strdup(given))) return;
  free(kept.given);
  kept.given = copy;
  memset(given, 'x', strlen(given)); /* the bytes that /proc shows */
  unsetenv("MOONSHARD_TOKEN");
}

int ms_token_get(const char **token) {
  ms_token_hide();
  if (!kept.known) {
    const char *file = ms_env_string("MOONSHARD_TOKEN_FILE", NULL);
    if (kept.given && file)
      return MS_FAIL(MS_EINVAL, "MOONSHARD_TOKEN and MOONSHARD_TOKEN_FILE are both set: give one of them");
    if (kept.given) MS_TRY(keep(kept.given, "MOONSHARD_TOKEN"));
    else if (file) MS_TRY(read_file(file));
  }
  *token = kept.text;
  return MS_OK;
}

int ms_token_make(void) {
  const char *token;
  uint8_t random[RANDOM_BYTES];
  char text[2 * RANDOM_BYTES + 1];
  MS_TRY(ms_token_get(&token));
  if (*token) return MS_OK;
  MS_TRY(ms_wire_random(random, sizeof random));
  for (int i = 0; i < RANDOM_BYTES; i++) snprintf(text + 2 * i, 3, "%02x", random[i]);
  return keep(text, "a random token");
}

int ms_token_check(const ms_store_place *place, const char *token) {
  if (*token || ms_store_place_is_local(place)) return MS_OK;
  return MS_FAIL(
      MS_EINVAL,
      "rendezvous at %s: other hosts can come there, so the ranks must know a token: give each the same one in "
      "the environment variable MOONSHARD_TOKEN (`openssl rand -hex 16` makes one), or in a file of mode 600 "
      "that MOONSHARD_TOKEN_FILE names",
      place->text);
}
