/* report.c - the end of a run: its exit status, and one line with the rank that failed first and the reason. */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/numbers/number.h"
#include "base/text/text.h"
#include "host/launcher/launch.h"

enum { SAID_BYTES = 32768 };

/* Probable causes of a fatal signal, where its name does not explain it. */
static const struct meaning {
  int signal;
  const char *text;
} meanings[] = {
    {SIGKILL, "someone killed it, or the kernel did because memory ran out"},
    {SIGBUS,
     "a file that it had mapped was truncated during the run, which must not happen to data files; or the disk failed; "
     "or shared memory ran out"},
    {SIGSEGV, "it accessed an invalid address: a wrong ffi call in the recipe, or a bug in the engine"},
    {SIGILL, "the program was built for a different processor"},
    {SIGFPE, "an integer was divided by zero: a wrong ffi call in the recipe, or a bug in the engine"},
    {SIGPIPE, "the reader of its output has closed it"},
    {SIGXCPU, "it exceeded its limit of processor time (ulimit -t)"},
    {SIGXFSZ, "a file exceeded its size limit (ulimit -f)"},
    {SIGSYS, "a system call was denied"},
};

static void describe_signal(int number, char *text, size_t bytes) {
  const char *meaning = NULL;
  for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++)
    if (meanings[i].signal == number) meaning = meanings[i].text;
  int used = snprintf(text, bytes, "killed by signal %d (%s)%s%s", number, strsignal(number), meaning ? ": " : "",
                      meaning ? meaning : "");
  struct rlimit limit;
  int may_lack_memory = number == SIGSEGV || number == SIGABRT || number == SIGBUS;
  if (!may_lack_memory || getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY) return;
  if (used < 0 || (size_t)used >= bytes) return;
  snprintf(text + used, bytes - (size_t)used, "; or a library could not allocate memory: ulimit -v allows %llu MiB",
           (unsigned long long)limit.rlim_cur >> 20);
}

int ms_name_ranks(const ms_running *run, int running, char *text, size_t bytes) {
  char list[256] = "";
  size_t used = 0;
  int n = 0;
  for (int rank = 0; rank < run->config->ranks; rank++) {
    const ms_child *child = &run->ranks[rank];
    if (!(running ? child->running : child->ended_by_us)) continue;
    if (used < sizeof list)
      used += (size_t)snprintf(list + used, sizeof list - used, n ? ", %d" : "%d", ms_nodes_rank(run->config, rank));
    n++;
  }
  snprintf(text, bytes, "rank%s %s", n == 1 ? "" : "s", list);
  return n;
}

/* The rank that failed first. The record of the first abort is more reliable than the order in which processes
 * ended. */
static int find_culprit(const ms_running *run) {
  int blamed;
  const char *why = ms_control_abort_reason(run->view, &blamed);
  const int local = blamed - ms_nodes_rank(run->config, 0);
  if (why && local >= 0 && local < run->config->ranks && run->ranks[local].status != 0) return local;
  /* With a store, surviving ranks can learn of a death before this process does, and abort without a rank to blame. */
  for (int rank = 0; why && blamed < 0 && rank < run->config->ranks; rank++)
    if (WIFSIGNALED(run->ranks[rank].status) && !run->ranks[rank].ended_by_us) return rank;
  return run->first_failed;
}

int ms_asked_to_save(const ms_running *run) { return run->asked_to_end == SIGTERM && ms_control_saves(run->view); }

/* 1 when a rank that should have saved ended for a different reason. */
static int failed_to_save(const ms_running *run, int rank) {
  const ms_child *child = &run->ranks[rank];
  if (!ms_asked_to_save(run) || child->ended_by_us) return 0;
  if (WIFSIGNALED(child->status)) return WTERMSIG(child->status) != SIGTERM;
  return WEXITSTATUS(child->status) == MS_STATUS_BAD_INPUT || WEXITSTATUS(child->status) == MS_STATUS_FAILED_RUN;
}

/* Passes on the statuses that this program defines, and any status of an interactive run, which the user chose. Other
 * statuses would mean nothing to the caller. */
