/* test_transport_death.c - ranks that die, stop or lose their link in the middle of transfers: who is named, and when.
 *
 * Rank 1 is a process of its own, which receives endlessly from rank 0 and sends to it; with network namespaces it is
 * on a host of its own.
 */
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/endpoints.h"
#include "tests/c/support/ranks/endpoints_ucx.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

enum { BYTES = 4 << 20 };

static ends all;
static uint8_t data[2][BYTES];
static ms_transfer sends, receives;
static pid_t other;

/* The deadline under a sanitizer is longer: a turn takes longer there. That of ucx, which takes longer to start, too.
 */
static double deadline(void) {
  if (ends_api == &ms_transport_ucx) return 1.5;
  return strcmp(getenv("MOONSHARD_CONFIG") ? getenv("MOONSHARD_CONFIG") : "", "thread") ? 0.4 : 1.5;
}

/* Keeps one send and one receive under way. */
static int keep_moving(end *one) {
  int peer = !one->rank;
  if (sends.state == MS_TRANSFER_IDLE || sends.state == MS_TRANSFER_DONE) {
    sends = send_to(peer, 1, data[0], BYTES);
    MS_TRY(ends_api->post(one->endpoint, &sends));
  }
  if (receives.state == MS_TRANSFER_IDLE || receives.state == MS_TRANSFER_DONE) {
    receives = receive_from(peer, 1, data[1], BYTES);
    MS_TRY(ends_api->post(one->endpoint, &receives));
  }
  return ends_api->progress(one->endpoint, 0.01);
}

static void give(int fd, const void *bytes, size_t n) {
  if (write(fd, bytes, n) != (ssize_t)n) _exit(9);
}

static void take(int fd, void *bytes, size_t n) {
  for (size_t got = 0; got < n;) {
    ssize_t more = read(fd, (char *)bytes + got, n - got);
    if (more <= 0) _exit(8);
    got += (size_t)more;
  }
}

/* Rank `rank` of two, whose addresses are exchanged over pipes. */
static int open_rank(int rank, double timeout, int out, int in) {
  int peer = !rank;
  prepare_end(&all.of[rank], rank, 2);
  all.of[rank].config.timeout = timeout;
  all.of[rank].config.context = &all.of[rank];
  MS_TRY(ends_api->open(&all.of[rank].config, &all.of[rank].endpoint));
  MS_TRY(ends_api->address(all.of[rank].endpoint, all.addresses[rank]));
  give(out, all.addresses[rank], MS_TRANSPORT_ADDRESS);
  take(in, all.addresses[peer], MS_TRANSPORT_ADDRESS);
  return ends_api->connect(all.of[rank].endpoint, 1, &peer, all.addresses[peer]);
}

static _Noreturn void be_rank_1(double timeout, int out, int in) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (open_rank(1, timeout, out, in)) _exit(3);
  while (!all.of[1].failures)
    if (keep_moving(&all.of[1])) _exit(4);
  _exit(0);
}

static void end_both(void) {
  ends_api->close(all.of[0].endpoint);
  kill(other, SIGKILL);
  waitpid(other, NULL, 0);
}

/* Starts rank 1, and moves bytes until some have come from it: 1, or 0 if the deadline passed before that. */
static int begins(double timeout, void (*prepare)(int out, int in)) {
  int to[2], from[2];
  assert_int_equal(pipe2(to, O_CLOEXEC) | pipe2(from, O_CLOEXEC), 0);
  all = (ends){.n = 2};
  sends = receives = (ms_transfer){0};
  fflush(NULL);
  other = fork();
  assert_true(other >= 0);
  if (other == 0) {
    if (prepare) prepare(from[1], to[0]);
    be_rank_1(timeout, from[1], to[0]);
  }
  if (prepare) prepare(to[1], from[0]);
  must(open_rank(0, timeout, to[1], from[0]));
  ms_transport_counts counts = {0};
  for (double end = ms_clock() + 20; counts.received < 2 * BYTES && !all.of[0].failures && ms_clock() < end;) {
    must(keep_moving(&all.of[0]));
    ends_api->counts(all.of[0].endpoint, &counts);
  }
  for (int i = 0; i < 2; i++) close(to[i]), close(from[i]);
  return counts.received >= 2 * BYTES && !all.of[0].failures;
}

/* Starts both, again where the deadline of a test is too short for that on a loaded machine. prepare: in the new
 * process, before it opens. */
