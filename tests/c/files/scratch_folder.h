/* scratch_folder.h - a folder for the files of one test program, which must be empty at its end. */
#ifndef MS_TESTS_SCRATCH_FOLDER_H
#define MS_TESTS_SCRATCH_FOLDER_H

#include "tests/c/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[] = "/tmp/moonshard-test-XXXXXX";

static int make_folder(void **state) {
  (void)state;
  return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
  (void)state;
  return rmdir(folder); /* fails when a test left a file behind */
}

static inline const char *in_folder(const char *name) {
  static char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

#endif
