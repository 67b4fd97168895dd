/* test_kernels_storage.c - parameters that are kept in few bits: records of nf4 against bitsandbytes' algorithm and of
 * i8 against PyTorch, bit for bit, and the op that reads them, on the CPU and on (emulated) CUDA. */
#include "kernels/storage.h"

#include "base/dtype.h"
#include "graph/graph.h"
#include "kernels/storage_code.h"
#include "tests/c/support/fixture_file.h"
#include "tests/c/support/kernel_case.h"

#define STORED "tests/fixtures/low_precision/stored.safetensors"

static void assert_same(const char *what, const void *got, const void *expected, int64_t n, int64_t size) {
  for (int64_t i = 0; i < n; i++)
    if (memcmp((const char *)got + i * size, (const char *)expected + i * size, (size_t)size))
      fail_msg("%s: element %d differs", what, (int)i);
}

/* All records of x; nf4 with the scales of all of them, and the fixture's offset. */
static uint8_t *encode(const ms_safetensors *file, int dtype, const float *x, int64_t n) {
  const ms_storage *s = ms_storage_of(dtype);
  const int64_t records = ms_storage_words(dtype, n) / s->words;
  uint8_t *out = malloc((size_t)(records * s->words * 4));
  float scales[MS_STORED_SCALES];
  for (int64_t r = 0; r < records; r++) {
    const int64_t first = r * s->elements, count = n - first < s->elements ? n - first : s->elements;
    uint8_t *record = out + 4 * s->words * r;
    int64_t one;
    must(ms_storage_encode(dtype, x + first, count, record, scales));
    if (dtype != MS_NF4) continue;
    const float *offset = fixture_tensor(file, "nf4.offset", &one);
    ms_storage_set_scales(record, scales, (count + MS_STORED_BLOCK_NF4 - 1) / MS_STORED_BLOCK_NF4, *offset);
  }
  return out;
}

static void Q7_the_map_of_scales_is_bitsandbytes_dynamic_map(void **state) {
  (void)state;
  ms_safetensors *file;
  int64_t n;
  must(ms_safetensors_open(STORED, &file));
  const float *map = fixture_tensor(file, "map", &n);
  assert_int_equal(n, 256);
  for (int code = 0; code < 256; code++) {
    const float number = ms_dynamic_to_f32((uint8_t)code);
    assert_memory_equal(&number, &map[code], sizeof number);
    assert_int_equal(ms_f32_to_dynamic(number), code);
    if (code == 255) break;
    const double middle = ((double)map[code] + (double)map[code + 1]) / 2;
    assert_int_equal(ms_f32_to_dynamic((float)(middle + 1e-4 * (map[code + 1] - map[code]))), code + 1);
    assert_int_equal(ms_f32_to_dynamic((float)(middle - 1e-4 * (map[code + 1] - map[code]))), code);
  }
  ms_safetensors_close(file);
}

static void Q7_codes_and_scales_of_nf4_are_bitsandbytes(void **state) {
  (void)state;
  ms_safetensors *file;
  int64_t n, blocks, records, scales;
  must(ms_safetensors_open(STORED, &file));
  const float *x = fixture_tensor(file, "x", &n), *scale = fixture_tensor(file, "nf4.scale", &records);
  const uint8_t *codes = fixture_tensor(file, "nf4.codes", &blocks);
  const uint8_t *scale_codes = fixture_tensor(file, "nf4.scale_codes", &scales);
  uint8_t *own = encode(file, MS_NF4, x, n);
  for (int64_t i = 0; i < n; i++) {
    const uint8_t byte = own[i / MS_STORED_MOST * MS_NF4_RECORD + i % MS_STORED_MOST / 2];
    assert_int_equal(i % 2 ? ms_second4(byte) : ms_first4(byte), codes[i]);
  }
  for (int64_t b = 0; b < scales; b++)
    assert_int_equal(own[b / MS_STORED_SCALES * MS_NF4_RECORD + MS_NF4_SCALE_CODES + b % MS_STORED_SCALES],
                     scale_codes[b]);
  for (int64_t r = 0; r < records; r++) assert_memory_equal(own + r * MS_NF4_RECORD + MS_NF4_SCALE, &scale[r], 4);
  free(own);
  ms_safetensors_close(file);
}

static void Q7_codes_and_scales_of_i8_are_symmetric(void **state) {
  (void)state;
  ms_safetensors *file;
  int64_t n, blocks, same;
  must(ms_safetensors_open(STORED, &file));
  const float *x = fixture_tensor(file, "x", &n), *scale = fixture_tensor(file, "i8.scale", &blocks);
  const uint8_t *codes = fixture_tensor(file, "i8.codes", &same);
  uint8_t *own = encode(file, MS_I8, x, n);
  for (int64_t i = 0; i < n; i++) assert_int_equal(own[i / 1024 * MS_I8_RECORD + i % 1024], codes[i]);
  for (int64_t b = 0; b < blocks; b++)
    assert_memory_equal(own + b / 4 * MS_I8_RECORD + MS_I8_SCALES + b % 4 * 4, &scale[b], 4);
  free(own);
  ms_safetensors_close(file);
}

