/* fixture_file.h - tensors of a safetensors file of tests/fixtures, by name. */
#ifndef MS_TESTS_FIXTURE_FILE_H
#define MS_TESTS_FIXTURE_FILE_H

#include <stdio.h>
#include <string.h>

#include "tests/c/support/check.h"

/* Pointers to the data of a tensor, of which there are *n; the file stays open. */
static inline const void *fixture_tensor(const ms_safetensors *file, const char *name, int64_t *n) {
  ms_safetensors_tensor tensor;
  const int i = ms_safetensors_find(file, name);
  if (i < 0) fail_msg("the fixture has no tensor %s", name);
  must(ms_safetensors_describe(file, i, &tensor, sizeof tensor));
  *n = tensor.elements;
  return tensor.data;
}

/* The same by the parts of a name: "plain" and ".x". */
static inline const void *fixture_part(const ms_safetensors *file, const char *of, const char *part, int64_t *n) {
  char name[96];
  snprintf(name, sizeof name, "%s%s", of, part);
  return fixture_tensor(file, name, n);
}

#endif
