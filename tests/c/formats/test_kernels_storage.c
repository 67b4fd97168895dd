/* test_kernels_storage.c - parameters that are kept in few bits: records of nf4 against bitsandbytes' algorithm and of
 * i8 against PyTorch, bit for bit, and the op that reads them, on the CPU and on (emulated) CUDA. */
#include "kernels/formats/storage.h"

#include "base/numbers/dtype.h"
#include "graph/graph.h"
#include "kernels/formats/storage_code.h"
#include "tests/c/support/fixture_file.h"
#include "tests/c/support/kernel_case.h"

#define STORED "tests/fixtures/low_precision/stored.safetensors"

/* Bytes from the start of a record of the longest kind, and of one. */
enum { NF4_SCALE_CODES = 8192, NF4_SCALE = 8448, NF4_RECORD = 8464, I8_SCALES = 1024, I8_RECORD = 1040 };
enum { SCALES = 256 }; /* of a record of nf4 */

static void assert_same(const char *what, const void *got, const void *expected, int64_t n, int64_t size) {
  for (int64_t i = 0; i < n; i++)
    if (memcmp((const char *)got + i * size, (const char *)expected + i * size, (size_t)size))
      fail_msg("%s: element %d differs", what, (int)i);
}

static int64_t words_of(int dtype, int64_t n) {
  ms_storage s;
  must(ms_storage_find(dtype, 0, &s));
  return ms_storage_words(&s, n);
}

/* All records of x; nf4 with the scales of all of them, and the fixture's offset. */
static uint8_t *encode(const ms_safetensors *file, int dtype, const float *x, int64_t n) {
  ms_storage found;
  must(ms_storage_find(dtype, 0, &found));
  const ms_storage *s = &found;
  const int64_t records = ms_storage_words(s, n) / s->words;
  uint8_t *out = malloc((size_t)(records * s->words * 4));
  float scales[SCALES];
  for (int64_t r = 0; r < records; r++) {
    const int64_t first = r * s->elements, count = n - first < s->elements ? n - first : s->elements;
    uint8_t *record = out + 4 * s->words * r;
    int64_t one;
    must(ms_storage_encode(s, x + first, count, record, scales));
    if (dtype != MS_NF4) continue;
    const float *offset = fixture_tensor(file, "nf4.offset", &one);
    const int64_t blocks = (count + s->block - 1) / s->block;
    ms_storage_set_scales(s, record, scales, blocks, *offset, ms_storage_max(scales, blocks, *offset));
  }
  return out;
}

static void Q7_the_map_of_scales_is_bitsandbytes_dynamic_map(void **state) {
  (void)state;
  ms_safetensors *file;
  int64_t n;
  must(ms_safetensors_open(STORED, &file, NULL));
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
  ms_free(file);
}

static void Q7_codes_and_scales_of_nf4_are_bitsandbytes(void **state) {
  (void)state;
  ms_safetensors *file;
  int64_t n, blocks, records, scales;
  must(ms_safetensors_open(STORED, &file, NULL));
  const float *x = fixture_tensor(file, "x", &n), *scale = fixture_tensor(file, "nf4.scale", &records);
  const uint8_t *codes = fixture_tensor(file, "nf4.codes", &blocks);
  const uint8_t *scale_codes = fixture_tensor(file, "nf4.scale_codes", &scales);
  uint8_t *own = encode(file, MS_NF4, x, n);
  for (int64_t i = 0; i < n; i++) {
    const uint8_t byte = own[i / MS_MAX_STORED * NF4_RECORD + i % MS_MAX_STORED / 2];
    assert_int_equal(i % 2 ? ms_second4(byte) : ms_first4(byte), codes[i]);
  }
  for (int64_t b = 0; b < scales; b++)
    assert_int_equal(own[b / SCALES * NF4_RECORD + NF4_SCALE_CODES + b % SCALES], scale_codes[b]);
  for (int64_t r = 0; r < records; r++) assert_memory_equal(own + r * NF4_RECORD + NF4_SCALE, &scale[r], 4);
  free(own);
  ms_free(file);
}

static void Q7_codes_and_scales_of_i8_are_symmetric(void **state) {
  (void)state;
  ms_safetensors *file;
  int64_t n, blocks, same;
  must(ms_safetensors_open(STORED, &file, NULL));
  const float *x = fixture_tensor(file, "x", &n), *scale = fixture_tensor(file, "i8.scale", &blocks);
  const uint8_t *codes = fixture_tensor(file, "i8.codes", &same);
  uint8_t *own = encode(file, MS_I8, x, n);
  for (int64_t i = 0; i < n; i++) assert_int_equal(own[i / 1024 * I8_RECORD + i % 1024], codes[i]);
  for (int64_t b = 0; b < blocks; b++)
    assert_memory_equal(own + b / 4 * I8_RECORD + I8_SCALES + b % 4 * 4, &scale[b], 4);
  free(own);
  ms_free(file);
}

