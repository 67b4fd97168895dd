/* repl_input.c - waits for bytes of standard input without a deadline, and notices Ctrl-C and the death of another rank
 * within a tenth of a second.
 *
 * Bytes are read one at a time, so that in a pipe the text after a line remains for a line that reads standard input.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "host/repl.h"

enum { LOOK_MILLISECONDS = 100, LONGEST_LINE = 1 << 20 };

enum ms_repl_got ms_repl_input_byte(const ms_world *world, char *byte) {
  for (;;) {
    if (ms_repl_stop_take()) return MS_REPL_INTERRUPTED;
    if (ms_repl_stop_ended()) {
      MS_FAIL(MS_EINTERRUPT, "terminated by SIGTERM while it waited for a line");
      return MS_REPL_LOST;
    }
    if (ms_world_check(world)) return MS_REPL_LOST;
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    if (poll(&input, 1, LOOK_MILLISECONDS) <= 0) continue;
    ssize_t got = read(STDIN_FILENO, byte, 1);
    if (got == 1) return MS_REPL_GOT;
    if (got == 0 || (errno != EINTR && errno != EAGAIN)) return MS_REPL_END;
  }
}

enum ms_repl_got ms_repl_input_line(const ms_world *world, char **line) {
  char *text = NULL;
  int used = 0, capacity = 0;
  enum ms_repl_got got;
  for (;;) {
    char byte = 0;
    got = ms_repl_input_byte(world, &byte);
    if (got == MS_REPL_END && used) got = MS_REPL_GOT, byte = '\n'; /* a last line without a newline */
    if (got != MS_REPL_GOT) break;
    if (used >= LONGEST_LINE || ms_grow((void **)&text, &capacity, used + 1, 1)) {
      MS_FAIL(MS_EINVAL, "a line of input is longer than %d bytes", LONGEST_LINE);
      got = MS_REPL_LOST;
      break;
    }
    text[used++] = byte == '\n' ? '\0' : byte;
    if (byte != '\n') continue;
    *line = text;
    return MS_REPL_GOT;
  }
  free(text);
  return got;
}
