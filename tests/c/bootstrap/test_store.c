/* test_store.c - meeting at the store: where, who is missing, who died. */
#include "tests/c/support/ranks/callers.h"
#include "tests/c/support/check.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/control/rank_set.h"

static caller ranks[64];

/* ---- places ---- */

static void L1_places_are_read(void **state) {
  (void)state;
  ms_store_place place;
  assert_int_equal(ms_store_place_parse("tcp://node-1.cluster:29500", &place), MS_OK);
  assert_string_equal(place.host, "node-1.cluster");
  assert_int_equal(place.port, 29500);
  assert_int_equal(ms_store_place_is_local(&place), 0);
  assert_int_equal(ms_store_place_parse("tcp://[fd00::2]:1", &place), MS_OK);
  assert_string_equal(place.host, "fd00::2");
  assert_string_equal(place.text, "tcp://[fd00::2]:1");
  assert_int_equal(ms_store_place_parse("file:///tmp/meet", &place), MS_OK);
  assert_string_equal(place.name, "/tmp/meet");
  const char *local[] = {"tcp://127.0.0.1:1", "tcp://127.9.9.9:1", "tcp://localhost:1", "tcp://[::1]:1", "file:///a"};
  for (int i = 0; i < 5; i++) {
    assert_int_equal(ms_store_place_parse(local[i], &place), MS_OK);
    assert_int_equal(ms_store_place_is_local(&place), 1);
  }
}

static void L1_places_that_make_no_sense_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *url, *facts;
  } wrong[] = {{"tcp://host", "no port"},
               {"tcp://host:", "port | 1 | 65535"},
               {"tcp://host:0", "port | 1 | 65535"},
               {"tcp://host:65536", "port | 1 | 65535"},
               {"tcp://host:29500x", "port | 1 | 65535"},
               {"tcp://:29500", "host name"},
               {"tcp://host/path:29500", "host name"},
               {"file://relative", "absolute"},
               {"file:///", "absolute"},
               {"udp://host:1", "tcp://host:port, file:///path or env://"},
               {"", "tcp://host:port, file:///path or env://"}};
  ms_store_place place;
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
    assert_fails(ms_store_place_parse(wrong[i].url, &place), MS_EINVAL, wrong[i].facts);
}

/* ---- meeting ---- */

static void meet(int size, const ms_store_place *place, const char *token) {
  int port = find_port();
  for (int rank = size - 1; rank >= 0; rank--) { /* rank 0 comes last: the others wait for it */
    prepare_caller(&ranks[rank], port, rank, size);
    if (place) ranks[rank].place = *place;
    ranks[rank].config.token = token;
    start_caller(&ranks[rank]);
  }
  meet_and_close(ranks, size);
}

static void L1_ranks_meet_over_tcp(void **state) {
  (void)state;
  meet(1, NULL, "");
  meet(5, NULL, "");
  meet(5, NULL, "sixteen-byte-key");
  meet(24, NULL, "");
}

static void L1_ranks_of_a_host_meet_without_a_port(void **state) {
  (void)state;
  ms_store_place place;
  char key[64];
  snprintf(key, sizeof key, "test %d", (int)getpid());
  ms_store_place_local(key, "env://here", &place);
  meet(4, &place, "");
}

enum { GATHERS = 20 };

/* Gathers of all lengths; 0 when all of them brought what the ranks gave. */
static int gather_often(ms_store *store, int rank) {
  for (int round = 0; round < GATHERS; round++) {
    int bytes = 1 + round * (MS_STORE_ROUND - 1) / (GATHERS - 1);
    char mine[MS_STORE_ROUND], expected[MS_STORE_ROUND], all[2 * MS_STORE_ROUND];
    memset(mine, 10 * round + rank, sizeof mine);
    MS_TRY(ms_store_gather(store, mine, bytes, all));
    for (int other = 0; other < 2; other++) {
      memset(expected, 10 * round + other, sizeof expected);
      if (memcmp(all + other * bytes, expected, (size_t)bytes)) return MS_EINTERNAL;
    }
  }
  return MS_OK;
}

static void *gather_as_rank_1(void *status) {
  *(int *)status = gather_often(ranks[1].store, 1);
  return NULL;
}

