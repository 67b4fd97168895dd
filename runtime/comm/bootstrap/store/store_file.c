/* store_file.c - writes the rendezvous file in a single call, and checks it thoroughly when reading. */
#include "comm/bootstrap/store/store_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/bootstrap/host_id.h"

enum { FILE_BYTES = 2048, HEX_ID = 2 * MS_HOST_ID + 1 };
static const char HEAD[] = "moonshard rendezvous ";
static const char END[] = "\nend\n";
/* Seconds after which an incomplete file stays incomplete: it is written in one call. */
static const double PARTIAL_SECONDS = 1.0;
static const double LOOK_AGAIN = 0.01;

typedef struct announcement {
  int version, size, pid;
  uint64_t start;
  char job[MS_STORE_JOB], host[HEX_ID], host_name[64], socket[256];
} announcement;

static int this_host(char text[HEX_ID]) {
  uint8_t id[MS_HOST_ID];
  MS_TRY(ms_host_id(id));
  for (int i = 0; i < MS_HOST_ID; i++) snprintf(text + 2 * i, 3, "%02x", id[i]);
  return MS_OK;
}

/* ---- reading ---- */

/* 1 when the text is complete and well-formed. */
static int parse(const char *text, announcement *a) {
  static const char format[] =
      "moonshard rendezvous %d\njob %127[^\n]\nranks %d\nhost %32[0-9a-f] %63[^\n]\nprocess %d %" SCNu64
      "\nsocket %255[^\n]\nend%n";
  int end = 0;
  int found =
      sscanf(text, format, &a->version, a->job, &a->size, a->host, a->host_name, &a->pid, &a->start, a->socket, &end);
  return found == 8 && !strcmp(text + end, "\n");
}

/* *bytes -1: there is no file. */
static int read_whole(const char *path, char text[FILE_BYTES], ssize_t *bytes) {
  *bytes = -1;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && errno == ENOENT) return MS_OK;
  if (fd < 0) return MS_FAIL(MS_EIO, "rendezvous file %s: %s", path, strerror(errno));
  *bytes = read(fd, text, FILE_BYTES - 1);
  int why = errno;
  close(fd);
  if (*bytes < 0) return MS_FAIL(MS_EIO, "rendezvous file %s: %s", path, strerror(why));
  text[*bytes] = '\0';
  return MS_OK;
}

static int is_complete(const char *text, size_t bytes) {
  size_t end = strlen(END);
  return bytes > end && strlen(text) == bytes && !strcmp(text + bytes - end, END);
}

static int read_version(const char *text) {
  int version = 0;
  if (!strncmp(text, HEAD, strlen(HEAD))) sscanf(text + strlen(HEAD), "%d", &version);
  return version;
}

static int is_alive(const announcement *a) { return a->start && ms_process_start(a->pid) == a->start; }

static int check(const char *path, const announcement *a, const char *job, int size) {
  char host[HEX_ID];
  MS_TRY(this_host(host));
  if (strcmp(a->job, job))
    return MS_FAIL(MS_EMISMATCH, "rendezvous file %s: it belongs to job \"%s\", but this process to job \"%s\"", path,
                   a->job, job);
  if (strcmp(a->host, host))
    return MS_FAIL(
        MS_EMISMATCH,
        "rendezvous file %s: rank 0 is on another host (%s), or that host has restarted since; a file can only "
        "connect the ranks of one host: use tcp://host:port between hosts, or remove an old file",
        path, a->host_name);
  if (!is_alive(a))
    return MS_FAIL(MS_EMISMATCH, "rendezvous file %s: it is stale: process %d, which wrote it, has ended; remove it",
                   path, a->pid);
  if (a->size != size)
    return MS_FAIL(MS_EMISMATCH, "rendezvous file %s: rank 0 has %d ranks, but this process %d", path, a->size, size);
  return MS_OK;
}

