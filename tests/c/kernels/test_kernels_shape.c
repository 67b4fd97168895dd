/* test_kernels_shape.c - tests kernels that move elements: transpose, slice, pad, concat, broadcast_to, copy, and
 * rope. */
#include "tests/c/support/kernel_case.h"

static const int all_dtypes[] = {MS_F32, MS_BF16, MS_I32, MS_U8, MS_F8E4M3, MS_I8};

/* Numbers that are distinct as far as the dtype allows. */
static void number_input(kernel_case *c, int input) {
  for (int64_t i = 0, n = ms_numel(&c->call.in[input]); i < n; i++)
    set_input(c, input, i, (double)((input * 77 + i) % 251));
}

static void split_index(const ms_value_info *info, int64_t element, int64_t *index) {
  for (int d = info->ndim - 1; d >= 0; d--) {
    index[d] = element % info->dims[d];
    element /= info->dims[d];
  }
}

static int64_t join_index(const ms_value_info *info, const int64_t *index) {
  int64_t element = 0;
  for (int d = 0; d < info->ndim; d++) element = element * info->dims[d] + index[d];
  return element;
}

typedef struct permutation {
  int ndim;
  int64_t dims[5], axes[5];
} permutation;

static const permutation permutations[] = {
    {1, {17}, {0}},
    {2, {3, 5}, {1, 0}},
    {2, {200, 333}, {1, 0}},
    {2, {1, 40}, {1, 0}},
    {2, {64, 64}, {0, 1}},
    {3, {4, 33, 65}, {0, 2, 1}},
    {3, {4, 33, 65}, {2, 0, 1}},
    {3, {40, 3, 65}, {1, 0, 2}},
    {4, {2, 50, 6, 32}, {0, 2, 1, 3}},
    {4, {2, 50, 6, 32}, {0, 2, 3, 1}},
    {4, {3, 4, 5, 6}, {3, 2, 1, 0}},
    {4, {3, 4, 5, 6}, {-1, 0, -3, 2}},
    {5, {2, 1, 3, 4, 5}, {4, 2, 0, 1, 3}},
};

static void transpose_permutes(void **state) {
  (void)state;
  FOR_EACH(dtype, all_dtypes)
  FOR_EACH(p, permutations) {
    kernel_case c = case_of(MS_OP_transpose);
    ms_value_info out = {.dtype = dtype, .ndim = p.ndim};
    for (int d = 0; d < p.ndim; d++) {
      c.call.attrs.permutation.p[d] = p.axes[d];
      out.dims[d] = p.dims[(p.axes[d] + p.ndim) % p.ndim];
    }
    add_input(&c, shape(dtype, p.ndim, p.dims));
    add_output(&c, out);
    number_input(&c, 0);
    run_case(&c);
    for (int64_t i = 0, n = ms_numel(&out); i < n; i++) {
      int64_t to[5], from[5] = {0};
      split_index(&out, i, to);
      for (int d = 0; d < p.ndim; d++) from[(p.axes[d] + p.ndim) % p.ndim] = to[d];
      assert_true(output_at(&c, 0, i) == input_at(&c, 0, join_index(&c.call.in[0], from)));
    }
    free_case(&c);
  }
}

static void slice_and_pad_cut_one_axis(void **state) {
  (void)state;
  static const int64_t dims[] = {7, 6, 50};
  FOR_EACH(dtype, all_dtypes)
  for (int axis = -3; axis < 3; axis++)
    for (int64_t start = 0; start < 5; start += 2)
      for (int64_t count = 0; start + count <= dims[(axis + 3) % 3] && count < 4; count++) {
        int at = (axis + 3) % 3;
        kernel_case cut = case_of(MS_OP_slice);
        cut.call.attrs.cut.axis = axis;
        cut.call.attrs.cut.start = start;
        cut.call.attrs.cut.stop = start + count;
        ms_value_info whole = shape(dtype, 3, dims), piece = whole;
        piece.dims[at] = count;
        add_input(&cut, whole);
        add_output(&cut, piece);
        number_input(&cut, 0);
        run_case(&cut);

        kernel_case widened = case_of(MS_OP_pad);
        widened.call.attrs.cut.axis = axis;
        widened.call.attrs.cut.before = start;
        widened.call.attrs.cut.after = dims[at] - start - count;
        add_input(&widened, piece);
        add_output(&widened, whole);
        memcpy((void *)widened.call.in_data[0], cut.call.out_data[0], (size_t)tensor_bytes(&piece));
        run_case(&widened);

        for (int64_t i = 0, n = ms_numel(&whole); i < n; i++) {
          int64_t index[3];
          split_index(&whole, i, index);
          int inside = index[at] >= start && index[at] < start + count;
          assert_true(output_at(&widened, 0, i) == (inside ? input_at(&cut, 0, i) : 0.0));
        }
        free_case(&cut);
        free_case(&widened);
      }
}

