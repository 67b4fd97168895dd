/* status.c - reads the place of one rank from its flight recorder and from /proc. */
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "comm/diagnose/report.h"

static double seconds_since(uint64_t now, uint64_t then) {
  return then && now > then ? 1e-9 * (double)(now - then) : 0;
}

static uint64_t load(const _Atomic uint64_t *word) { return atomic_load_explicit(word, memory_order_relaxed); }

static void copy_text(char *to, const ms_recorder *recorder, uint32_t number) {
  snprintf(to, MS_RECORDER_TEXT_BYTES, "%.*s", MS_RECORDER_TEXT_BYTES - 1, ms_recorder_text(recorder, number));
}

int ms_report_read(const ms_recorder *recorder, const ms_recorder_record *record, ms_rank_op *op) {
  uint64_t sequence = atomic_load_explicit(&record->sequence, memory_order_acquire);
  uint32_t kind = atomic_load_explicit(&record->kind, memory_order_relaxed);
  if (!sequence) return 0;
  op->kind = ms_coll_kind_name((int)kind);
  op->sequence = sequence;
  op->bytes = load(&record->bytes);
  op->step = atomic_load_explicit(&record->step, memory_order_relaxed);
  copy_text(op->label, recorder, atomic_load_explicit(&record->label, memory_order_relaxed));
  copy_text(op->activity, recorder, atomic_load_explicit(&record->activity, memory_order_relaxed));
  atomic_thread_fence(memory_order_acquire);
  return load(&record->sequence) == sequence;
}

/* The ranks that the ring's owner sleeps for, without those that have arrived since: the owner may not have run yet. */
static ms_rank_set read_missing(const ms_control *control, const ms_recorder_ring *ring) {
  uint32_t group = atomic_load_explicit(&ring->group, memory_order_relaxed);
  ms_rank_set world = ms_rank_set_all(control->size), sleeps_for = ms_recorder_missing(ring);
  ms_rank_set missing = ms_rank_set_both(&sleeps_for, &world), absent = {{0}};
  uint64_t target = load(&ring->target);
  if (!target) return missing;
  MS_EACH_RANK(rank, &missing)
  if (ms_report_count(control, group, rank) < target) ms_rank_set_add(&absent, rank);
  return absent;
}

/* The collective in which the rank waits (the one entered first), and the one that it left last. */
static void read_rings(const ms_control *control, const ms_recorder *recorder, uint64_t now, ms_rank_status *status) {
  uint64_t waits_since = UINT64_MAX, left_at = 0;
  for (int i = 0; i < MS_RECORDER_RINGS; i++) {
    const ms_recorder_ring *ring = &recorder->ring[i];
    if (atomic_load_explicit(&ring->group, memory_order_acquire) == MS_RECORDER_FREE) return;
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
    ms_rank_set missing = read_missing(control, ring);
    int waits = !ms_rank_set_is_empty(&missing);
    for (uint64_t back = 1; back <= 2 && back <= head; back++) {
      const ms_recorder_record *record = &ring->record[(head - back) % MS_RECORDER_RECORDS];
      uint64_t entered = load(&record->entered), left = atomic_load_explicit(&record->left, memory_order_acquire);
      ms_rank_op op = {0};
      if (!left && back == 1 && waits && entered < waits_since && ms_report_read(recorder, record, &op)) {
        waits_since = entered;
        status->wait = op;
        status->wait.missing = missing;
        status->wait.seconds = seconds_since(now, entered);
      } else if (left > left_at && ms_report_read(recorder, record, &op)) {
        left_at = left;
        status->last = op;
        status->last.seconds = seconds_since(now, left);
      }
    }
  }
}

/* As in /proc/PID/stat: T where a signal stopped the process, t where a tracer holds it. */
static char state_of(int pid) {
  char path[64], state = '?';
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE *file = fopen(path, "re");
  if (!file) return '?';
  if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = '?';
  fclose(file);
  return state;
}

int ms_report_is_stopped(int pid) {
  const char state = state_of(pid);
  return state == 'T' || state == 't';
}

