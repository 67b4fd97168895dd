/* safetensors_elements.c - reads and writes stored tensors: their bytes, or f32 through a view, in stored order or as a
 * transposed matrix.
 *
 * Parameters are f32 in memory and of any floating type in a file, where a weight can be transposed, or adjacent to
 * others in one tensor. Both directions move only the requested elements: a transposed view is one run of the file
 * per column, and sixteen columns are processed at a time, so that both sides are accessed in whole cache lines.
 */
#include "base/config.h"
#include "base/numbers/dtype.h"
#include "base/error.h"
#include "base/handle.h"
#include "io/safetensors/safetensors.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 16, TILE = 16 }; /* elements converted at a time; columns of a transposed view */

/* Those that the engine has are converted by its table of dtypes. */
enum { F32, F16, BF16, F64, F8_E4M3, F8_E5M2, F8_E8M0, KINDS, NONE = -1 };

static const struct {
  const char *name;
  int bytes, dtype;
} kinds[KINDS] = {{"F32", 4, MS_F32},        {"F16", 2, NONE},          {"BF16", 2, MS_BF16},   {"F64", 8, NONE},
                  {"F8_E4M3", 1, MS_F8E4M3}, {"F8_E5M2", 1, MS_F8E5M2}, {"F8_E8M0", 1, MS_E8M0}};

/* ---- element types ---- */

static float of_bits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

static uint32_t bits_of(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits;
}

/* IEEE 754 binary16: a multiplication adjusts the exponent, which also handles subnormals. */
static float from_f16(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = (uint32_t)(h & 0x7fffu) << 13;
  if ((h & 0x7c00u) == 0x7c00u) return of_bits(sign | 0x7f800000u | rest);
  return of_bits(sign | bits_of(of_bits(rest) * 0x1p112f));
}

/* Round to nearest, ties to even; adding 1/2, whose last bit is worth 2^-24, rounds subnormals. */
static uint16_t to_f16(float f) {
  const uint32_t x = bits_of(f) & 0x7fffffffu, sign = (bits_of(f) >> 16) & 0x8000u;
  if (x > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((x >> 13) & 0x3ffu));
  if (x >= 0x47800000u) return (uint16_t)(sign | 0x7c00u);
  if (x < 0x38800000u) return (uint16_t)(sign | (bits_of(of_bits(x) + 0.5f) - 0x3f000000u));
  return (uint16_t)(sign | ((x + 0xc8000fffu + ((x >> 13) & 1u)) >> 13));
}

/* from: n elements of a kind, at any address */
static void widen(int kind, const uint8_t *from, int64_t n, float *to) {
  if (kinds[kind].dtype != NONE) {
    ms_dtype_row_of(kinds[kind].dtype)->widen(from, n, to);
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    uint16_t half;
    double twice;
    if (kind == F64) {
      memcpy(&twice, from + 8 * i, 8);
      to[i] = (float)twice;
    } else {
      memcpy(&half, from + 2 * i, 2);
      to[i] = from_f16(half);
    }
  }
}

static void narrow(int kind, const float *from, int64_t n, uint8_t *to) {
  if (kinds[kind].dtype != NONE) {
    ms_dtype_row_of(kinds[kind].dtype)->narrow(from, n, to);
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    const double twice = (double)from[i];
    const uint16_t half = to_f16(from[i]);
    if (kind == F64) memcpy(to + 8 * i, &twice, 8);
    else memcpy(to + 2 * i, &half, 2);
  }
}

/* ---- runs of a file ---- */

/* The source or destination of elements, in one direction. */
typedef struct stream {
  const ms_safetensors *file; /* source of reads; NULL: writes go to `writer` */
  ms_safetensors_writer *writer;
  int tensor, kind;
  uint8_t *piece; /* [PIECE] elements of the kind */
  int64_t bytes;  /* moved so far */
} stream;

