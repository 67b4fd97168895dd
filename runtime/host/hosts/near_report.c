/* near_report.c - the end of a run on several hosts. Every host reports how its own ranks ended; the host where a rank
 * failed first is the one whose report counts, since the ranks of the others failed because of it. */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "host/hosts/near.h"
#include "host/launcher/launch.h"

/* The host that failed first, before one that ended because another had failed; NULL: none failed. */
static ms_near_host *find_culprit(ms_near *near) {
  ms_near_host *found = NULL;
  for (int i = 0; i < near->n; i++) {
    ms_near_host *host = &near->hosts[i];
    if (!host->exit_status) continue;
    if (!found || host->own > found->own || (host->own == found->own && host->over < found->over)) found = host;
  }
  return found;
}

/* 1 when another host reports the same reason: all ranks met the same bad input. */
static int is_shared(const ms_near *near, const ms_near_host *culprit) {
  for (int i = 0; i < near->n; i++)
    if (&near->hosts[i] != culprit && near->hosts[i].reason && !strcmp(near->hosts[i].reason, culprit->reason))
      return 1;
  return 0;
}

static void report_failure(ms_near *near, const ms_near_host *host) {
  ms_outlet *err = &near->outlet[1];
  if (host->exit_status == MS_STATUS_BAD_INPUT && host->reason && *host->reason && is_shared(near, host))
    ms_outlet_say(err, "moonshard: %s\n", host->reason);
  else if (host->report && *host->report) ms_outlet_put(err, host->report, strlen(host->report));
  else
    ms_outlet_say(err, "moonshard: host %s: its launcher ended with exit status %d before it had started ranks\n",
                  host->name, host->exit_status);
}

/* Every distinct text once: of most requests to end, all hosts report the same. */
static void report_request(ms_near *near) {
  int said = 0;
  for (int i = 0; i < near->n && near->started; i++) {
    const char *text = near->hosts[i].report;
    int known = !text || !*text;
    for (int k = 0; k < i && !known; k++) known = near->hosts[k].report && !strcmp(near->hosts[k].report, text);
    if (!known) ms_outlet_put(&near->outlet[1], text, strlen(text));
    said |= !known;
  }
  if (!said) ms_outlet_say(&near->outlet[1], "moonshard: %s\n", near->asked == SIGINT ? "interrupted" : "terminated");
}

void ms_near_report(ms_near *near, int *exit_status) {
  ms_near_host *culprit = find_culprit(near);
  *exit_status = culprit ? culprit->exit_status : 0;
  if (near->asked && (!culprit || culprit->exit_status != MS_STATUS_FAILED_RUN || !near->started)) {
    if (culprit || !near->started) *exit_status = 128 + near->asked;
    if (*exit_status) report_request(near);
    return;
  }
  if (culprit) report_failure(near, culprit);
}
