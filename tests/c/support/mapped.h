/* mapped.h - the mapped bytes of a tensor of a safetensors file. */
#ifndef MS_TESTS_MAPPED_H
#define MS_TESTS_MAPPED_H

#include "tests/c/support/check.h"
#include "moonshard.h"

static inline const void *mapped(const ms_safetensors *file, int i) {
  ms_safetensors_tensor tensor;
  must(ms_safetensors_describe(file, i, &tensor, sizeof tensor));
  return tensor.data;
}

#endif
