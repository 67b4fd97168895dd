/* check.h - what every C test includes: cmocka with what it needs before it, and checks of failures. */
#ifndef MS_TESTS_CHECK_H
#define MS_TESTS_CHECK_H

#include "moonshard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "message.h"

/* A test that starts without a pending error. */
#define TEST(name) cmocka_unit_test_setup(name, start_without_error)

static inline int start_without_error(void **state) {
  (void)state;
  ms_error_clear();
  return 0;
}

/* A text holds all facts, as message.h looks for them. */
static inline void assert_has(const char *text, const char *facts) {
  const char *lacks = message_lacks(text, facts);
  if (lacks) fail_msg("\"%s\" is not in \"%s\"", lacks, text);
}

/* A text is one line, which holds all facts. */
static inline void assert_line_has(const char *text, const char *facts) {
  const char *end = strchr(text, '\n');
  if (!end || end[1]) fail_msg("\"%s\" is not one line", text);
  assert_has(text, facts);
}

/* The call succeeds, and leaves no record of anything that it tried; if not, the test fails with the message. */
static inline void must(int status) {
  if (status) fail_msg("%s: %s", ms_status_name(status), ms_error_message());
  if (ms_error_code()) fail_msg("a success left the record of an error: %s", ms_error_message());
}

/* The call failed with this status, and its message holds these facts; clears the record. */
#define assert_fails(call, status, facts)        \
  do {                                           \
    assert_int_equal((call), (status));          \
    assert_int_equal(ms_error_code(), (status)); \
    assert_has(ms_error_message(), (facts));     \
    ms_error_clear();                            \
  } while (0)

#endif
