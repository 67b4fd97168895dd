/* controller_greeting.c - the first words of a host: finds the greeting of moonshard in what the agent prints, and says
 * what a user can do about a host that does not send it.
 */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base/text/text.h"
#include "host/hosts/controller.h"
#include "moonshard.h"

/* Exit statuses of a remote shell, and of ssh. */
enum { CANNOT_RUN = 126, NOT_FOUND = 127, SSH_FAILED = 255 };
/* Bytes that a login shell may print before, and of the version in a greeting. */
enum { STRAY_BYTES = 1 << 16, MAX_VERSION = 64 };

static void pass_stray(ms_controlled_host *host, const char *text, size_t n) {
  for (size_t piece; n; text += piece, n -= piece) {
    piece = n < MS_FRAME_OUTPUT ? n : MS_FRAME_OUTPUT;
    ms_rank_log_take(&host->log[2], text, piece);
  }
}

int ms_controller_greet(ms_controlled_host *host, char *how, size_t bytes) {
  static const char magic[] = MS_FRAME_MAGIC;
  const char *text = host->from.text.data;
  size_t n = host->from.text.length;
  const char *found = n ? memmem(text, n, magic, sizeof magic - 1) : NULL;
  if (!found) {
    snprintf(how, bytes, "what the agent printed is not from moonshard");
    return n > STRAY_BYTES ? -1 : 0;
  }
  char own[MAX_VERSION];
  snprintf(own, sizeof own, MS_FRAME_PROTOCOL " %s", ms_version());
  const char *version = found + sizeof magic - 1;
  size_t rest = n - (size_t)(version - text);
  const char *end = memchr(version, '\n', rest);
  if (!end && rest < MAX_VERSION) return 0;
  int length = end && end - version < MAX_VERSION ? (int)(end - version) : MAX_VERSION;
  if (length != (int)strlen(own) || memcmp(version, own, (size_t)length)) {
    snprintf(how, bytes,
             "the moonshard there is another version (it says %.*s, this one %s): install the same one on all hosts, "
             "or name its path with --remote-moonshard",
             length, version, own);
    return -1;
  }
  pass_stray(host, text, (size_t)(found - text));
  host->from.begin = (size_t)(end + 1 - text);
  host->greeted = 1;
  return 1;
}

void ms_controller_advise(const ms_controlled_host *host, ms_text *text) {
  const char *const *word = host->command;
  int n = 0, status = WIFEXITED(host->status) ? WEXITSTATUS(host->status) : 0;
  while (word[n]) n++;
  if (n == 2 || status == CANNOT_RUN || status == NOT_FOUND) { /* without an agent, or an agent that got through */
    ms_text_append(text, "; moonshard is expected there at %s: install it, or give its path with --remote-moonshard",
                   word[n - 2]);
  } else if (status == SSH_FAILED || host->pid) {
    ms_text_append(text, "; the agent must reach the host without a password or another question: try `");
    for (int i = 0; i < n - 2; i++) ms_text_append(text, "%s ", word[i]);
    ms_text_append(text, "true`");
  } else ms_text_append(text, "; is what is at %s there moonshard, of this version (--remote-moonshard)?", word[n - 2]);
}
