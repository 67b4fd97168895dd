/* test_tensor.cpp - matrix operations and asynchronous copies, compared with plain loops. The positions of elements are
 * written here as in the PTX ISA 9.0, element by element (9.7.14.5.7 for mma.m16n8k8, 9.7.14.5.8 for m16n8k16,
 * 9.7.14.5.15 for ldmatrix), independently of the emulation. */
#include "emulated_state.h"
#include "kernels/cuda/hardware.h"

extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
}

using emulated::launch_kernel;

static unsigned short bf16_of(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }

/* Two elements in one register, the first in the low half. */
static unsigned pair(float first, float second) {
  return bf16_of(first) | static_cast<unsigned>(bf16_of(second)) << 16;
}

/* ---- mma --------------------------------------------------------------------------------------------------------- */

/* a[row][k], b[k][column], c[row][column]: integers that bf16 and f32 represent exactly. */
struct product {
  float a[16][16], b[16][8], c[16][8];
};

static product some_product() {
  product p;
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 16; j++) p.a[i][j] = static_cast<float>((i * 7 + j * 13) % 31 - 15);
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 8; j++) {
      p.b[i][j] = static_cast<float>((i * 5 + j * 11) % 23 - 11);
      p.c[i][j] = static_cast<float>(i * 100 + j);
    }
  return p;
}

static void multiply_a_tile(product *p) {
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane >> 2, in_group = lane % 4;
  float a_element[8], b_element[4], c[4];
  for (int i = 0; i < 8; i++) {
    const int row = i < 2 || (4 <= i && i < 6) ? group : group + 8;
    const int column = i < 4 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8;
    a_element[i] = p->a[row][column];
  }
  for (int i = 0; i < 4; i++) {
    const int row = i < 2 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8;
    b_element[i] = p->b[row][group];
  }
  for (int i = 0; i < 4; i++) c[i] = p->c[i < 2 ? group : group + 8][in_group * 2 + (i & 1)];
  const unsigned a[4] = {pair(a_element[0], a_element[1]), pair(a_element[2], a_element[3]),
                         pair(a_element[4], a_element[5]), pair(a_element[6], a_element[7])};
  ms_multiply_tiles(c, a, pair(b_element[0], b_element[1]), pair(b_element[2], b_element[3]));
  for (int i = 0; i < 4; i++) p->c[i < 2 ? group : group + 8][in_group * 2 + (i & 1)] = c[i];
}

static void tiles_multiply(void **) {
  product p[2] = {some_product(), some_product()}, expected = some_product();
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 8; j++)
      for (int k = 0; k < 16; k++) expected.c[i][j] += expected.a[i][k] * expected.b[k][j];
  for (product &one : p) { /* once with lanes in order, once in reverse */
    assert_int_equal(launch_kernel("multiply", multiply_a_tile, 1, 32, 0, nullptr, &one), cudaSuccess);
    assert_memory_equal(one.c, expected.c, sizeof expected.c);
  }
}

/* The first 8 columns of a and rows of b, as TF32. */
static void multiply_a_tf32_tile(product *p) {
  const int lane = static_cast<int>(threadIdx.x), group = lane >> 2, in_group = lane % 4;
  unsigned a[4], b[2];
  float c[4];
  for (int i = 0; i < 4; i++) {
    const int row = i == 0 || i == 2 ? group : group + 8, column = i < 2 ? in_group : in_group + 4;
    a[i] = ms_round_tf32(p->a[row][column]);
  }
  for (int i = 0; i < 2; i++) b[i] = ms_round_tf32(p->b[i == 0 ? in_group : in_group + 4][group]);
  for (int i = 0; i < 4; i++) c[i] = p->c[i < 2 ? group : group + 8][in_group * 2 + (i & 1)];
  ms_multiply_tf32(c, a, b[0], b[1]);
  for (int i = 0; i < 4; i++) p->c[i < 2 ? group : group + 8][in_group * 2 + (i & 1)] = c[i];
}

static void tf32_tiles_multiply(void **) {
  product p = some_product(), expected = p;
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 8; j++)
      for (int k = 0; k < 8; k++) expected.c[i][j] += expected.a[i][k] * expected.b[k][j];
  assert_int_equal(launch_kernel("tf32", multiply_a_tf32_tile, 1, 32, 0, nullptr, &p), cudaSuccess);
  assert_memory_equal(p.c, expected.c, sizeof expected.c);
}

/* 10 bits of mantissa, halves away from zero; NaN is kept. */
static void numbers_are_rounded_to_tf32(void **) {
  const float step = 1.0f / 1024, inputs[] = {1 + step / 2, 1 + step * 0.499f, -1 - step / 2, 3.5f, INFINITY};
  const float rounded[] = {1 + step, 1, -1 - step, 3.5f, INFINITY};
  for (int i = 0; i < 5; i++) assert_true(__uint_as_float(ms_round_tf32(inputs[i])) == rounded[i]);
  assert_true(std::isnan(__uint_as_float(ms_round_tf32(__uint_as_float(0x7f800001)) & ~0x1fffu)));
}

/* ---- ldmatrix ---------------------------------------------------------------------------------------------------- */