/* Elements [at, at + n) of the tensor; memory is an output when reading. */
static int move_run(stream *s, int64_t at, int64_t n, float *memory) {
  const int64_t size = kinds[s->kind].bytes;
  s->bytes += n * size;
  if (s->kind == F32)
    return s->file ? ms_st_read(s->file, s->tensor, at * size, n * size, memory)
                   : ms_st_write(s->writer, s->tensor, at * size, n * size, memory);
  for (int64_t done = 0; done < n; done += PIECE) {
    const int64_t length = n - done < PIECE ? n - done : PIECE;
    if (s->file) {
      MS_TRY(ms_st_read(s->file, s->tensor, (at + done) * size, length * size, s->piece));
      widen(s->kind, s->piece, length, memory + done);
    } else {
      narrow(s->kind, memory + done, length, s->piece);
      MS_TRY(ms_st_write(s->writer, s->tensor, (at + done) * size, length * size, s->piece));
    }
  }
  return MS_OK;
}

/* ---- views ---- */

/* The first row whose element in this column is element `from` of the view or a later one. */
static int64_t row_at(const ms_safetensors_view *v, int64_t from, int64_t column) {
  return from <= column ? 0 : (from - column + v->columns - 1) / v->columns;
}

/* Elements [first, first + count) of a view; `memory` begins with element `first`. */
typedef struct span {
  const ms_safetensors_view *view;
  int64_t first, count;
  float *memory;
} span;

/* Rows in sequence, one run each; a single run if the rows are contiguous. */
static int move_rows(stream *s, const span *p) {
  const ms_safetensors_view *v = p->view;
  if (v->rows == 1 || v->row_stride == v->columns) return move_run(s, v->first + p->first, p->count, p->memory);
  for (int64_t done = 0; done < p->count;) {
    const int64_t row = (p->first + done) / v->columns, column = (p->first + done) % v->columns;
    const int64_t left = v->columns - column, n = left < p->count - done ? left : p->count - done;
    MS_TRY(move_run(s, v->first + row * v->row_stride + column, n, p->memory + done));
    done += n;
  }
  return MS_OK;
}

/* Columns c to c + n of part of a transposed view, each one run of the file; tile: [n][rows], rows from
 * row `base` on */
static int move_columns(stream *s, const span *p, int64_t c, int64_t n, float *tile, int64_t rows, int64_t base) {
  for (int64_t k = 0; k < n; k++) {
    const int64_t begin = row_at(p->view, p->first, c + k), end = row_at(p->view, p->first + p->count, c + k);
    const int64_t at = p->view->first + begin + (c + k) * p->view->column_stride;
    if (begin < end) MS_TRY(move_run(s, at, end - begin, tile + k * rows + begin - base));
  }
  return MS_OK;
}

/* Copies between the tile of those columns and the rows of memory. */
static void turn_tile(const stream *s, const span *p, int64_t c, int64_t n, float *tile, int64_t rows, int64_t base) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t k = 0; k < n; k++) {
      const int64_t at = (base + r) * p->view->columns + c + k - p->first;
      if (at < 0 || at >= p->count) continue;
      if (s->file) p->memory[at] = tile[k * rows + r];
      else tile[k * rows + r] = p->memory[at];
    }
}

static int move_transposed(stream *s, const span *p) {
  const int64_t columns = p->view->columns, base = p->first / columns;
  const int64_t rows = (p->first + p->count + columns - 1) / columns - base;
  float *tile = ms_calloc(TILE * rows, sizeof *tile);
  int rc = tile ? MS_OK : MS_ENOMEM;
  for (int64_t c = 0; !rc && c < columns; c += TILE) {
    const int64_t n = columns - c < TILE ? columns - c : TILE;
    if (!s->file) turn_tile(s, p, c, n, tile, rows, base);
    rc = move_columns(s, p, c, n, tile, rows, base);
    if (!rc && s->file) turn_tile(s, p, c, n, tile, rows, base);
  }
  free(tile);
  return rc;
}

/* ---- the public calls ---- */