static void L1_several_gathers_follow_each_other(void **state) {
  (void)state;
  pthread_t thread;
  int mine[2] = {7, 8}, all[4], status = -1;
  start_callers(ranks, 0, 2, find_port(), 2);
  for (int rank = 0; rank < 2; rank++) join_caller(&ranks[rank]);
  assert_gathered(ranks, 2);
  assert_int_equal(pthread_create(&thread, NULL, gather_as_rank_1, &status), 0);
  assert_int_equal(gather_often(ranks[0].store, 0), MS_OK);
  pthread_join(thread, NULL);
  assert_int_equal(status, MS_OK);
  assert_fails(ms_store_gather(ranks[0].store, mine, 0, all), MS_EINVAL, "1 | 512");
  assert_fails(ms_store_gather(ranks[0].store, mine, 513, all), MS_EINVAL, "1 | 512");
  close_callers(ranks, 2);
}

/* ---- who is missing ---- */

static void L4_every_rank_names_the_ranks_that_are_missing(void **state) {
  (void)state;
  static const int present[] = {0, 2, 6};
  int port = find_port();
  for (int i = 0; i < 3; i++) {
    prepare_caller(&ranks[i], port, present[i], 8);
    ranks[i].config.timeout = i == 1 ? 2 : 15; /* whose deadline comes first speaks for all */
    start_caller(&ranks[i]);
  }
  for (int i = 0; i < 3; i++) {
    assert_caller_fails(&ranks[i], MS_ETIMEOUT, "ranks 1, 3-5, 7 of 8 | 2 s");
    assert_has(ranks[i].message, "tcp://127.0.0.1:");
  }
}

/* As many as fit, and never half a number. */
static void L4_a_list_of_ranks_is_not_cut_inside_of_a_number(void **state) {
  (void)state;
  uint8_t chosen[4096];
  char text[512];
  for (int rank = 0; rank < 4096; rank++) chosen[rank] = rank % 2;
  assert_int_equal(ms_rank_list(chosen, 4096, text, sizeof text), 2048);
  assert_has(text, "1, 3, 5, 7, ");
  assert_string_equal(text + strlen(text) - strlen(", 221, 223, ..."), ", 221, 223, ...");
  assert_int_equal(ms_rank_list(chosen, 9, text, sizeof text), 4);
  assert_string_equal(text, "1, 3, 5, 7");
  memset(chosen, 1, sizeof chosen);
  assert_int_equal(ms_rank_list(chosen, 2, text, sizeof text), 2);
  assert_string_equal(text, "0-1");
  assert_int_equal(ms_rank_list(chosen, 4096, text, sizeof text), 4096);
  assert_string_equal(text, "0-4095");
  memset(chosen, 0, sizeof chosen);
  assert_int_equal(ms_rank_list(chosen, 4096, text, sizeof text), 0);
  assert_string_equal(text, "");
}

static void L4_one_missing_rank_is_named(void **state) {
  (void)state;
  prepare_caller(&ranks[0], find_port(), 0, 2);
  ranks[0].config.timeout = 0.8;
  start_caller(&ranks[0]);
  assert_caller_fails(&ranks[0], MS_ETIMEOUT, "rank 1 of 2 | 0.8 s");
}

static void L4_a_missing_rank_0_is_named(void **state) {
  (void)state;
  prepare_caller(&ranks[0], find_port(), 1, 2);
  ranks[0].config.timeout = 0.3;
  start_caller(&ranks[0]);
  assert_caller_fails(&ranks[0], MS_ETIMEOUT, "rank 0 of 2 | 0.3 s | Connection refused");
}

/* ---- deaths ---- */

typedef struct heard {
  pthread_mutex_t lock;
  char why[1024];
} heard;

static void hear(void *context, const char *why) {
  heard *h = context;
  pthread_mutex_lock(&h->lock);
  snprintf(h->why, sizeof h->why, "%s", why);
  pthread_mutex_unlock(&h->lock);
}

static void hear_end(void *context) { (void)context; }

static const ms_store_listener listener = {.failed = hear, .closed = hear_end};

