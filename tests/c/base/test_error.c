/* test_error.c - the error record of a thread: what is recorded, saved and restored, and how long messages are cut. */
#include "base/error.h"
#include "tests/c/support/check.h"

#include <pthread.h>
#include <stdio.h>

static void the_latest_error_is_recorded_until_it_is_cleared(void **state) {
  (void)state;
  assert_int_equal(ms_error_code(), MS_OK);
  assert_string_equal(ms_error_message(), "");
  assert_int_equal(MS_FAIL(MS_ESHAPE, "matmul: inner dimensions differ: %d and %d", 128, 64), MS_ESHAPE);
  assert_int_equal(ms_error_code(), MS_ESHAPE);
  assert_string_equal(ms_error_message(), "matmul: inner dimensions differ: 128 and 64");
  assert_int_equal(strncmp(ms_error_where(), "test_error.c:", 13), 0);
  assert_int_equal(ms_error_raise(MS_EIO, "folder/other.c", 7, "second, after: %s", ms_error_message()), MS_EIO);
  assert_int_equal(ms_error_code(), MS_EIO);
  assert_string_equal(ms_error_message(), "second, after: matmul: inner dimensions differ: 128 and 64");
  assert_string_equal(ms_error_where(), "other.c:7");
  ms_error_clear();
  assert_int_equal(ms_error_code(), MS_OK);
  assert_string_equal(ms_error_where(), "");
}

/* Code, message and place come back together: after a probe that failed, and on another thread. */
static void *fail_on_a_thread(void *record) {
  if (ms_error_code()) return NULL; /* each thread has a record of its own */
  ms_error_raise(MS_EDEVICE, "thread.c", 3, "on a thread");
  ms_error_save(record);
  return record;
}

static void assert_recorded(int code, const char *message, const char *where) {
  assert_int_equal(ms_error_code(), code);
  assert_string_equal(ms_error_message(), message);
  assert_string_equal(ms_error_where(), where);
}

static void a_saved_error_is_restored_as_a_whole(void **state) {
  (void)state;
  ms_error_record none, first, other;
  pthread_t thread;
  void *ran;
  ms_error_save(&none);
  ms_error_raise(MS_ENAME, "first.c", 1, "first");
  ms_error_save(&first);
  ms_error_raise(MS_EIO, "probe.c", 2, "a probe");
  ms_error_restore(&first);
  assert_recorded(MS_ENAME, "first", "first.c:1");
  assert_int_equal(pthread_create(&thread, NULL, fail_on_a_thread, &other), 0);
  pthread_join(thread, &ran);
  assert_non_null(ran);
  assert_recorded(MS_ENAME, "first", "first.c:1");
  ms_error_restore(&other);
  assert_recorded(MS_EDEVICE, "on a thread", "thread.c:3");
  ms_error_restore(&none);
  assert_recorded(MS_OK, "", "");
}

static void error_prefix_adds_context(void **state) {
  (void)state;
  assert_int_equal(ms_error_prefix("nothing pending"), MS_OK);
  assert_string_equal(ms_error_message(), "");
  MS_FAIL(MS_ENAME, "no such name");
  assert_int_equal(ms_error_prefix("in %s", "layers.3.attn"), MS_ENAME);
  assert_string_equal(ms_error_message(), "in layers.3.attn: no such name");
  assert_int_equal(ms_error_prefix("%s", ms_error_message()), MS_ENAME);
  assert_string_equal(ms_error_message(), "in layers.3.attn: no such name: in layers.3.attn: no such name");
}

static void error_cuts_long_messages_between_characters(void **state) {
  (void)state;
  char text[4096];
  for (int i = 0; i < 4094; i += 2) memcpy(text + i, "\xc3\xa9", 3);
  MS_FAIL(MS_EINVAL, "%s", text);
  const char *message = ms_error_message();
  size_t length = strlen(message);
  assert_true(length < 2048 && length > 2040);
  assert_string_equal(message + length - 3, "...");
  assert_int_equal((unsigned char)message[length - 4], 0xa9);

  ms_error_clear();
  memset(text, 'x', 2047);
  text[2047] = '\0';
  MS_FAIL(MS_EINVAL, "%s", text);
  assert_int_equal(strlen(ms_error_message()), 2047);
  assert_string_equal(ms_error_message() + 2044, "xxx");
  ms_error_prefix("file");
  assert_int_equal(strlen(ms_error_message()), 2047);
  assert_string_equal(ms_error_message() + 2043, "x...");
  text[100] = '\0';
  memset(text, 'y', 100);
  for (int i = 0; i < 30; i++) ms_error_prefix("%s", text);
  assert_true(strlen(ms_error_message()) < 2048);
}

static void *raise_elsewhere(void *unused) {
  (void)unused;
  MS_FAIL(MS_EPEER, "of another thread");
  return NULL;
}

static void error_record_belongs_to_its_thread(void **state) {
  (void)state;
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, raise_elsewhere, NULL), 0);
  pthread_join(thread, NULL);
  assert_int_equal(ms_error_code(), MS_OK);
}

static void error_status_names_and_versions(void **state) {
  (void)state;
  assert_string_equal(ms_status_name(MS_OK), "MS_OK");
  assert_string_equal(ms_status_name(MS_ERACE), "MS_ERACE");
  assert_string_equal(ms_status_name(MS_EINTERNAL), "MS_EINTERNAL");
  for (int status = MS_OK; status <= MS_EDEVICE; status++)
    assert_int_equal(strncmp(ms_status_name(status), "MS_", 3), 0);
  assert_string_equal(ms_status_name(-1), "unknown status");
  assert_string_equal(ms_status_name(MS_EDEVICE + 1), "unknown status");
  assert_int_equal(ms_abi_version(), MS_ABI_VERSION);
  int major, minor, patch;
  assert_int_equal(sscanf(ms_version(), "%d.%d.%d", &major, &minor, &patch), 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(the_latest_error_is_recorded_until_it_is_cleared),
      TEST(a_saved_error_is_restored_as_a_whole),
      TEST(error_prefix_adds_context),
      TEST(error_cuts_long_messages_between_characters),
      TEST(error_record_belongs_to_its_thread),
      TEST(error_status_names_and_versions),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