static void concat_joins_on_each_axis(void **state) {
  (void)state;
  static const int64_t lengths[] = {3, 0, 1, 20};
  FOR_EACH(dtype, all_dtypes)
  for (int axis = -3; axis < 3; axis++) {
    int at = (axis + 3) % 3;
    int64_t dims[] = {5, 40, 9};
    kernel_case c = case_of(MS_OP_concat);
    c.call.attrs.cut.axis = axis;
    for (int i = 0; i < 4; i++) {
      dims[at] = lengths[i];
      add_input(&c, shape(dtype, 3, dims));
      number_input(&c, i);
    }
    dims[at] = 24;
    add_output(&c, shape(dtype, 3, dims));
    run_case(&c);
    for (int64_t i = 0, n = ms_numel(&c.call.out[0]); i < n; i++) {
      int64_t index[3];
      int input = 0;
      split_index(&c.call.out[0], i, index);
      while (index[at] >= lengths[input]) index[at] -= lengths[input++];
      assert_true(output_at(&c, 0, i) == input_at(&c, input, join_index(&c.call.in[input], index)));
    }
    free_case(&c);
  }
}

typedef struct shapes {
  int from_ndim;
  int64_t from[4];
  int to_ndim;
  int64_t to[4];
} shapes;

static void broadcast_to_repeats(void **state) {
  (void)state;
  static const shapes list[] = {{0, {0}, 0, {0}},
                                {0, {0}, 2, {3, 700}},
                                {1, {17}, 3, {5, 7, 17}},
                                {2, {6, 1}, 2, {6, 501}},
                                {3, {2, 1, 5}, 4, {3, 2, 400, 5}},
                                {2, {40, 60}, 2, {40, 60}}};
  FOR_EACH(dtype, all_dtypes)
  FOR_EACH(s, list) {
    kernel_case c = case_of(MS_OP_broadcast_to);
    add_input(&c, shape(dtype, s.from_ndim, s.from));
    add_output(&c, shape(dtype, s.to_ndim, s.to));
    number_input(&c, 0);
    run_case(&c);
    for (int64_t i = 0, n = ms_numel(&c.call.out[0]); i < n; i++) {
      int64_t to[4], from[4];
      split_index(&c.call.out[0], i, to);
      for (int d = 0; d < s.from_ndim; d++) from[d] = s.from[d] == 1 ? 0 : to[d + s.to_ndim - s.from_ndim];
      assert_true(output_at(&c, 0, i) == input_at(&c, 0, join_index(&c.call.in[0], from)));
    }
    free_case(&c);
  }
}

static void copy_moves_the_bytes(void **state) {
  (void)state;
  FOR_EACH(dtype, all_dtypes) {
    kernel_case c = case_of(MS_OP_reshape);
    add_input(&c, SHAPE(dtype, 7, 10001));
    add_output(&c, SHAPE(dtype, 70007));
#ifdef MS_TEST_CUDA
    extern const ms_kernel ms_cuda_copy;
    const ms_kernel *copy = &ms_cuda_copy;
#else
    extern const ms_kernel ms_cpu_copy;
    const ms_kernel *copy = &ms_cpu_copy;
#endif
    c.call.threads = TEAM;
    must(run_kernel(copy, &c.call));
    assert_memory_equal(c.call.out_data[0], c.call.in_data[0], (size_t)tensor_bytes(&c.call.in[0]));
    free_case(&c);
  }
}

static kernel_case rope_case(int dtype, const int64_t *dims, int64_t offset, int interleaved, int inverse) {
  kernel_case c = case_of(MS_OP_rope);
  c.call.attrs.rope.offset = offset;
  c.call.attrs.rope.interleaved = interleaved;
  c.call.attrs.rope.inverse = inverse;
  c.call.attrs.rope.theta = 10000.0;
  add_input(&c, shape(dtype, 4, dims));
  add_output(&c, shape(dtype, 4, dims));
  return c;
}

/* Pair p of each head rotated by position times frequency[p] (radians, in single precision like the kernel's angle). */
static void assert_turned(const kernel_case *c, const float *frequency) {
  const int64_t *dims = c->call.in[0].dims, depth = dims[3], half = depth / 2;
  for (int64_t head = 0, heads = ms_numel(&c->call.in[0]) / depth; head < heads; head++)
    for (int64_t p = 0; p < half; p++) {
      int64_t t = head / dims[2] % dims[1] + c->call.attrs.rope.offset;
      double angle = (double)((float)t * frequency[p]) * (c->call.attrs.rope.inverse ? -1.0 : 1.0);
      int64_t i = head * depth + (c->call.attrs.rope.interleaved ? 2 * p : p),
              j = c->call.attrs.rope.interleaved ? i + 1 : i + half;
      double a = input_at(c, 0, i), b = input_at(c, 0, j);
      assert_output(c, 0, i, a * cos(angle) - b * sin(angle), 1e-6);
      assert_output(c, 0, j, a * sin(angle) + b * cos(angle), 1e-6);
    }
}