static void start_both(double timeout, void (*prepare)(int out, int in)) {
  for (int i = 0; i < 20 && !begins(timeout, prepare); i++) {
    if (i == 19) fail_msg("rank 1 failed before the test began: %s", all.of[0].why);
    end_both();
  }
}

/* Moves bytes until the peer has failed, or for so long; returns the seconds that this took. */
static double move_for(double seconds) {
  double began = ms_clock();
  while (!all.of[0].failures && ms_clock() < began + seconds) must(keep_moving(&all.of[0]));
  return ms_clock() - began;
}

static void H4_a_killed_peer_is_named_at_once(void **state) {
  double best = 20;
  (void)state;
  for (int i = 0; i < 5; i++) {
    start_both(20, NULL);
    move_for(0.002 * i);
    assert_int_equal(all.of[0].failures, 0);
    kill(other, SIGKILL);
    double took = move_for(20);
    assert_int_equal(all.of[0].failures, 1);
    assert_int_equal(all.of[0].failed_peer, 1);
    assert_has(all.of[0].why, ends_api == &ms_transport_tcp ? "127.0.0.1 | closed | ended" : "closed | ended");
    if (took < best) best = took;
    must(keep_moving(&all.of[0])); /* what ended before is posted again */
    assert_int_equal(sends.state, MS_TRANSFER_FAILED);
    assert_int_equal(receives.state, MS_TRANSFER_FAILED);
    end_both();
  }
  if (best > 0.1) fail_msg("the fastest of them took %.3f s", best); /* on a quiet machine all of them a few ms */
}

static void H4_a_stopped_peer_is_named_after_the_deadline(void **state) {
  char expected[32];
  (void)state;
  start_both(deadline(), NULL);
  kill(other, SIGSTOP);
  double took = move_for(20);
  assert_int_equal(all.of[0].failures, 1);
  snprintf(expected, sizeof expected, "%g s | stopped", deadline());
  assert_has(all.of[0].why, expected);
  assert_true(took > 0.9 * deadline() && took < deadline() + 2);
  end_both();
}

/* A transfer that only this side has posted: a late peer is no failure, a stopped one is. */
static void H4_a_stopped_peer_is_named_before_it_has_posted_anything(void **state) {
  static uint8_t never[8];
  (void)state;
  start_both(deadline(), NULL);
  ms_transfer waits = receive_from(1, 2, never, sizeof never);
  must(ends_api->post(all.of[0].endpoint, &waits));
  move_for(0.5);
  ends_api->cancel(all.of[0].endpoint, 1);
  for (double end = ms_clock() + 2 * deadline(); ms_clock() < end;) must(ends_api->progress(all.of[0].endpoint, 0.01));
  assert_int_equal(all.of[0].failures, 0);
  kill(other, SIGSTOP);
  double began = ms_clock();
  while (!all.of[0].failures && ms_clock() < began + 20) must(ends_api->progress(all.of[0].endpoint, 0.01));
  assert_int_equal(all.of[0].failures, 1);
  assert_has(all.of[0].why, "no answer | stopped");
  assert_true(ms_clock() - began < deadline() + 2);
  assert_int_equal(waits.state, MS_TRANSFER_FAILED);
  end_both();
}

static void H4_a_peer_that_goes_on_before_the_deadline_has_not_failed(void **state) {
  (void)state;
  start_both(8, NULL);
  kill(other, SIGSTOP);
  move_for(0.3);
  kill(other, SIGCONT);
  ms_transport_counts before, after;
  ends_api->counts(all.of[0].endpoint, &before);
  move_for(0.3);
  ends_api->counts(all.of[0].endpoint, &after);
  assert_true(after.received > before.received);
  assert_int_equal(all.of[0].failures, 0);
  end_both();
}

/* The process that was stopped blames no peer for the time that it was away. */
static void H4_who_was_away_does_not_blame_the_others(void **state) {
  int status = -1;
  (void)state;
  start_both(20, NULL);
  set_timeout(&all.of[0], 1); /* of this side alone */
  sleep(2);                   /* longer than that: the peer could not move a byte */
  move_for(0.3);
  assert_int_equal(all.of[0].failures, 0);
  assert_int_equal(waitpid(other, &status, WNOHANG), 0);
  end_both();
}

/* ---- two hosts ---- */

