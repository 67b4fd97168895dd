/* test_transport_keys.c - the transfers of a key, as all transports keep them: what is due, what a peer may say, and
 * when transfers end. Two sets of keys are the two sides; the test carries notices and pieces between them.
 */
#include "tests/c/support/check.h"

#include <string.h>

#include "base/error.h"
#include "comm/transport/keys.h"

enum { KEY = 7, PIECE = 10 };

static ms_key slots[2][MS_TRANSPORT_KEYS];
static ms_keys near, far; /* of two ranks, about each other */
static uint8_t memory[100];

/* A test of two sides that know no key yet. */
#define KEYS(name) cmocka_unit_test_setup(name, forget_keys)

static int forget_keys(void **state) {
  memset(slots, 0, sizeof slots);
  near = (ms_keys){.slot = slots[0]};
  far = (ms_keys){.slot = slots[1]};
  return start_without_error(state);
}

static ms_transfer posted(ms_keys *keys, int receives, int64_t bytes) {
  return (ms_transfer){.peer = keys == &near, .receives = receives, .key = KEY, .data = memory, .bytes = bytes};
}

/* Carries what is due from one side to the other; returns how many notices. */
static int carry(ms_keys *from, ms_keys *to) {
  ms_key_notice notice;
  int n = 0;
  for (; ms_keys_next_notice(from, &notice); n++)
    assert_null(notice.cancels ? ms_keys_take_cancel(to, notice.key)
                               : ms_keys_take_credit(to, notice.key, notice.number, notice.bytes));
  return n;
}

static ms_key *next_send(ms_keys *keys) {
  char why[MS_KEY_SIZES];
  ms_key *key = ms_keys_next_send(keys, 0, why);
  assert_string_equal(why, "");
  return key;
}

static void a_send_waits_for_its_credit(void **state) {
  (void)state;
  ms_transfer send = posted(&near, 0, PIECE), receive = posted(&far, 1, PIECE);
  must(ms_keys_post(&near, &send));
  assert_null(next_send(&near));
  must(ms_keys_post(&far, &receive));
  assert_int_equal(carry(&far, &near), 1);
  assert_int_equal(carry(&far, &near), 0); /* once */
  assert_ptr_equal(next_send(&near), ms_keys_find(&near, KEY));
}

static void pieces_that_end_in_any_order_end_transfers_in_order(void **state) {
  (void)state;
  ms_transfer send[2] = {posted(&near, 0, 2 * PIECE), posted(&near, 0, PIECE)};
  ms_transfer receive[2] = {posted(&far, 1, 2 * PIECE), posted(&far, 1, PIECE)};
  for (int i = 0; i < 2; i++) {
    must(ms_keys_post(&near, &send[i]));
    must(ms_keys_post(&far, &receive[i]));
  }
  assert_int_equal(carry(&far, &near), 2);
  ms_key *key = next_send(&near);
  assert_ptr_equal(ms_key_begin(&key->sends, PIECE), &send[0]);
  assert_ptr_equal(ms_key_begin(&key->sends, PIECE), &send[0]);
  assert_ptr_equal(ms_key_begin(&next_send(&near)->sends, PIECE), &send[1]);
  assert_null(next_send(&near));
  assert_int_equal(ms_key_moved(&key->sends, &send[1], PIECE), 0);
  assert_int_equal(ms_key_moved(&key->sends, &send[0], PIECE), 0);
  assert_int_equal(send[0].state, MS_TRANSFER_POSTED);
  assert_int_equal(send[1].state, MS_TRANSFER_POSTED);
  assert_int_equal(ms_key_moved(&key->sends, &send[0], PIECE), 2);
  assert_int_equal(send[0].state, MS_TRANSFER_DONE);
  assert_int_equal(send[1].state, MS_TRANSFER_DONE);
}

static void a_receive_is_half_received_from_its_first_piece_to_its_last(void **state) {
  (void)state;
  ms_transfer receive = posted(&far, 1, 2 * PIECE);
  must(ms_keys_post(&far, &receive));
  ms_key *key = ms_keys_find(&far, KEY);
  assert_false(ms_keys_are_half_received(&far));
  ms_key_begin(&key->receives, PIECE);
  assert_true(ms_keys_are_half_received(&far));
  ms_key_begin(&key->receives, PIECE);
  ms_key_moved(&key->receives, &receive, PIECE);
  assert_true(ms_keys_are_half_received(&far));
  ms_key_moved(&key->receives, &receive, PIECE);
  assert_false(ms_keys_are_half_received(&far));
  assert_false(ms_keys_are_awaited(&far));
}

