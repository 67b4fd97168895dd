/* test_fuzz_inputs.c - the targets of libFuzzer (tests/fuzz/libfuzzer) over the files that a fuzzer starts from and
 * those that it once found. Under the address sanitizer, faults that were found there are found again, without a
 * fuzzer. */
#include "tests/c/support/check.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

typedef int target_fn(const uint8_t *data, size_t size);

/* Targets are compiled under these names (make/build.mk); each aborts if a rule is broken. */
target_fn fuzz_safetensors, fuzz_tokenizer, fuzz_tokens;

static target_fn *target;
static int inputs;

/* In a block of exactly its size, so that a read beyond it is found. */
static int read_input(const char *path, const struct stat *found, int kind, struct FTW *place) {
  (void)place;
  if (kind != FTW_F) return 0;
  const size_t size = (size_t)found->st_size;
  uint8_t *data = malloc(size ? size : 1);
  FILE *file = fopen(path, "rb");
  assert_true(data && file);
  assert_int_equal(fread(data, 1, size, file), size);
  assert_int_equal(fclose(file), 0);
  assert_int_equal(target(data, size), 0);
  free(data);
  inputs++;
  return 0;
}

static void read_inputs(target_fn *of, const char *folder, int at_least) {
  target = of;
  inputs = 0;
  assert_int_equal(nftw(folder, read_input, 16, FTW_PHYS), 0);
  assert_true(inputs >= at_least);
}

static void K5_inputs_of_the_safetensors_fuzzer(void **state) {
  (void)state;
  read_inputs(fuzz_safetensors, "tests/fixtures/safetensors", 150);
}

static void inputs_of_the_tokenizer_fuzzer(void **state) {
  (void)state;
  read_inputs(fuzz_tokenizer, "tests/fixtures/tokenizer", 30);
}

static void inputs_of_the_token_file_fuzzer(void **state) {
  (void)state;
  read_inputs(fuzz_tokens, "tests/fixtures/tokens", 80);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(K5_inputs_of_the_safetensors_fuzzer),
      cmocka_unit_test(inputs_of_the_tokenizer_fuzzer),
      cmocka_unit_test(inputs_of_the_token_file_fuzzer),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