/* A network of its own, also in /sys, where UCX looks for interfaces. */
static int leave_host(void) {
  return unshare(CLONE_NEWNET | CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
         mount("sysfs", "/sys", "sysfs", 0, NULL);
}

/* A namespace with one end of a cable, and 10.98.0.rank+1. The processes go on together. */
static void on_a_host(int out, int in, int rank, pid_t peer) {
  char command[256], byte = 0;
  if (leave_host()) _exit(7);
  give(out, &byte, 1);
  take(in, &byte, 1);
  if (!rank) {
    /* prose: a command */
    snprintf(command, sizeof command, "ip link add veth0 type veth peer name veth0 netns %d", (int)peer);
    if (system(command)) _exit(7);
  }
  give(out, &byte, 1);
  take(in, &byte, 1);
  /* prose: a command */
  const char *set_up = "ip link set lo up && ip addr add 10.98.0.%d/24 dev veth0 && ip link set veth0 up";
  snprintf(command, sizeof command, set_up, rank + 1);
  if (system(command)) _exit(7);
  give(out, &byte, 1); /* the cable works when both ends are up, and a little later the kernel says so */
  take(in, &byte, 1);
  /* prose: a command */
  if (system("for i in $(seq 500); do grep -q up /sys/class/net/veth0/operstate && exit 0; sleep 0.01; done; exit 1"))
    _exit(7);
}

static void split_hosts(int out, int in) { on_a_host(out, in, other == 0, other); }

/* Exit status of rank 0's process: 0 when the peer was named as it must be, 2 when there is no way to make hosts. */
static int lose_the_link(int idle) {
  double timeout = 3;
  if (system("command -v ip >/dev/null")) return 2;
  if (leave_host()) return 2; /* only to see whether it can */
  start_both(timeout, split_hosts);
  if (idle) { /* nothing under way, not even an acknowledgement */
    ends_api->cancel(all.of[0].endpoint, 1);
    kill(other, SIGSTOP);
    for (double end = ms_clock() + 0.1; ms_clock() < end;) must(ends_api->progress(all.of[0].endpoint, 0.01));
  }
  if (system("ip link set veth0 down")) return 3;
  /* ucx is sure to notice it only when a transfer waits. */
  static uint8_t never[8];
  ms_transfer waits = receive_from(1, 2, never, sizeof never);
  if (idle && ends_api == &ms_transport_ucx) must(ends_api->post(all.of[0].endpoint, &waits));
  double began = ms_clock();
  while (!all.of[0].failures && ms_clock() < began + 20)
    if (idle) must(ends_api->progress(all.of[0].endpoint, 0.05));
    else must(keep_moving(&all.of[0]));
  double took = ms_clock() - began;
  printf("# link down, %s: %.2f s: %s\n", idle ? "idle" : "busy", took, all.of[0].why);
  end_both();
  const char *facts = ends_api == &ms_transport_tcp ? "10.98.0.2" : "link | down";
  return took > timeout + 3.5 || message_lacks(all.of[0].why, facts) || all.of[0].failed_peer != 1;
}

static void be_on_two_hosts(int idle) {
  int status;
  if (geteuid() != 0) {
    print_message("# skipped: network namespaces need root\n");
    skip();
  }
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) exit(lose_the_link(idle));
  waitpid(pid, &status, 0);
  assert_true(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) {
    print_message("# skipped: no iproute2, or no right to make network namespaces\n");
    skip();
  }
  assert_int_equal(WEXITSTATUS(status), 0);
}

static void H4_a_link_that_goes_down_is_noticed(void **state) {
  (void)state;
  be_on_two_hosts(0);
}

static void H4_a_link_that_goes_down_while_idle_is_noticed(void **state) {
  (void)state;
  be_on_two_hosts(1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(H4_a_killed_peer_is_named_at_once),
      TEST(H4_a_stopped_peer_is_named_after_the_deadline),
      TEST(H4_a_stopped_peer_is_named_before_it_has_posted_anything),
      TEST(H4_a_peer_that_goes_on_before_the_deadline_has_not_failed),
      TEST(H4_who_was_away_does_not_blame_the_others),
      TEST(H4_a_link_that_goes_down_is_noticed),
      TEST(H4_a_link_that_goes_down_while_idle_is_noticed),
  };
  int failed = cmocka_run_group_tests_name("transport tcp, deaths", tests, NULL, NULL);
  if (!has_ucx()) return failed;
  ends_api = &ms_transport_ucx;
  return failed + cmocka_run_group_tests_name("transport ucx, deaths", tests, NULL, NULL);
}
