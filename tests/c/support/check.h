/* check.h - what every C test includes: cmocka with what it needs before it, and checks of error texts. */
#ifndef MS_TESTS_CHECK_H
#define MS_TESTS_CHECK_H

#include "moonshard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* A test that starts without a pending error. */
#define TEST(name) cmocka_unit_test_setup(name, start_without_error)

static inline int start_without_error(void **state) {
  (void)state;
  ms_error_clear();
  return 0;
}

static inline void assert_contains(const char *text, const char *part) {
  if (!strstr(text, part)) fail_msg("\"%s\" is not in \"%s\"", part, text);
}

/* The call succeeds; if not, the test fails with its message. */
static inline void must(int status) {
  if (status) fail_msg("%s: %s", ms_status_name(status), ms_error_message());
}

/* The call failed with this status and its message holds this text; clears the record. */
#define assert_fails(call, status, part)         \
  do {                                           \
    assert_int_equal((call), (status));          \
    assert_int_equal(ms_error_code(), (status)); \
    assert_contains(ms_error_message(), (part)); \
    ms_error_clear();                            \
  } while (0)

#endif