/* Any range of elements, also one that begins and ends inside blocks and records. */
static void Q7_records_read_back_as_the_reference(void **state) {
  (void)state;
  static const int dtype[] = {MS_NF4, MS_I8};
  static const char *const name[] = {"nf4.back", "i8.back"};
  static const int64_t ranges[][2] = {{0, 19213}, {0, 1}, {63, 2}, {16383, 2}, {777, 18000}, {19212, 1}, {256, 256}};
  ms_safetensors *file;
  int64_t n, same;
  must(ms_safetensors_open(STORED, &file));
  const float *x = fixture_tensor(file, "x", &n);
  for (int d = 0; d < 2; d++) {
    const float *back = fixture_tensor(file, name[d], &same);
    uint8_t *own = encode(file, dtype[d], x, n);
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
      float *read = poisoned(4 * ranges[i][1]);
      ms_storage_decode(dtype[d], own, ranges[i][0], ranges[i][1], read);
      assert_same(name[d], read, back + ranges[i][0], ranges[i][1], 4);
      assert_guarded(read, 4 * ranges[i][1]);
      free(read);
    }
    free(own);
  }
  ms_safetensors_close(file);
}

/* The op, to both dtypes that kernels read. */
static void Q7_the_op_gives_the_reference_rounded_to_what_kernels_read(void **state) {
  (void)state;
  static const int storage[] = {MS_NF4, MS_I8, MS_BF16};
  static const char *const name[] = {"nf4.back", "i8.back", NULL};
  ms_safetensors *file;
  int64_t n, same;
  must(ms_safetensors_open(STORED, &file));
  const float *x = fixture_tensor(file, "x", &n);
  for (int s = 0; s < 3; s++) {
    FOR_EACH(to, dtypes) {
      kernel_case c = case_of(MS_OP_dequantise);
      uint8_t *own = encode(file, storage[s], x, n);
      c.call.attrs.i[0] = storage[s];
      const ms_value_info words = {.dtype = MS_I32, .ndim = 1, .dims = {ms_storage_words(storage[s], n)}};
      const ms_value_info values = {.dtype = to, .ndim = 1, .dims = {n}};
      add_input(&c, words);
      memcpy((void *)c.call.in_data[0], own, (size_t)words.dims[0] * 4);
      add_output(&c, values);
      run_once(&c, c.call, 1);
      const float *back = name[s] ? fixture_tensor(file, name[s], &same) : x;
      for (int64_t i = 0; i < n; i++) {
        const float wanted = to == MS_F32 && name[s] ? back[i] : ms_bf16_to_f32(ms_f32_to_bf16(back[i]));
        if (output_at(&c, 0, i) != (double)wanted)
          fail_msg("%s to %s, element %d: %a instead of %a", ms_dtype_name(storage[s]), ms_dtype_name(to), (int)i,
                   output_at(&c, 0, i), (double)wanted);
      }
      free_case(&c);
      free(own);
    }
  }
  ms_safetensors_close(file);
}

static void Q7_dtypes_with_records_are_those_of_the_table_of_dtypes(void **state) {
  (void)state;
  for (int dtype = 0; dtype < MS_DTYPES; dtype++) {
    const ms_storage *s = ms_storage_of(dtype);
    assert_int_equal(s != NULL, ms_dtype_may(dtype, MS_DTYPE_STORED));
    if (s && s->block) assert_int_equal(s->elements % s->block, 0);
  }
  assert_false(ms_storage_is_coded(MS_F32) || ms_storage_is_coded(MS_BF16));
  assert_true(ms_storage_is_coded(MS_I8) && ms_storage_is_coded(MS_NF4));
}

static void Q7_calls_that_do_not_fit_are_refused(void **state) {
  (void)state;
  ms_kernel_call call = {.op = MS_OP_dequantise, .inputs = 1, .outputs = 1};
  call.in[0] = (ms_value_info){.dtype = MS_I32, .ndim = 1, .dims = {2116}};
  call.out[0] = (ms_value_info){.dtype = MS_F32, .ndim = 1, .dims = {16385}};
  call.attrs.i[0] = MS_NF4;
  assert_fails(ms_storage_prepare(&call), MS_ESHAPE, "2116 words");
  call.attrs.i[0] = MS_I4;
  assert_fails(ms_storage_prepare(&call), MS_EDTYPE, "cannot be stored in i4; they can in bf16, i8 or nf4");
  int64_t elements, words;
  assert_fails(ms_storage_record(MS_F32, &elements, &words), MS_EDTYPE, "cannot be stored in f32");
  must(ms_storage_record(MS_NF4, &elements, &words));
  assert_int_equal(elements, 16384);
  assert_int_equal(words * 4, 8464);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(Q7_the_map_of_scales_is_bitsandbytes_dynamic_map),
      TEST(Q7_codes_and_scales_of_nf4_are_bitsandbytes),
      TEST(Q7_codes_and_scales_of_i8_are_symmetric),
      TEST(Q7_records_read_back_as_the_reference),
      TEST(Q7_the_op_gives_the_reference_rounded_to_what_kernels_read),
      TEST(Q7_dtypes_with_records_are_those_of_the_table_of_dtypes),
      TEST(Q7_calls_that_do_not_fit_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
