/* cublaslt_cache.c - stores algorithms on disk. A text file contains the key, the algorithm's 64 bytes and a checksum:
 *
 *   moonshard cublaslt 1
 *   cublaslt 130100 gpu "NVIDIA H200" 9.0 132 ...
 *   algo 0000000000000017 ... (eight numbers)
 *   check 5f2b...
 *
 * A complete draft is linked to its final name, which fails if the name exists: readers never see partial files, and
 * the first writer wins. A file is used only if it equals, byte for byte, what would be written for its content.
 */
#include "kernels/cuda/matmul/cublaslt_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/env.h"
#include "base/text/hash.h"

enum { FILE_BYTES = 1536, FOLDER_BYTES = 3800 };

/* The cache's folder. Returns 0 if neither XDG_CACHE_HOME nor HOME gives one. */
static int folder_of(char folder[FOLDER_BYTES]) {
  const char *cache = ms_env_string("XDG_CACHE_HOME", NULL), *home = ms_env_string("HOME", NULL);
  if (!cache && !home) return 0;
  const int n = snprintf(folder, FOLDER_BYTES, "%s%s/moonshard/cublaslt", cache ? cache : home, cache ? "" : "/.cache");
  return n < FOLDER_BYTES;
}

static int path_of(const ms_lt_key *key, char path[4096]) {
  char folder[FOLDER_BYTES];
  if (!folder_of(folder)) return 0;
  snprintf(path, 4096, "%s/%016" PRIx64, folder, ms_hash_string(MS_HASH_INIT, key->text));
  return 1;
}

static int make_folders(char *path) {
  for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    const int made = !mkdir(path, 0700) || errno == EEXIST;
    *slash = '/';
    if (!made) return 0;
  }
  return !mkdir(path, 0700) || errno == EEXIST;
}

/* Writes the file's text and returns its length. */
static int compose(const ms_lt_key *key, const ms_lt_algo *algo, char text[FILE_BYTES]) {
  int n = snprintf(text, FILE_BYTES, "moonshard cublaslt 1\n%s\nalgo", key->text);
  for (int i = 0; i < 8; i++) n += snprintf(text + n, FILE_BYTES - (size_t)n, " %016" PRIx64, algo->data[i]);
  const uint64_t check = ms_hash_bytes(MS_HASH_INIT, text, (size_t)n);
  return n + snprintf(text + n, FILE_BYTES - (size_t)n, "\ncheck %016" PRIx64 "\n", check);
}

static int read_file(const char *path, char text[FILE_BYTES]) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return -1;
  const ssize_t n = read(fd, text, FILE_BYTES - 1);
  close(fd);
  if (n >= 0) text[n] = '\0';
  return (int)n;
}

/* Reads the eight numbers after "algo"; recall_from compares the rest as a whole. */
static int parse(const char *text, ms_lt_algo *algo) {
  const char *at = strstr(text, "\nalgo ");
  if (!at) return 0;
  at += strlen("\nalgo ");
  for (int i = 0; i < 8; i++) {
    char *end;
    algo->data[i] = strtoull(at, &end, 16);
    if (end == at) return 0;
    at = end;
  }
  return 1;
}

static int recall_from(const char *path, const ms_lt_key *key, ms_lt_algo *algo) {
  char text[FILE_BYTES], expected[FILE_BYTES];
  ms_lt_algo found;
  const int n = read_file(path, text);
  if (n <= 0 || !parse(text, &found)) return 0;
  if (compose(key, &found, expected) != n || memcmp(text, expected, (size_t)n) != 0) return 0;
  *algo = found;
  return 1;
}

int ms_lt_recall(const ms_lt_key *key, ms_lt_algo *algo) {
  char path[4096];
  return path_of(key, path) && recall_from(path, key, algo);
}

int ms_lt_draft_open(const ms_lt_key *key, ms_lt_draft *draft) {
  char folder[FOLDER_BYTES];
  if (!folder_of(folder) || !make_folders(folder)) return 0;
  path_of(key, draft->final);
  snprintf(draft->path, sizeof draft->path, "%s/draft.XXXXXX", folder);
  draft->fd = mkostemp(draft->path, O_CLOEXEC);
  return draft->fd >= 0;
}

void ms_lt_discard(ms_lt_draft *draft) {
  close(draft->fd);
  unlink(draft->path);
}

static int write_draft(const ms_lt_key *key, const ms_lt_algo *algo, const ms_lt_draft *draft) {
  char text[FILE_BYTES];
  const int n = compose(key, algo, text);
  return write(draft->fd, text, (size_t)n) == n;
}

int ms_lt_keep(const ms_lt_key *key, ms_lt_draft *draft, ms_lt_algo *algo) {
  int kept = write_draft(key, algo, draft);
  if (kept && link(draft->path, draft->final)) {
    /* Another process was first: use its file, or replace it if it is unusable. */
    kept = errno == EEXIST && (recall_from(draft->final, key, algo) || !rename(draft->path, draft->final));
  }
  ms_lt_discard(draft);
  return kept;
}
