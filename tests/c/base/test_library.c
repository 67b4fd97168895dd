/* test_library.c - libraries of others: found by a variable or by names, complete or not; and the notes of what is not
 * found. */
#include "tests/c/support/check.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/library.h"
#include "base/error.h"

typedef struct functions {
  double (*cosine)(double);
  double (*sine)(double);
} functions;

static const ms_library_entry entries[] = {{"cos", offsetof(functions, cosine)}, {"sin", offsetof(functions, sine)}};
static const ms_library_entry unknown[] = {{"cos", offsetof(functions, cosine)}, {"no_such_sine", 0}};
static const char *const names[] = {"libnowhere.so.7", "libm.so.6", NULL};

static ms_library library_of(const ms_library_entry *entry) {
  return (ms_library){"MOONSHARD_TEST_LIBRARY", names, "circles need libm", "libm 6", entry, 2};
}

static void the_first_name_that_is_there_is_taken(void **state) {
  (void)state;
  char why[MS_LIBRARY_WHY_BYTES];
  functions f;
  ms_library library = library_of(entries);
  void *handle = ms_library_open(&library, &f, why);
  assert_non_null(handle);
  assert_true(fabs(f.cosine(0.5) - cos(0.5)) < 1e-15 && fabs(f.sine(0.5) - sin(0.5)) < 1e-15);
  dlclose(handle);
  assert_non_null(ms_library_ask(&library, "cos", &handle));
  dlclose(handle);
  assert_null(ms_library_ask(&library, "no_such_sine", &handle));
  assert_null(handle);
}

static void assert_not_opened(ms_library library, const char *variable, const char *facts) {
  char why[MS_LIBRARY_WHY_BYTES];
  functions f;
  setenv("MOONSHARD_TEST_LIBRARY", variable, 1);
  assert_null(ms_library_open(&library, &f, why));
  unsetenv("MOONSHARD_TEST_LIBRARY");
  assert_has(why, facts);
}

static void a_variable_is_the_only_name(void **state) {
  (void)state;
  assert_not_opened(library_of(entries), "/proc/nowhere/libm.so",
                    "circles need libm | /proc/nowhere/libm.so: | MOONSHARD_TEST_LIBRARY");
}

/* A library of this project; libm, which is on the linker's path, stands for one. */
static void own_libraries_are_found_by_a_variable_or_by_the_linker(void **state) {
  (void)state;
  char why[MS_LIBRARY_WHY_BYTES];
  void *library = ms_library_open_own("MOONSHARD_TEST_LIBRARY", "libm.so.6", RTLD_LOCAL, why);
  assert_non_null(library);
  dlclose(library);
  assert_null(ms_library_open_own("MOONSHARD_TEST_LIBRARY", "libnowhere.so", RTLD_LOCAL, why));
  assert_has(why, "/tests/libnowhere.so:"); /* in the folder of this program, the first place */
  setenv("MOONSHARD_TEST_LIBRARY", "/proc/nowhere/libm.so", 1);
  assert_null(ms_library_open_own("MOONSHARD_TEST_LIBRARY", "libm.so.6", RTLD_LOCAL, why));
  unsetenv("MOONSHARD_TEST_LIBRARY");
  assert_has(why, "/proc/nowhere/libm.so:");
}

static void missing_functions_of_a_library_are_reported(void **state) {
  (void)state;
  assert_not_opened(library_of(unknown), "libm.so.6", "libm.so.6 | no_such_sine | libm 6");
}

static void a_note_is_returned_once(void **state) {
  (void)state;
  assert_null(ms_note_next());
  ms_note("%d wheels would be faster", 4);
  ms_note("oil, too");
  ms_note("%s wheels would be faster", "4");
  assert_has(ms_note_next(), "4 wheels");
  assert_string_equal(ms_note_next(), "oil, too");
  assert_null(ms_note_next());
  ms_note("oil, too");
  assert_null(ms_note_next());
}

static void keep_last(void *user, const char *text) { *(const char **)user = text; }

static void a_log_is_given_each_note_once(void **state) {
  (void)state;
  const char *last = NULL;
  ms_note("a bell is missing");
  ms_set_log(keep_last, &last);
  assert_string_equal(last, "a bell is missing");
  ms_note("a lamp is missing");
  assert_string_equal(last, "a lamp is missing");
  last = NULL;
  ms_note("a bell is missing");
  assert_null(last);
  assert_null(ms_note_next());
  ms_set_log(NULL, NULL);
  ms_note("a lock is missing");
  assert_null(last);
  assert_string_equal(ms_note_next(), "a lock is missing");
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(the_first_name_that_is_there_is_taken),
                                     TEST(a_variable_is_the_only_name),
                                     TEST(own_libraries_are_found_by_a_variable_or_by_the_linker),
                                     TEST(missing_functions_of_a_library_are_reported),
                                     TEST(a_note_is_returned_once),
                                     TEST(a_log_is_given_each_note_once)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