/* Any range of elements, also one that begins and ends inside blocks and records. */
static void Q7_records_read_back_as_the_reference(void **state) {
  (void)state;
  static const int dtype[] = {MS_NF4, MS_I8};
  static const char *const name[] = {"nf4.back", "i8.back"};
  static const int64_t ranges[][2] = {{0, 19213}, {0, 1}, {63, 2}, {16383, 2}, {777, 18000}, {19212, 1}, {256, 256}};
  ms_safetensors *file;
  int64_t n, same;
  must(ms_safetensors_open(STORED, &file, NULL));
  const float *x = fixture_tensor(file, "x", &n);
  for (int d = 0; d < 2; d++) {
    const float *back = fixture_tensor(file, name[d], &same);
    uint8_t *own = encode(file, dtype[d], x, n);
    ms_storage storage;
    must(ms_storage_find(dtype[d], 0, &storage));
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
      float *read = poisoned(4 * ranges[i][1]);
      ms_storage_decode(&storage, own, ranges[i][0], ranges[i][1], read);
      assert_same(name[d], read, back + ranges[i][0], ranges[i][1], 4);
      assert_guarded(read, 4 * ranges[i][1]);
      free(read);
    }
    free(own);
  }
  ms_free(file);
}

/* The op, to both dtypes that kernels read. */
static void Q7_the_op_gives_the_reference_rounded_to_what_kernels_read(void **state) {
  (void)state;
  static const int storage[] = {MS_NF4, MS_I8, MS_BF16};
  static const char *const name[] = {"nf4.back", "i8.back", NULL};
  ms_safetensors *file;
  int64_t n, same;
  must(ms_safetensors_open(STORED, &file, NULL));
  const float *x = fixture_tensor(file, "x", &n);
  for (int s = 0; s < 3; s++) {
    FOR_EACH(to, dtypes) {
      kernel_case c = case_of(MS_OP_dequantise);
      uint8_t *own = encode(file, storage[s], x, n);
      c.call.attrs.stored.storage = storage[s];
      const ms_value_info words = {.dtype = MS_I32, .ndim = 1, .dims = {words_of(storage[s], n)}};
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
  ms_free(file);
}

static void Q7_dtypes_with_records_are_those_of_the_table_of_dtypes(void **state) {
  (void)state;
  for (int dtype = 0; dtype < MS_DTYPES; dtype++) {
    ms_storage s;
    assert_int_equal(ms_storage_has(dtype), ms_dtype_may(dtype, MS_DTYPE_STORED));
    if (!ms_storage_has(dtype)) continue;
    must(ms_storage_find(dtype, 0, &s));
    const int64_t longest = s.elements;
    if (!s.block) continue;
    assert_int_equal(longest % s.block, 0);
    must(ms_storage_find(dtype, s.block, &s));
    assert_true(s.elements == s.block && s.group == longest);
  }
  assert_false(ms_storage_is_coded(MS_F32) || ms_storage_is_coded(MS_BF16));
  assert_true(ms_storage_is_coded(MS_I8) && ms_storage_is_coded(MS_NF4));
}

static void Q7_calls_that_do_not_fit_are_refused(void **state) {
  (void)state;
  ms_kernel_call call = {.op = MS_OP_dequantise, .inputs = 1, .outputs = 1};
  call.in[0] = (ms_value_info){.dtype = MS_I32, .ndim = 1, .dims = {2116}};
  call.out[0] = (ms_value_info){.dtype = MS_F32, .ndim = 1, .dims = {16385}};
  call.attrs.stored.storage = MS_NF4;
  assert_fails(ms_storage_prepare(&call), MS_ESHAPE, "2116 words");
  call.attrs.stored.storage = MS_I4;
  assert_fails(ms_storage_prepare(&call), MS_EDTYPE, "cannot be stored in i4; they can in bf16, i8 or nf4");
  int64_t elements, words;
  assert_fails(ms_storage_record(MS_F32, 0, &elements, &words), MS_EDTYPE, "cannot be stored in f32");
  must(ms_storage_record(MS_NF4, 0, &elements, &words));
  assert_int_equal(elements, 16384);
  assert_int_equal(words * 4, 8464);
  call.attrs.stored.storage = MS_NF4;
  call.attrs.stored.record = 96;
  assert_fails(ms_storage_prepare(&call), MS_EINVAL, "96");
  assert_fails(ms_storage_record(MS_I8, 5504, &elements, &words), MS_EUNSUPPORTED, "5504");
}

/* Runs that are not whole records of 16384 or 1024 elements have the longest shorter ones that fit. */
static void Q7_records_of_parts_are_as_long_as_the_parts_allow(void **state) {
  (void)state;
  static const struct {
    int dtype;
    int64_t run, elements, bytes;
  } cases[] = {{MS_NF4, 0, 16384, 8464},   {MS_NF4, 3 * 16384, 16384, 8464},
               {MS_NF4, 2048, 2048, 1072}, {MS_NF4, 14336 / 8, 256, 144},
               {MS_NF4, 5504, 128, 80},    {MS_NF4, 64, 64, 48},
               {MS_I8, 0, 1024, 1040},     {MS_I8, 512, 512, 528},
               {MS_I8, 768, 256, 272},     {MS_BF16, 0, 64, 128},
               {MS_BF16, 7, 64, 128}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int64_t elements, words;
    must(ms_storage_record(cases[i].dtype, cases[i].run, &elements, &words));
    assert_int_equal(elements, cases[i].elements);
    assert_int_equal(4 * words, cases[i].bytes);
  }
}

/* Elements of a record that is one of several of a whole one, read by the function and by the op. */
static void assert_reads(int dtype, int64_t elements, const void *records, int64_t n, const float *expected) {
  kernel_case c = case_of(MS_OP_dequantise);
  ms_storage s;
  must(ms_storage_find(dtype, elements, &s));
  const ms_value_info words = {.dtype = MS_I32, .ndim = 1, .dims = {ms_storage_words(&s, n)}};
  const ms_value_info values = {.dtype = MS_F32, .ndim = 1, .dims = {n}};
  c.call.attrs.stored.storage = dtype;
  c.call.attrs.stored.record = elements;
  add_input(&c, words);
  memcpy((void *)c.call.in_data[0], records, (size_t)words.dims[0] * 4);
  add_output(&c, values);
  run_once(&c, c.call, 1);
  for (int64_t i = 0; i < n; i++)
    if (output_at(&c, 0, i) != (double)expected[i])
      fail_msg("%s in records of %d, element %d: %a instead of %a", ms_dtype_name(dtype), (int)elements, (int)i,
               output_at(&c, 0, i), (double)expected[i]);
  free_case(&c);
  float *read = poisoned(4 * n);
  must(ms_storage_read(dtype, elements, records, 0, n, read));
  assert_same("elements", read, expected, n, 4);
  free(read);
}

/* Shorter records mean the same numbers, and become the longer ones again bit for bit. */
static void Q7_records_of_another_length_are_the_same_numbers(void **state) {
  (void)state;
  static const struct {
    int dtype;
    const char *name;
    int64_t elements;
  } cases[] = {{MS_NF4, "nf4.back", 8192},
               {MS_NF4, "nf4.back", 512},
               {MS_NF4, "nf4.back", 64},
               {MS_I8, "i8.back", 512},
               {MS_I8, "i8.back", 256}};
  ms_safetensors *file;
  int64_t n, same;
  must(ms_safetensors_open(STORED, &file, NULL));
  const float *x = fixture_tensor(file, "x", &n);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const int dtype = cases[i].dtype;
    const float *back = fixture_tensor(file, cases[i].name, &same);
    uint8_t *own = encode(file, dtype, x, n);
    ms_storage s, longest;
    must(ms_storage_find(dtype, cases[i].elements, &s));
    must(ms_storage_find(dtype, 0, &longest));
    const size_t bytes = (size_t)ms_storage_words(&s, n) * 4, whole = (size_t)ms_storage_words(&longest, n) * 4;
    uint8_t *shorter = calloc(1, bytes), *again = calloc(1, whole);
    must(ms_storage_copy(dtype, longest.elements, own, 0, n, s.elements, shorter, 0));
    assert_reads(dtype, s.elements, shorter, n, back);
    must(ms_storage_copy(dtype, s.elements, shorter, 0, n, longest.elements, again, 0));
    assert_memory_equal(again, own, whole);
    /* A part that begins inside a longer record. */
    const int64_t first = s.elements, count = n - first < 2 * s.elements ? n - first : 2 * s.elements;
    must(ms_storage_copy(dtype, longest.elements, own, first, count, s.elements, shorter, 0));
    assert_reads(dtype, s.elements, shorter, count, back + first);
    free(shorter);
    free(again);
    free(own);
  }
  ms_free(file);
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
      TEST(Q7_records_of_parts_are_as_long_as_the_parts_allow),
      TEST(Q7_records_of_another_length_are_the_same_numbers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