static int take(const char *path, const char *text, size_t bytes, const char *job, int size, ms_store_place *socket) {
  announcement a;
  int version = read_version(text);
  if (is_complete(text, bytes) && version && version != MS_STORE_VERSION)
    return MS_FAIL(MS_EMISMATCH, "rendezvous file %s: it has protocol version %d, but this build uses %d", path,
                   version, MS_STORE_VERSION);
  if (!is_complete(text, bytes) || !parse(text, &a))
    return MS_FAIL(
        MS_EMISMATCH,
        "rendezvous file %s: it is not a complete announcement of rank 0 (%zu bytes): either a killed run left "
        "it, or it is another file; remove it or use another name",
        path, bytes);
  MS_TRY(check(path, &a, job, size));
  *socket = (ms_store_place){.kind = MS_STORE_LOCAL};
  memcpy(socket->name, a.socket, sizeof a.socket);
  snprintf(socket->text, sizeof socket->text, "file://%s", path);
  return MS_OK;
}

int ms_store_file_read(const char *path, const char *job, int size, double deadline, ms_store_place *socket) {
  char text[FILE_BYTES];
  ssize_t bytes = -1;
  double partial_since = 0;
  for (;;) {
    MS_TRY(read_whole(path, text, &bytes));
    double now = ms_clock();
    if (bytes >= 0 && is_complete(text, (size_t)bytes)) break;
    if (bytes >= 0 && partial_since == 0) partial_since = now;
    if (bytes < 0) partial_since = 0;
    if (bytes >= 0 && now > fmin(deadline, partial_since + PARTIAL_SECONDS)) break;
    if (now > deadline) return MS_FAIL(MS_ETIMEOUT, "rendezvous file %s: rank 0 has not written it in time", path);
    if (ms_interrupted()) return MS_FAIL(MS_EINTERRUPT, "interrupted");
    usleep((useconds_t)(1e6 * LOOK_AGAIN));
  }
  return take(path, text, (size_t)bytes, job, size, socket);
}

/* ---- writing ---- */

/* Describes an existing file: another run's, or one left by a killed run. */
static int refuse_existing(const char *path) {
  char text[FILE_BYTES], host[HEX_ID];
  ssize_t bytes = -1;
  announcement a;
  MS_TRY(read_whole(path, text, &bytes));
  MS_TRY(this_host(host));
  if (bytes >= 0 && is_complete(text, (size_t)bytes) && parse(text, &a) && !strcmp(a.host, host) && is_alive(&a))
    return MS_FAIL(MS_EIO, "rendezvous file %s: another run (job \"%s\", process %d) is using it now; use another name",
                   path, a.job, a.pid);
  return MS_FAIL(MS_EIO,
                 "rendezvous file %s: it already exists: either a killed run left it, or it is another file; "
                 "remove it or use another name",
                 path);
}

int ms_store_file_write(const char *path, const char *job, int size, const ms_store_place *socket) {
  char text[FILE_BYTES], host[HEX_ID], name[64];
  MS_TRY(this_host(host));
  ms_host_name(name, sizeof name);
  int n = snprintf(text, sizeof text, "%s%d\njob %s\nranks %d\nhost %s %s\nprocess %d %" PRIu64 "\nsocket %s%s", HEAD,
                   MS_STORE_VERSION, job, size, host, name, (int)getpid(), ms_process_start((int)getpid()),
                   socket->name, END);
  int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0 && errno == EEXIST) return refuse_existing(path);
  if (fd < 0) return MS_FAIL(MS_EIO, "rendezvous file %s: rank 0 cannot create it: %s", path, strerror(errno));
  int wrong = write(fd, text, (size_t)n) == n ? 0 : errno ? errno : ENOSPC;
  if (close(fd) && !wrong) wrong = errno;
  if (!wrong) return MS_OK;
  unlink(path);
  return MS_FAIL(MS_EIO, "rendezvous file %s: rank 0 cannot write it: %s", path, strerror(wrong));
}
