/* fixture_file.h - tensors of a safetensors file of tests/fixtures, by name. */
#ifndef MS_TESTS_FIXTURE_FILE_H
#define MS_TESTS_FIXTURE_FILE_H

#include <stdio.h>
#include <string.h>

#include "tests/c/support/check.h"

/* Pointers to the data of a tensor, of which there are *n; the file stays open. */
static inline const void *fixture_tensor(const ms_safetensors *file, const char *name, int64_t *n) {
  for (int i = 0; i < ms_safetensors_count(file); i++) {
    ms_safetensors_tensor tensor;
    must(ms_safetensors_describe(file, i, &tensor, sizeof tensor));
    if (strcmp(tensor.name, name)) continue;
    *n = tensor.elements;
    return tensor.data;
  }
  fail_msg("the fixture has no tensor %s", name);
  return NULL;
}

/* The same by the parts of a name: "plain" and ".x". */
static inline const void *fixture_part(const ms_safetensors *file, const char *of, const char *part, int64_t *n) {
  char name[96];
  snprintf(name, sizeof name, "%s%s", of, part);
  return fixture_tensor(file, name, n);
}

#endif