int ms_choose_status(const ms_running *run) {
  if (*run->lost) return MS_STATUS_FAILED_RUN;
  if (run->unread) return 128 + run->asked_to_end;
  if (*run->gone) return MS_STATUS_FAILED_RUN;
  if (run->first_failed < 0) return 0;
  if (run->config->joins && WIFEXITED(run->ranks[0].status)) return WEXITSTATUS(run->ranks[0].status);
  int culprit = find_culprit(run), status = run->ranks[culprit].status;
  if (run->asked_to_end) return failed_to_save(run, culprit) ? MS_STATUS_FAILED_RUN : 128 + run->asked_to_end;
  if (!WIFEXITED(status)) return MS_STATUS_FAILED_RUN;
  int given = WEXITSTATUS(status);
  if (run->config->interactive) return given;
  int ours = given == MS_STATUS_BAD_INPUT || given == MS_STATUS_INTERRUPTED || given == MS_STATUS_TERMINATED;
  return ours ? given : MS_STATUS_FAILED_RUN;
}

/* ---- the text ---- */

/* On stderr, or where --hosts collects the reports of all hosts. */
__attribute__((format(printf, 2, 3))) static void say(const ms_running *run, const char *format, ...) {
  char text[SAID_BYTES];
  va_list arguments;
  va_start(arguments, format);
  int length = ms_format_list(text, sizeof text, format, arguments);
  va_end(arguments);
  if (length < 0) return;
  if ((size_t)length >= sizeof text) length = (int)sizeof text - 1;
  if (run->config->link) ms_text_raw(run->said, text, (size_t)length);
  else ms_output_buffer_put(&run->output[1], text, (size_t)length);
}

/* " on b", or "" when all ranks have the launcher's host. */
static const char *on_host(const ms_running *run, char *text, size_t bytes) {
  text[0] = '\0';
  if (run->config->link) snprintf(text, bytes, " on %s", run->config->link->host);
  return text;
}

static void report_request(const ms_running *run) {
  char names[256];
  const char *what = run->asked_to_end == SIGINT ? "interrupted" : "terminated";
  const char *saved =
      ms_asked_to_save(run) ? ms_control_rank_reason(run->view, ms_nodes_rank(run->config, find_culprit(run))) : NULL;
  int killed = ms_name_ranks(run, 0, names, sizeof names);
  if (!killed) say(run, "moonshard: %s\n", saved ? saved : what);
  else if (run->asked_twice) say(run, "moonshard: %s twice: %s killed at once\n", what, names);
  else say(run, "moonshard: %s; %s did not end within %g s and had to be killed\n", what, names, run->grace);
  if (run->stuck) say(run, "moonshard: %s\n", run->stuck);
}

/* For a rank that reported no reason: prints where it was, and what the other ranks waited for. */
static void report_place(const ms_running *run, int rank) {
  char place[2048];
  ms_control_death(run->view, ms_nodes_rank(run->config, rank), place, sizeof place);
  if (*place) say(run, "moonshard: %s\n", place);
}

/* 1 when no other rank reports the same reason: only this rank met the bad input. */
static int failed_alone(const ms_running *run, int culprit, const char *why) {
  for (int rank = 0; rank < run->config->ranks; rank++) {
    const char *other = rank == culprit ? NULL : ms_control_rank_reason(run->view, rank);
    if (other && !strcmp(other, why)) return 0;
  }
  return 1;
}