static void assert_heard(heard *h, const char *facts) {
  char why[1024] = "";
  for (double end = ms_clock() + 20; ms_clock() < end && !*why; usleep(1000)) {
    pthread_mutex_lock(&h->lock);
    memcpy(why, h->why, sizeof why);
    pthread_mutex_unlock(&h->lock);
  }
  assert_has(why, facts);
}

static void meet_and_watch(int size, heard *h) {
  int port = find_port();
  start_callers(ranks, 0, size, port, size);
  for (int rank = 0; rank < size; rank++) {
    join_caller(&ranks[rank]);
    h[rank] = (heard){.lock = PTHREAD_MUTEX_INITIALIZER};
  }
  assert_gathered(ranks, size);
  for (int rank = 0; rank < size; rank++)
    assert_int_equal(ms_store_watch(ranks[rank].store, &listener, &h[rank]), MS_OK);
}

static void L5_a_rank_that_gives_up_is_heard_by_all(void **state) {
  (void)state;
  heard h[3];
  meet_and_watch(3, h);
  ms_store_abort(ranks[1].store, "the loss is nan");
  for (int rank = 0; rank < 3; rank++) assert_heard(&h[rank], "rank 1 | : the loss is nan");
  close_callers(ranks, 3);
}

static void L5_ranks_that_leave_in_any_order_are_no_failure(void **state) {
  (void)state;
  heard h[3];
  for (int first = 0; first < 3; first++) {
    meet_and_watch(3, h);
    for (int i = 0; i < 3; i++) {
      int rank = (first + i) % 3;
      ms_store_close(ranks[rank].store);
    }
    for (int rank = 0; rank < 3; rank++) assert_string_equal(h[rank].why, "");
  }
}

/* Rank `struck` of 3 is a process that gets this signal when it has come; another one waits; the third never comes. */
static void strike(int struck, int number, int status, const char *facts) {
  int port = find_port(), came[2];
  char byte = 0;
  assert_int_equal(pipe(came), 0);
  fflush(NULL);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    caller *mine = &ranks[3];
    prepare_caller(mine, port, struck, 3);
    mine->config.place = &mine->place;
    if (ms_store_open(&mine->config, &mine->store) || write(came[1], &byte, 1) != 1) _exit(1);
    sleep(60);
    _exit(0);
  }
  caller *mine = &ranks[0];
  int all[3];
  prepare_caller(mine, port, struck == 0 ? 1 : 0, 3);
  if (number == SIGSTOP) mine->config.timeout = 2;
  mine->config.place = &mine->place;
  assert_int_equal(ms_store_open(&mine->config, &mine->store), MS_OK);
  assert_int_equal(read(came[0], &byte, 1), 1);
  kill(pid, number);
  if (number == SIGKILL) waitpid(pid, NULL, 0);
  assert_fails(ms_store_gather(mine->store, &port, sizeof port, all), status, facts);
  if (number != SIGKILL) {
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
  }
  close_callers(mine, 1);
  close(came[0]);
  close(came[1]);
}

static void L5_a_rank_that_dies_in_the_rendezvous_is_named(void **state) {
  (void)state;
  strike(2, SIGKILL, MS_EPEER, "rank 2 | connection | process");
  strike(0, SIGKILL, MS_EIO, "rank 0 | died");
}

static void L4_a_rank_0_that_is_stopped_in_the_rendezvous_is_named(void **state) {
  (void)state;
  strike(0, SIGSTOP, MS_ETIMEOUT, "rank 0: no answer");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(L1_places_are_read),
      TEST(L1_places_that_make_no_sense_are_refused),
      TEST(L1_ranks_meet_over_tcp),
      TEST(L1_ranks_of_a_host_meet_without_a_port),
      TEST(L1_several_gathers_follow_each_other),
      TEST(L4_every_rank_names_the_ranks_that_are_missing),
      TEST(L4_a_list_of_ranks_is_not_cut_inside_of_a_number),
      TEST(L4_one_missing_rank_is_named),
      TEST(L4_a_missing_rank_0_is_named),
      TEST(L5_a_rank_that_gives_up_is_heard_by_all),
      TEST(L5_ranks_that_leave_in_any_order_are_no_failure),
      TEST(L5_a_rank_that_dies_in_the_rendezvous_is_named),
      TEST(L4_a_rank_0_that_is_stopped_in_the_rendezvous_is_named),
  };
  return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
