/* test_matmul_memory.c - the scratch of a product does not depend on which products the process made before: a plan
 * made in another process has to be the same to the byte. Every order of making them has a process of its own, since
 * oneDNN keeps what it made.
 */
#include "tests/c/support/kernel_case.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/device.h"

enum { WAYS = 4 }; /* bit 0: a is stored transposed; bit 1: b is */

static const int64_t sizes[][3] = {{1, 8, 1}, {8, 1, 8}, {1, 8, 8}, {8, 8, 1}, {8, 1, 1}, {1, 1, 8}}; /* m, k, n */
enum { SIZES = sizeof sizes / sizeof *sizes };

/* Prepares [m,k] x [k,n] of f32 and keeps it, as a plan does. */
static int64_t scratch_of(const int64_t *size, int way) {
  const int64_t m = size[0], k = size[1], n = size[2];
  const int trans_a = way & 1, trans_b = way >> 1;
  kernel_case c = case_of(MS_OP_matmul);
  c.call.attrs.product.trans_a = trans_a;
  c.call.attrs.product.trans_b = trans_b;
  add_input(&c, trans_a ? SHAPE(MS_F32, k, m) : SHAPE(MS_F32, m, k));
  add_input(&c, trans_b ? SHAPE(MS_F32, n, k) : SHAPE(MS_F32, k, n));
  add_output(&c, SHAPE(MS_F32, m, n));
  if (ms_device_kernel(MS_DEVICE_CPU, MS_OP_matmul)->prepare(&c.call)) return -1;
  return c.call.workspace_bytes;
}

/* In a process of its own. bytes: [WAYS] of each, made from the first to the last or the other way. */
static void make_in_order(const int64_t *size, int backwards, int64_t *bytes) {
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    for (int i = 0; i < WAYS; i++) {
      const int way = backwards ? WAYS - 1 - i : i;
      bytes[way] = scratch_of(size, way);
    }
    _exit(0);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
}

static void M6_scratch_does_not_depend_on_what_was_made_before(void **state) {
  (void)state;
  int64_t(*bytes)[WAYS] = mmap(NULL, 2 * sizeof *bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(bytes != MAP_FAILED);
  for (int s = 0; s < SIZES; s++) {
    make_in_order(sizes[s], 0, bytes[0]);
    make_in_order(sizes[s], 1, bytes[1]);
    for (int way = 0; way < WAYS; way++) {
      assert_true(bytes[0][way] >= 0);
      assert_int_equal(bytes[0][way], bytes[1][way]);
    }
  }
  munmap(bytes, 2 * sizeof *bytes);
}

int main(void) {
  setenv("MOONSHARD_MATMUL", "onednn", 1);
  const struct CMUnitTest tests[] = {TEST(M6_scratch_does_not_depend_on_what_was_made_before)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