static void report_failure(const ms_running *run, int culprit, int exit_status) {
  const ms_child *rank = &run->ranks[culprit];
  const char *why = ms_control_rank_reason(run->view, ms_nodes_rank(run->config, culprit));
  int number = ms_nodes_rank(run->config, culprit);
  char on[sizeof run->config->link->host + 8];
  on_host(run, on, sizeof on);
  if (run->config->interactive && WIFEXITED(rank->status) && !why) return;
  if (WIFSIGNALED(rank->status)) {
    char end[384];
    describe_signal(WTERMSIG(rank->status), end, sizeof end);
    say(run, "moonshard: rank %d%s died: %s%s%s\n", number, on, end, why ? "; its last error: " : "", why ? why : "");
  } else if (!why)
    say(run, "moonshard: rank %d%s ended with exit status %d without a reason: something in it called exit(%d)\n",
        number, on, WEXITSTATUS(rank->status), WEXITSTATUS(rank->status));
  else if (ms_nodes_world(run->config) == 1 || exit_status == MS_STATUS_TERMINATED ||
           (exit_status == MS_STATUS_BAD_INPUT && !failed_alone(run, culprit, why)))
    say(run, "moonshard: %s\n", why);
  else say(run, "moonshard: rank %d%s failed: %s\n", number, on, why);
  if (!why || WIFSIGNALED(rank->status)) report_place(run, culprit);
  /* Output of a crash handler or a sanitizer. */
  const ms_rank_log *output = &rank->log[1];
  if (!output->target && output->used && (!why || WIFSIGNALED(rank->status)))
    say(run, "moonshard: the end of rank %d's stderr:\n%.*s", number, (int)output->used, output->text);
}

/* Ends the progress line that a killed rank has left open. */
static void end_open_line(const ms_running *run) {
  if (WIFSIGNALED(run->ranks[0].status) && !run->config->log_all && isatty(STDOUT_FILENO))
    ms_output_buffer_put(&run->output[0], "\n", 1);
}

/* See launcher/link.h. */
static int how_it_began(const ms_running *run) {
  int blamed, lost = ms_control_lost(run->view);
  const char *why = ms_control_abort_reason(run->view, &blamed);
  const int local = blamed - ms_nodes_rank(run->config, 0);
  const int seen = lost > 1 ? MS_LINK_BEGAN_UNSEEN : MS_LINK_BEGAN_SEEN;
  const int first = find_culprit(run);
  const ms_child *culprit = &run->ranks[first];
  if (*run->lost) return MS_LINK_BEGAN_HERE;
  /* The status that the user chose for all ranks: nothing failed. */
  int chosen = run->config->interactive && WIFEXITED(culprit->status) &&
               !ms_control_rank_reason(run->view, ms_nodes_rank(run->config, first));
  if (chosen) return MS_LINK_BEGAN_ELSEWHERE;
  if (why && local >= 0 && local < run->config->ranks) return lost ? seen : MS_LINK_BEGAN_HERE;
  if ((WIFSIGNALED(culprit->status) || !why) && !culprit->ended_by_us) return MS_LINK_BEGAN_HERE;
  /* The store or another host said why, without a rank of this one. */
  return why && blamed < 0 ? seen : MS_LINK_BEGAN_ELSEWHERE;
}

static void print_report(const ms_running *run, int exit_status) {
  end_open_line(run);
  if (*run->lost) {
    say(run, "moonshard: %s\n", run->lost);
    return;
  }
  if (run->unread) {
    say(run, "moonshard: " MS_NOT_ALL_READ "\n");
    return;
  }
  if (*run->gone) {
    say(run, "moonshard: %s\n", run->gone);
    return;
  }
  int culprit = find_culprit(run);
  if (run->config->joins && WIFEXITED(run->ranks[culprit].status)) return; /* it has reported the reason itself */
  if (run->asked_to_end && !failed_to_save(run, culprit)) report_request(run);
  else report_failure(run, culprit, exit_status);
}

void ms_report(const ms_running *run, int exit_status) {
  ms_text said = {0};
  ms_running with = *run;
  with.said = &said;
  if (exit_status) print_report(&with, exit_status);
  if (run->config->link) {
    int began = exit_status && run->first_failed >= 0 ? how_it_began(run) : MS_LINK_BEGAN_ELSEWHERE;
    int culprit = exit_status ? find_culprit(run) : -1;
    const char *why = culprit < 0 ? NULL : ms_control_rank_reason(run->view, ms_nodes_rank(run->config, culprit));
    ms_link_report(run->config->link, began, why ? why : "", said.data ? said.data : "");
  }
  ms_text_free(&said);
}