static void what_breaks_the_protocol_is_named(void **state) {
  (void)state;
  ms_transfer receive = posted(&far, 1, 2 * PIECE);
  assert_non_null(ms_key_check_data(NULL, 0, 0, PIECE));
  must(ms_keys_post(&far, &receive));
  const ms_key *key = ms_keys_find(&far, KEY);
  assert_non_null(ms_key_check_data(key, 0, 0, PIECE)); /* without a credit */
  carry(&far, &near);
  assert_null(ms_key_check_data(key, 0, 0, PIECE));
  assert_non_null(ms_key_check_data(key, 1, 0, PIECE));
  assert_non_null(ms_key_check_data(key, 0, PIECE, PIECE));
  assert_non_null(ms_key_check_data(key, 0, 0, 2 * PIECE + 1));
  assert_non_null(ms_keys_take_credit(&near, KEY, 0, PIECE));
  assert_non_null(ms_keys_take_credit(&near, KEY, 1, 0));
  for (uint64_t i = 1; i < MS_TRANSPORT_UNDER_WAY; i++) assert_null(ms_keys_take_credit(&near, KEY, i, PIECE));
  assert_non_null(ms_keys_take_credit(&near, KEY, MS_TRANSPORT_UNDER_WAY, PIECE));
}

static void sizes_that_differ_are_named(void **state) {
  (void)state;
  char why[MS_KEY_SIZES];
  ms_transfer send = posted(&near, 0, PIECE), receive = posted(&far, 1, 2 * PIECE);
  must(ms_keys_post(&near, &send));
  must(ms_keys_post(&far, &receive));
  carry(&far, &near);
  assert_null(ms_keys_next_send(&near, 0, why));
  assert_has(why, "10 | rank 1 | 20");
}

static void a_key_is_forgotten_when_both_sides_have_cancelled_it(void **state) {
  (void)state;
  ms_transfer send = posted(&near, 0, PIECE), receive = posted(&far, 1, PIECE), again = posted(&near, 0, PIECE);
  must(ms_keys_post(&near, &send));
  must(ms_keys_post(&far, &receive));
  carry(&far, &near);
  ms_key *key = ms_keys_find(&near, KEY);
  key->cancelled = MS_KEY_BY_CALLER;
  assert_int_equal(carry(&near, &far), 0); /* its transfers are not over */
  ms_key_fail(key);
  assert_int_equal(send.state, MS_TRANSFER_FAILED);
  assert_true(ms_key_drops(key));
  assert_fails(ms_keys_post(&near, &again), MS_EINVAL, "cancelled");
  assert_int_equal(carry(&near, &far), 1);
  assert_non_null(ms_keys_take_cancel(&far, KEY));
  ms_keys_find(&far, KEY)->cancelled = MS_KEY_BY_CALLER;
  ms_keys_fail(&far);
  assert_int_equal(carry(&far, &near), 1);
  assert_null(ms_keys_find(&near, KEY));
  assert_null(ms_keys_find(&far, KEY));
  must(ms_keys_post(&near, &again));
  assert_int_equal(again.number, 0);
}

static void keys_send_in_turn(void **state) {
  (void)state;
  ms_transfer send[2], receive[2];
  for (int i = 0; i < 2; i++) {
    send[i] = posted(&near, 0, 2 * PIECE);
    receive[i] = posted(&far, 1, 2 * PIECE);
    send[i].key = receive[i].key = KEY + (uint64_t)i;
    must(ms_keys_post(&near, &send[i]));
    must(ms_keys_post(&far, &receive[i]));
  }
  carry(&far, &near);
  for (int i = 0; i < 4; i++) {
    ms_key *key = next_send(&near);
    assert_int_equal(key->key, KEY + i % 2);
    ms_key_begin(&key->sends, PIECE);
  }
  assert_null(next_send(&near));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      KEYS(a_send_waits_for_its_credit),
      KEYS(pieces_that_end_in_any_order_end_transfers_in_order),
      KEYS(a_receive_is_half_received_from_its_first_piece_to_its_last),
      KEYS(what_breaks_the_protocol_is_named),
      KEYS(sizes_that_differ_are_named),
      KEYS(a_key_is_forgotten_when_both_sides_have_cancelled_it),
      KEYS(keys_send_in_turn),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
