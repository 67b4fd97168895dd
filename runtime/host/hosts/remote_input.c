/* remote_input.c - passes input on to rank 0, through a pipe or a pseudo-terminal of its own.
 *
 * The pseudo-terminal is no process's controlling terminal: Ctrl-C comes as a SIGNAL to every host, not as a byte.
 */
#include "host/hosts/remote_input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "base/error.h"
#include "host/launcher/pseudo_terminal.h"

void ms_remote_input_read_kind(ms_remote_input *input, const char *text) {
  if (!strncmp(text, "pipe", 4)) input->kind = MS_INPUT_PIPE;
  else if (!strncmp(text, "terminal", 8)) input->kind = MS_INPUT_TERMINAL;
  input->together = strstr(text, " together") != NULL;
}

/* ---- opening ---- */

static int open_terminal(ms_remote_input *input, int stream[2], int *output) {
  struct termios modes;
  int ends[2];
  if (ms_pseudo_terminal_open(ends)) return MS_FAIL(MS_EIO, "cannot open a terminal for rank 0: %s", strerror(errno));
  input->fd = ends[0];
  stream[0] = ends[1];
  stream[1] = fcntl(ends[1], F_DUPFD_CLOEXEC, 0);
  *output = fcntl(ends[0], F_DUPFD_CLOEXEC, 0);
  if (stream[1] < 0 || *output < 0) return MS_FAIL(MS_EIO, "cannot open a terminal for rank 0: %s", strerror(errno));
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  if (!tcgetattr(ends[1], &modes)) {
    modes.c_iflag |= IUTF8;
    tcsetattr(ends[1], TCSANOW, &modes);
  }
  if (input->size.ws_row) ioctl(ends[0], TIOCSWINSZ, &input->size);
  return MS_OK;
}

int ms_remote_input_open(ms_remote_input *input, int stream[2], int *output) {
  int ends[2];
  if (input->kind == MS_INPUT_TERMINAL) return open_terminal(input, stream, output);
  if (input->kind == MS_INPUT_NONE) {
    stream[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return stream[0] >= 0 ? MS_OK : MS_FAIL(MS_EIO, "/dev/null: %s", strerror(errno));
  }
  if (pipe2(ends, O_CLOEXEC)) return MS_FAIL(MS_EIO, "cannot open a pipe for rank 0: %s", strerror(errno));
  stream[0] = ends[0];
  input->fd = ends[1];
  fcntl(input->fd, F_SETFL, O_NONBLOCK);
  return MS_OK;
}

void ms_remote_input_close(ms_remote_input *input) {
  if (input->fd >= 0) close(input->fd);
  input->fd = -1;
  input->begin = input->used = 0;
}

/* ---- input ---- */

int ms_remote_input_waits(const ms_remote_input *input) { return input->begin < input->used ? input->fd : -1; }

void ms_remote_input_take(ms_remote_input *input, const char *bytes, size_t n) {
  if (!n) input->ended = 1;
  memmove(input->text, input->text + input->begin, input->used - input->begin);
  input->used -= input->begin;
  input->begin = 0;
  if (n > sizeof input->text - input->used) n = sizeof input->text - input->used;
  memcpy(input->text + input->used, bytes, n);
  input->used += n;
}

static void say_taken(ms_frame_queue *out, size_t n) {
  char text[24];
  int length = snprintf(text, sizeof text, "%zu", n);
  if (n) ms_frame_put(out, MS_FRAME_TAKEN, text, (size_t)length);
}

int ms_remote_input_flush(ms_remote_input *input, ms_frame_queue *out) {
  size_t began = input->begin;
  while (input->fd >= 0 && input->begin < input->used) {
    ssize_t n = write(input->fd, input->text + input->begin, input->used - input->begin);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) { /* rank 0 has ended, or has closed it */
      ms_remote_input_close(input);
      return 0;
    }
    input->begin += (size_t)n;
  }
  say_taken(out, input->begin - began);
  if (input->fd < 0 || input->begin < input->used || !input->ended) return 0;
  ms_remote_input_close(input);
  return input->kind == MS_INPUT_TERMINAL;
}

/* ---- the terminal ---- */

void ms_remote_input_resize(ms_remote_input *input, const char *text) {
  if (sscanf(text, "%hu %hu", &input->size.ws_row, &input->size.ws_col) != 2) return;
  if (input->kind == MS_INPUT_TERMINAL && input->fd >= 0) ioctl(input->fd, TIOCSWINSZ, &input->size);
}

void ms_remote_input_interrupt(ms_remote_input *input, ms_frame_queue *out) {
  struct termios modes;
  if (input->kind != MS_INPUT_TERMINAL || input->fd < 0) return;
  say_taken(out, input->used - input->begin);
  input->begin = input->used = 0;
  int terminal = ioctl(input->fd, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (terminal < 0) return;
  tcflush(terminal, TCIFLUSH);
  const tcflag_t echo = ECHO | ECHOCTL;
  if (!tcgetattr(terminal, &modes) && (modes.c_lflag & echo) == echo) ms_frame_put(out, MS_FRAME_OUT, "^C", 2);
  close(terminal);
}
