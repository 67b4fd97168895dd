/* remote_launcher.c - starts the launcher of a host: its streams, its connection, its arguments. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/transport/wire.h"
#include "host/hosts/remote.h"
#include "host/launcher/launch.h"

enum { MAX_ARGUMENTS = 4096 };

static _Noreturn void become_launcher(ms_remote *remote, const int *stream, int link, const char *place, pid_t parent) {
  char *arguments[MAX_ARGUMENTS] = {"moonshard"}, number[16];
  int n = 1;
  const char *at = remote->fields, *end = at + remote->fields_bytes;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(MS_STATUS_FAILED_RUN);
  while (at < end && n < MAX_ARGUMENTS - 3) arguments[n++] = (char *)ms_frame_field(&at, end);
  if (*place) {
    arguments[n++] = "--rendezvous";
    arguments[n++] = (char *)place;
  }
  for (int i = 0; i < 3; i++) dup2(stream[i], i);
  fcntl(link, F_SETFD, 0);
  snprintf(number, sizeof number, "%d", link);
  setenv("MOONSHARD_HOST_LINK", number, 1);
  signal(SIGPIPE, SIG_DFL);
  sigprocmask(SIG_SETMASK, &remote->old_mask, NULL);
  execv("/proc/self/exe", arguments);
  fprintf(stderr, "moonshard: host %s: cannot start the launcher: /proc/self/exe: %s\n", ms_remote_host(remote),
          strerror(errno));
  _exit(MS_STATUS_FAILED_RUN);
}

/* The first message of the link; the socket's buffer holds it until the launcher reads it. */
static int pass_token_on(ms_remote *remote) {
  char message[1024];
  size_t head = strlen(remote->head) + 1, token = strlen(remote->token) + 1;
  int fits = head + token <= sizeof message;
  if (fits) {
    memcpy(message, remote->head, head);
    memcpy(message + head, remote->token, token);
    fits = send(remote->link, message, head + token, MSG_NOSIGNAL) >= 0;
    sodium_memzero(message, sizeof message);
  }
  ms_secret_free(remote->token);
  remote->token = NULL;
  return fits ? MS_OK : MS_FAIL(MS_EIO, "cannot pass the token to the launcher");
}

static int open_pipe(int *read_end, int *write_end) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC)) return MS_FAIL(MS_EIO, "cannot start the launcher: pipe: %s", strerror(errno));
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  *read_end = ends[0];
  *write_end = ends[1];
  return MS_OK;
}

/* stream: the launcher's ends of its standard streams. */
static int open_streams(ms_remote *remote, int stream[3]) {
  MS_TRY(ms_remote_input_open(&remote->input, stream, &remote->stream[0]));
  if (stream[1] < 0) MS_TRY(open_pipe(&remote->stream[0], &stream[1]));
  if (!remote->input.together) return open_pipe(&remote->stream[1], &stream[2]);
  stream[2] = fcntl(stream[1], F_DUPFD_CLOEXEC, 0);
  return stream[2] >= 0 ? MS_OK : MS_FAIL(MS_EIO, "cannot start the launcher: %s", strerror(errno));
}

int ms_remote_start_launcher(ms_remote *remote, const char *place) {
  int rc, stream[3] = {-1, -1, -1}, link[2] = {-1, -1};
  pid_t parent = getpid();
  MS_GOTO(open_streams(remote, stream));
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, link))
    MS_GOTO(MS_FAIL(MS_EIO, "cannot start the launcher: socketpair: %s", strerror(errno)));
  remote->link = link[0];
  MS_GOTO(pass_token_on(remote));
  pid_t pid = fork();
  if (pid == 0) become_launcher(remote, stream, link[1], place, parent);
  if (pid < 0) MS_GOTO(MS_FAIL(MS_EIO, "cannot start the launcher: fork: %s", strerror(errno)));
  remote->pid = pid;
fail:
  for (int i = 0; i < 3; i++)
    if (stream[i] >= 0) close(stream[i]);
  if (link[1] >= 0) close(link[1]);
  return rc;
}