static void rope_turns_pairs(void **state) {
  (void)state;
  static const int64_t dims[][4] = {{1, 1, 1, 2}, {2, 3, 1, 6}, {2, 70, 3, 64}};
  FOR_EACH(dtype, dtypes)
  for (size_t s = 0; s < sizeof dims / sizeof *dims; s++)
    for (int flags = 0; flags < 8; flags++) {
      float frequency[32];
      kernel_case c = rope_case(dtype, dims[s], flags & 4 ? 1000 : 0, flags & 1, flags >> 1 & 1);
      for (int64_t p = 0; p < dims[s][3] / 2; p++)
        frequency[p] = 1.0f / (float)pow(10000.0, (double)((float)(2 * p) / (float)dims[s][3]));
      run_case(&c);
      assert_turned(&c, frequency);
      free_case(&c);
    }
}

/* Frequencies of Llama 3.1 as computed by PyTorch (Hugging Face's rope type llama3): heads of 16, theta 500, limits at
 * wavelengths of 8 and 64 positions, factor 8. */
static void rope_scales_frequencies(void **state) {
  (void)state;
  static const float frequency[8] = {1.0f,           0.269257367f,  0.0569409989f,  0.0121561559f,
                                     0.00559017016f, 0.0025707141f, 0.00118217699f, 0.000543639821f};
  FOR_EACH(dtype, dtypes) {
    kernel_case c = rope_case(dtype, (int64_t[]){2, 5, 2, 16}, 1000, 0, 0);
    c.call.attrs =
        (ms_op_attrs){.rope = {.offset = 1000, .original = 64, .theta = 500, .factor = 8, .low = 1, .high = 8}};
    run_case(&c);
    assert_turned(&c, frequency);
    free_case(&c);
  }
}

/* Given frequencies and factors, which rotate a part of each head: more pairs than a kernel computes at a time, and an
 * odd number, which vectors do not divide. */
static void rope_takes_frequencies(void **state) {
  (void)state;
  static const int64_t dims[][4] = {{2, 5, 2, 16}, {1, 3, 2, 160}, {2, 7, 3, 10}}, all_pairs[] = {8, 70, 3};
  FOR_EACH(dtype, dtypes)
  for (size_t s = 0; s < sizeof dims / sizeof *dims; s++)
    for (int flags = 0; flags < 4; flags++) {
      const int64_t depth = dims[s][3], pairs = all_pairs[s];
      const int interleaved = flags & 1;
      kernel_case c = rope_case(dtype, dims[s], 1000, interleaved, flags >> 1);
      const int in = add_input(&c, shape(MS_F32, 2, (int64_t[]){2, pairs}));
      for (int64_t p = 0; p < pairs; p++) {
        set_input(&c, in, p, 1.0 / (double)(p + 1));
        set_input(&c, in, pairs + p, 1.0 + (double)p / 8);
      }
      const float *turns = c.call.in_data[in];
      run_case(&c);
      for (int64_t head = 0; head < ms_numel(&c.call.in[0]) / depth; head++) {
        const int64_t t = head / dims[s][2] % dims[s][1] + 1000, first = head * depth;
        for (int64_t p = 0; p < pairs; p++) {
          const double angle = (double)((float)t * turns[p]) * (flags >> 1 ? -1.0 : 1.0), factor = turns[pairs + p];
          const int64_t i = first + (interleaved ? 2 * p : p), j = interleaved ? i + 1 : i + pairs;
          const double a = input_at(&c, 0, i), b = input_at(&c, 0, j);
          assert_output(&c, 0, i, factor * (a * cos(angle) - b * sin(angle)), 1e-5);
          assert_output(&c, 0, j, factor * (a * sin(angle) + b * cos(angle)), 1e-5);
        }
        for (int64_t i = first + 2 * pairs; i < first + depth; i++) assert_output(&c, 0, i, input_at(&c, 0, i), 0);
      }
      free_case(&c);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(transpose_permutes),      TEST(slice_and_pad_cut_one_axis), TEST(concat_joins_on_each_axis),
      TEST(broadcast_to_repeats),    TEST(copy_moves_the_bytes),       TEST(rope_turns_pairs),
      TEST(rope_scales_frequencies), TEST(rope_takes_frequencies),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