/* Checks that the view's last element is in the tensor; strides are positive, so all others are too. */
static int check_view(const ms_safetensors_view *v, int64_t elements, int64_t first, int64_t count) {
  int64_t last_row, last_column, last;
  if (v->rows < 1 || v->columns < 1 || v->first < 0 || v->row_stride < 1 || v->column_stride < 1)
    return MS_FAIL(MS_EINVAL,
                   "a view of %lld x %lld from element %lld with strides %lld, %lld: sizes and strides are "
                   "at least 1",
                   (long long)v->rows, (long long)v->columns, (long long)v->first, (long long)v->row_stride,
                   (long long)v->column_stride);
  if (v->row_stride != 1 && v->column_stride != 1)
    return MS_FAIL(MS_EUNSUPPORTED, "a view with strides %lld, %lld: one of them must be 1", (long long)v->row_stride,
                   (long long)v->column_stride);
  if (__builtin_mul_overflow(v->rows - 1, v->row_stride, &last_row) ||
      __builtin_mul_overflow(v->columns - 1, v->column_stride, &last_column) ||
      __builtin_add_overflow(last_row, last_column, &last) || __builtin_add_overflow(last, v->first, &last) ||
      last >= elements)
    return MS_FAIL(MS_ESHAPE,
                   "a view of %lld x %lld from element %lld ends outside the tensor, which has %lld elements",
                   (long long)v->rows, (long long)v->columns, (long long)v->first, (long long)elements);
  if (first < 0 || count < 0 || first > v->rows * v->columns || count > v->rows * v->columns - first)
    return MS_FAIL(MS_EINVAL, "cannot access %lld elements from element %lld: the view has %lld", (long long)count,
                   (long long)first, (long long)(v->rows * v->columns));
  return MS_OK;
}

static int find_kind(const char *dtype, int *kind) {
  for (*kind = 0; *kind < KINDS; ++*kind)
    if (!strcmp(kinds[*kind].name, dtype)) return MS_OK;
  return MS_FAIL(MS_EDTYPE,
                 "elements of type %s; only F32, BF16, F16, F64, F8_E4M3, F8_E5M2 and F8_E8M0 can be read and written "
                 "as f32",
                 dtype);
}

static int check(stream *s, const ms_safetensors_tensor *t, const span *p) {
  MS_TRY(find_kind(t->dtype, &s->kind));
  return check_view(p->view, t->elements, p->first, p->count);
}

/* A view that says nothing is one of all elements, in stored order. */
static int is_whole(const ms_safetensors_view *v) {
  return !v->rows && !v->columns && !v->first && !v->row_stride && v->column_stride == 1;
}

static int move(stream *s, const ms_safetensors_tensor *t, const ms_safetensors_view *given, span p) {
  char quoted[MS_ST_QUOTED];
  MS_TAKE_CONFIG(ms_safetensors_view, view, given);
  if (!p.count) return MS_OK;
  if (is_whole(&view)) view.rows = view.row_stride = 1, view.columns = t->elements;
  p.view = &view;
  if (check(s, t, &p)) return ms_error_prefix("%s: tensor %s", t->file, ms_st_quote(t->name, quoted));
  if (!(s->piece = ms_calloc(p.count < PIECE ? p.count : PIECE, kinds[s->kind].bytes))) return MS_ENOMEM;
  int rc = p.view->column_stride == 1 ? move_rows(s, &p) : move_transposed(s, &p);
  free(s->piece);
  return rc;
}

int ms_safetensors_read(const ms_safetensors *st, int i, const ms_safetensors_view *view, int64_t first, int64_t count,
                        void *out, int64_t *bytes) {
  MS_HANDLE(st, SAFETENSORS);
  if (count > 0) MS_GIVEN(out);
  ms_safetensors_tensor t;
  stream s = {.file = st, .tensor = i, .bytes = view ? 0 : count};
  if (view) {
    MS_TRY(ms_safetensors_describe(st, i, &t, sizeof t));
    MS_TRY(move(&s, &t, view, (span){.first = first, .count = count, .memory = out}));
  } else {
    MS_TRY(ms_st_read(st, i, first, count, out));
  }
  if (bytes) *bytes = s.bytes;
  return MS_OK;
}

/* Memory of a span that is written to a file is only read. */
int ms_safetensors_write(ms_safetensors_writer *writer, int i, const ms_safetensors_view *view, int64_t first,
                         int64_t count, const void *data) {
  MS_HANDLE(writer, SAFETENSORS_WRITER);
  if (count > 0) MS_GIVEN(data);
  if (!view) return ms_st_write(writer, i, first, count, data);
  ms_safetensors_tensor t;
  stream s = {.writer = writer, .tensor = i};
  MS_TRY(ms_st_declared(writer, i, &t));
  return move(&s, &t, view, (span){.first = first, .count = count, .memory = (float *)(uintptr_t)data});
}