struct loaded {
  unsigned straight[32][4], transposed[32][4];
};

/* Element (r, c) of matrix i is 64 i + 8 r + c. The rows are stored in another order, to check that each lane's address
 * is used. */
static void load_four(loaded *to) {
  unsigned short *shared = static_cast<unsigned short *>(emulated::dynamic_shared());
  const int lane = static_cast<int>(threadIdx.x);
  const auto place = [](int matrix, int row) { return (matrix * 8 + row) * 5 % 32 * 8; };
  for (int c = 0; c < 8; c++)
    shared[place(lane / 8, lane % 8) + c] = static_cast<unsigned short>(lane / 8 * 64 + lane % 8 * 8 + c);
  __syncthreads();
  ms_load_matrices(to->straight[lane], ms_shared_at(shared + place(lane / 8, lane % 8)));
  ms_load_transposed(to->transposed[lane], ms_shared_at(shared + place(lane / 8, lane % 8)));
}

static void four_matrices_load(void **) {
  loaded got;
  assert_int_equal(launch_kernel("load", load_four, 1, 32, 512, nullptr, &got), cudaSuccess);
  for (int lane = 0; lane < 32; lane++)
    for (int i = 0; i < 4; i++) {
      const int row = lane / 4, column = 2 * (lane % 4);
      const int first = 64 * i + 8 * row + column, below = 64 * i + 8 * column + row;
      assert_int_equal(got.straight[lane][i], first | (first + 1) << 16);
      assert_int_equal(got.transposed[lane][i], below | (below + 8) << 16);
    }
}

/* ---- cp.async ---------------------------------------------------------------------------------------------------- */

static void copy_two_groups(const int *from, int *seen) {
  int *shared = static_cast<int *>(emulated::dynamic_shared());
  for (int i = 0; i < 12; i++) shared[i] = -1;
  ms_copy_async<16>(ms_shared_at(shared), from, true);
  ms_commit_copies();
  ms_copy_async<4>(ms_shared_at(shared + 4), from + 4, true);
  ms_copy_async<4>(ms_shared_at(shared + 5), from, false);
  ms_commit_copies();
  ms_copy_async<16>(ms_shared_at(shared + 8), from + 8, true); /* not in a group yet */
  const auto look = [&] {
    for (int i = 0; i < 12; i++) *seen++ = shared[i];
  };
  look();
  ms_wait_copies<1>();
  look();
  ms_wait_copies<0>();
  look();
}

static void copies_land_when_they_are_waited_for(void **) {
  alignas(16) int from[12];
  int seen[36];
  for (int i = 0; i < 12; i++) from[i] = 10 + i;
  const int expected[36] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 10, 11, 12, 13, -1, -1,
                            -1, -1, -1, -1, -1, -1, 10, 11, 12, 13, 14, 0,  -1, -1, -1, -1, -1, -1};
  for (int i = 0; i < 2; i++) { /* the second launch must not see copies that the first left pending */
    assert_int_equal(launch_kernel("copy", copy_two_groups, 1, 1, 64, nullptr, from, seen), cudaSuccess);
    assert_memory_equal(seen, expected, sizeof expected);
  }
}

/* ---- errors that a GPU would not survive ------------------------------------------------------------------------- */

static void mend_device() {
  emulated::device_error = cudaSuccess;
  cudaGetLastError();
}

static void load_from_odd_places(int) {
  unsigned matrices[4];
  ms_load_matrices(matrices, ms_shared_at(static_cast<char *>(emulated::dynamic_shared()) + threadIdx.x * 8));
}

static void copy_to_odd_place(const int *from) {
  ms_copy_async<16>(ms_shared_at(static_cast<char *>(emulated::dynamic_shared()) + 4), from, true);
}

static void multiply_without_some(product *p) {
  if (threadIdx.x < 20) multiply_a_tile(p);
}

static void different_operations(product *p) {
  unsigned matrices[4];
  if (threadIdx.x < 20) multiply_a_tile(p);
  else ms_load_matrices(matrices, ms_shared_at(emulated::dynamic_shared()));
}

static void misuse_is_told(void **) {
  alignas(16) int from[4] = {};
  product p = some_product();
  assert_int_equal(launch_kernel("odd rows", load_from_odd_places, 1, 32, 512, nullptr, 0), cudaErrorLaunchFailure);
  mend_device();
  assert_int_equal(launch_kernel("odd copy", copy_to_odd_place, 1, 1, 64, nullptr, from), cudaErrorLaunchFailure);
  mend_device();
  assert_int_equal(launch_kernel("few", multiply_without_some, 1, 32, 0, nullptr, &p), cudaErrorLaunchFailure);
  mend_device();
  assert_int_equal(launch_kernel("two", different_operations, 1, 32, 16, nullptr, &p), cudaErrorLaunchFailure);
  mend_device();
}

int main() {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tiles_multiply),
      cmocka_unit_test(tf32_tiles_multiply),
      cmocka_unit_test(numbers_are_rounded_to_tf32),
      cmocka_unit_test(four_matrices_load),
      cmocka_unit_test(copies_land_when_they_are_waited_for),
      cmocka_unit_test(misuse_is_told),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