/* Whether the process's main thread is blocked in a write to standard output or standard error, whose reader does not
 * read. The kernel shows system calls only to processes that can trace this one; where it sleeps is visible to others
 * as well. */
static int is_printing(int pid) {
  char path[64], where[128] = "";
  long call = -1;
  unsigned long fd = 0;
  snprintf(path, sizeof path, "/proc/%d/syscall", pid);
  FILE *file = fopen(path, "re");
  int is_read = file && fscanf(file, "%ld %lx", &call, &fd) == 2;
  if (file) fclose(file);
  if (is_read) return (call == SYS_write || call == SYS_writev) && (fd == STDOUT_FILENO || fd == STDERR_FILENO);
  snprintf(path, sizeof path, "/proc/%d/wchan", pid);
  file = fopen(path, "re");
  if (!file) return 0;
  if (!fgets(where, sizeof where, file)) *where = '\0';
  fclose(file);
  return strstr(where, "pipe_write") != NULL;
}

void ms_report_process(int pid, int *stopped, int *printing) {
  *stopped = ms_report_is_stopped(pid);
  *printing = is_printing(pid);
}

int ms_report_stopped(const ms_control *control, int rank) {
  const ms_control_rank *row = &control->rank[rank];
  if (atomic_load(&row->seen)) return atomic_load(&row->stopped); /* as its host has reported */
  int pid = atomic_load(&row->pid);
  return pid && state_of(pid) == 'T' ? pid : 0;
}

/* What a process does; for a rank of another host, as its host has reported it. */
static void read_process(const ms_control_rank *row, ms_rank_status *status) {
  int there = atomic_load(&row->stopped);
  if (!atomic_load(&row->seen)) {
    ms_report_process(status->pid, &status->stopped, &status->printing);
    return;
  }
  status->stopped = there != 0;
  status->printing = atomic_load(&row->printing);
  if (there) status->pid = there;
}

void ms_report_status(const ms_control *control, int rank, ms_rank_status *status) {
  const ms_control_rank *row = &control->rank[rank];
  const ms_recorder *recorder = ms_recorder_in(control, rank);
  *status = (ms_rank_status){.pid = atomic_load(&row->pid), .state = atomic_load(&row->state)};
  uint64_t now = ms_recorder_now();
  copy_text(status->activity, recorder, atomic_load_explicit(&recorder->activity, memory_order_acquire));
  copy_text(status->at, recorder, atomic_load_explicit(&recorder->at, memory_order_relaxed));
  copy_text(status->doing, recorder, atomic_load_explicit(&recorder->doing, memory_order_relaxed));
  status->step = atomic_load_explicit(&recorder->step, memory_order_relaxed);
  status->done = atomic_load_explicit(&recorder->done, memory_order_relaxed);
  status->tokens_per_s = 1e-3 * (double)load(&recorder->speed);
  status->since = seconds_since(now, load(&recorder->since));
  status->outside = 1e-9 * (double)load(&recorder->outside);
  status->beat = seconds_since(now, load(&recorder->beat));
  read_rings(control, recorder, now, status);
}

void ms_report_look(const ms_control *control, int looks, ms_rank_status *all) {
  for (int look = 0; look < looks; look++) {
    if (look) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    for (int rank = 0; rank < control->size; rank++)
      if (!look || !all[rank].wait.kind) ms_report_status(control, rank, &all[rank]);
  }
  for (int rank = 0; rank < control->size; rank++)
    if (all[rank].state == MS_CONTROL_JOINED) read_process(&control->rank[rank], &all[rank]);
}

void ms_report_noted(const ms_control *control, char *text, size_t bytes) {
  int failed = -1, count = 0;
  snprintf(text, bytes, "%s", "");
  for (int rank = control->size - 1; rank >= 0; rank--) {
    if (atomic_load(&control->rank[rank].failed) != 2) continue;
    failed = rank;
    count++;
  }
  if (failed < 0 || count == control->size) return; /* all ranks failed and continued alike: not a cause */
  snprintf(text, bytes, "rank %d failed before, and has not ended: %s", failed, control->rank[failed].failure);
}
