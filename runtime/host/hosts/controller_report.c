/* controller_report.c - the end of a run on several hosts. Every host reports how its own ranks ended; the host where a
 * rank failed first is the one whose report counts, since the ranks of the others failed because of it. */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "host/hosts/controller.h"
#include "host/launcher/launch.h"

/* Larger for a host that knows better where the run failed. */
static int knows(const ms_controller *controller, const ms_controlled_host *host) {
  int unseen = 0;
  for (int i = 0; i < controller->n; i++) unseen += controller->hosts[i].began == MS_LINK_BEGAN_UNSEEN;
  return host->began == MS_LINK_BEGAN_UNSEEN && 2 * unseen > controller->n ? 2 * MS_LINK_BEGAN_SEEN + 1
                                                                           : 2 * host->began;
}

/* The host that failed first, before one that ended because another had failed; NULL: none failed. */
static ms_controlled_host *find_culprit(ms_controller *controller) {
  ms_controlled_host *found = NULL;
  for (int i = 0; i < controller->n; i++) {
    ms_controlled_host *host = &controller->hosts[i];
    if (!host->exit_status) continue;
    int better = found ? knows(controller, host) - knows(controller, found) : 1;
    if (better > 0 || (!better && host->over < found->over)) found = host;
  }
  return found;
}

/* 1 when another host reports the same reason: all ranks met the same bad input. */
static int is_shared(const ms_controller *controller, const ms_controlled_host *culprit) {
  for (int i = 0; i < controller->n; i++)
    if (&controller->hosts[i] != culprit && controller->hosts[i].reason &&
        !strcmp(controller->hosts[i].reason, culprit->reason))
      return 1;
  return 0;
}

static void report_failure(ms_controller *controller, const ms_controlled_host *host) {
  ms_output_buffer *err = &controller->output[1];
  if (host->exit_status == MS_STATUS_BAD_INPUT && host->reason && *host->reason && is_shared(controller, host))
    ms_output_buffer_say(err, "moonshard: %s\n", host->reason);
  else if (host->report)
    ms_output_buffer_put(err, host->report, strlen(host->report)); /* empty: its program has said why */
  else
    ms_output_buffer_say(err,
                         "moonshard: host %s: its launcher ended with exit status %d before it had started ranks\n",
                         host->name, host->exit_status);
}

/* Every distinct text once: of most requests to end, all hosts report the same. */
static void report_request(ms_controller *controller) {
  int said = 0;
  for (int i = 0; i < controller->n && controller->started; i++) {
    const char *text = controller->hosts[i].report;
    int known = !text || !*text;
    for (int k = 0; k < i && !known; k++)
      known = controller->hosts[k].report && !strcmp(controller->hosts[k].report, text);
    if (!known) ms_output_buffer_put(&controller->output[1], text, strlen(text));
    said |= !known;
  }
  if (!said)
    ms_output_buffer_say(&controller->output[1], "moonshard: %s\n",
                         controller->asked == SIGINT ? "interrupted" : "terminated");
}

void ms_controller_report(ms_controller *controller, int *exit_status) {
  ms_controlled_host *culprit = find_culprit(controller);
  *exit_status = culprit ? culprit->exit_status : 0;
  if (controller->asked && (!culprit || culprit->exit_status != MS_STATUS_FAILED_RUN || !controller->started)) {
    if (culprit || !controller->started) *exit_status = 128 + controller->asked;
    if (*exit_status) report_request(controller);
    return;
  }
  if (culprit) report_failure(controller, culprit);
}
