/* controller_input.c - a prompt over several hosts: what is typed here, or comes through a pipe, reaches rank 0, which
 * is on the first host.
 *
 * Lines are edited there, in a pseudo-terminal of rank 0, and keys are passed on as they come, like ssh does with a
 * terminal. So the prompt is the same as on one host: completion asks rank 0's variables, the history is one file, and
 * a line that reads standard input, or a program that it starts, gets what is typed. The price is a round trip for each
 * key.
 *
 * Ctrl-C alone stays a signal to this process, and reaches all ranks of all hosts as one; keys for other signals
 * (Ctrl-Z, Ctrl-\) do nothing, since a controller that stops, or ends without the terminal's old modes, is no help.
 * Bytes that rank 0 has not read do not pile up: the host says how many it has passed on, and more are read only then.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/hosts/controller.h"

/* ---- what there is ---- */

static int is_terminal(void) { return isatty(STDIN_FILENO) && isatty(STDOUT_FILENO); }

/* 1 when standard output and standard error are the same file: then the order of their lines counts. */
static int is_one_file(void) {
  struct stat out, err;
  return !fstat(STDOUT_FILENO, &out) && !fstat(STDERR_FILENO, &err) && out.st_dev == err.st_dev &&
         out.st_ino == err.st_ino;
}

const char *ms_controller_streams(void) {
  if (is_terminal()) return is_one_file() ? "terminal together" : "terminal apart";
  return is_one_file() ? "pipe together" : "pipe apart";
}

/* ---- the terminal ---- */

/* All bytes pass unchanged, but Ctrl-C is still a signal, and the terminal itself stops at Ctrl-S. */
static void make_raw(ms_controller_input *input) {
  struct termios raw;
  if (!is_terminal() || tcgetattr(STDIN_FILENO, &input->before)) return;
  raw = input->before;
  cfmakeraw(&raw);
  raw.c_iflag |= input->before.c_iflag & (tcflag_t)(IXON | IXANY);
  raw.c_lflag |= ISIG;
  raw.c_cc[VSUSP] = raw.c_cc[VQUIT] = _POSIX_VDISABLE;
  input->raw = !tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
}

void ms_controller_input_resize(ms_controller *controller) {
  struct winsize size;
  char text[32];
  if (!controller->interactive || !is_terminal() || ioctl(STDIN_FILENO, TIOCGWINSZ, &size)) return;
  int n = snprintf(text, sizeof text, "%d %d", size.ws_row, size.ws_col);
  ms_frame_put(&controller->hosts[0].to, MS_FRAME_SIZE, text, (size_t)n);
}

/* ---- input ---- */

void ms_controller_input_begin(ms_controller *controller) {
  if (!controller->interactive) return;
  controller->input.open = 1;
  ms_controller_input_resize(controller);
  make_raw(&controller->input);
}

int ms_controller_input_fd(const ms_controller *controller) {
  const ms_controller_input *input = &controller->input;
  return input->open && input->ahead + MS_FRAME_OUTPUT <= MS_FRAME_INPUT_AHEAD ? STDIN_FILENO : -1;
}

void ms_controller_input_pass(ms_controller *controller) {
  char bytes[MS_FRAME_OUTPUT];
  struct pollfd ready = {.fd = ms_controller_input_fd(controller), .events = POLLIN};
  if (ready.fd < 0 || poll(&ready, 1, 0) <= 0) return;
  ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (n <= 0) controller->input.open = n = 0;
  controller->input.ahead += n;
  ms_frame_put(&controller->hosts[0].to, MS_FRAME_INPUT, bytes, (size_t)n);
}

void ms_controller_input_taken(ms_controller *controller, const char *bytes) {
  controller->input.ahead -= strtoll(bytes, NULL, 10);
  if (controller->input.ahead < 0) controller->input.ahead = 0;
}

void ms_controller_input_end(ms_controller *controller) {
  ms_controller_input *input = &controller->input;
  input->open = 0;
  if (input->raw) tcsetattr(STDIN_FILENO, TCSADRAIN, &input->before);
  input->raw = 0;
}
