/* embedding.c - looks up rows of a table by token, and computes the gradient of the table.
 *
 * Backward sorts the positions by token (a counting sort, which keeps their order), then writes each row of the result
 * once: zeros, or the f32 sum of the row's gradients in the order of positions. The result therefore does not depend on
 * how rows are divided among threads, and the division can follow the load. If there is another gradient of the table
 * (a tied table), rows that have tokens are added to it; it usually shares the result's memory, and then no other row
 * is touched.
 *
 * A table can be divided among ranks. Every token must select a row of the whole table; in forward, tokens of other
 * parts give zeros, and backward skips them.
 */
#include "kernels/cpu/block.h"

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/team.h"
#include "kernels/shape.h"

static int fail_on_token(int32_t token, int64_t position, int64_t rows) {
  return MS_FAIL(MS_EINVAL, "embedding: token %d at position %lld is not in [0,%lld), the rows of the table",
                 (int)token, (long long)position, (long long)rows);
}

static int check_tokens(const int32_t *tokens, int64_t n, int64_t rows) {
  for (int64_t i = 0; i < n; i++)
    if (tokens[i] < 0 || tokens[i] >= rows) return fail_on_token(tokens[i], i, rows);
  return MS_OK;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* y [n][D] = rows of w [V][D] selected by tokens i32 [n]. */
static void forward_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  const int32_t *tokens = call->in_data[1];
  const int64_t row_bytes = ms_row_length(&call->in[0]) * ms_dtype_size(call->in[0].dtype);
  const int64_t rows = call->in[0].dims[0], first = call->attrs.table.first;
  (void)part;
  for (int64_t i = begin; i < end; i++) {
    const int64_t row = tokens[i] - first;
    char *y = (char *)call->out_data[0] + i * row_bytes;
    if (row >= 0 && row < rows) memcpy(y, (const char *)call->in_data[0] + row * row_bytes, (size_t)row_bytes);
    else memset(y, 0, (size_t)row_bytes);
  }
}

static int run_forward(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->in[1]), bytes = 2 * ms_numel(&call->out[0]) * ms_dtype_size(call->out[0].dtype);
  const int64_t rows = call->in[0].dims[0] * ms_table_parts(&call->attrs);
  MS_TRY(check_tokens(call->in_data[1], n, call->attrs.table.rows ? call->attrs.table.rows : rows));
  ms_run_parts(call, ms_part_count(call, n, bytes), n, 1, forward_part);
  return MS_OK;
}

const ms_kernel ms_cpu_embedding = {.run = run_forward};

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* In the workspace: the first position of each row, the positions sorted by row, and an f32 row per part. */
typedef struct sorted_tokens {
  int64_t *start;    /* [rows + 1] */
  int64_t *position; /* [n] */
  float *sums;       /* [parts][stride] */
  int64_t stride;
} sorted_tokens;

static int64_t round_up(int64_t n) { return (n + 15) / 16 * 16; }

static sorted_tokens workspace_of(const ms_kernel_call *call) {
  const int64_t rows = call->out[0].dims[0], n = ms_numel(&call->in[0]);
  sorted_tokens sorted = {.stride = round_up(call->out[0].dims[1])};
  sorted.start = call->workspace;
  sorted.position = sorted.start + round_up(rows + 1);
  sorted.sums = (float *)(sorted.position + round_up(n));
  return sorted;
}

static int prepare_backward(ms_kernel_call *call) {
  const int64_t rows = call->out[0].dims[0], columns = call->out[0].dims[1], n = ms_numel(&call->in[0]);
  call->workspace_bytes = (round_up(rows + 1) + round_up(n)) * (int64_t)sizeof(int64_t) +
                          call->threads * round_up(columns) * (int64_t)sizeof(float);
  return MS_OK;
}

/* Counting sort of the tokens of rows [first, first + rows). At the end start[r] is the index in position[] of the
 * first position of row first + r. */
static void sort_positions(const sorted_tokens *sorted, const int32_t *tokens, int64_t n, int64_t first, int64_t rows) {
  memset(sorted->start, 0, (size_t)(rows + 1) * sizeof *sorted->start);
  for (int64_t i = 0; i < n; i++)
    if (tokens[i] >= first && tokens[i] - first < rows) sorted->start[tokens[i] - first + 1]++;
  for (int64_t r = 0; r < rows; r++) sorted->start[r + 1] += sorted->start[r];
  for (int64_t i = 0; i < n; i++)
    if (tokens[i] >= first && tokens[i] - first < rows) sorted->position[sorted->start[tokens[i] - first]++] = i;
  for (int64_t r = rows; r > 0; r--) sorted->start[r] = sorted->start[r - 1];
  sorted->start[0] = 0;
}

/* sum[n] += dy[first .. first + n) */
MS_INLINE void add_row(float *restrict sum, const void *dy, int bf16, int64_t first, int64_t n) {
  if (bf16) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) sum[i] += ms_from_bf16(((const ms_bf16 *)dy)[first + i]);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) sum[i] += ((const float *)dy)[first + i];
  }
}

/* y[first .. first + n) += x[n], with x first rounded to y's dtype. */
MS_INLINE void add_to_row(void *y, int dtype, int64_t first, int64_t n, const float *x) {
  if (dtype == MS_BF16) {
    ms_bf16 *row = (ms_bf16 *)y + first;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) row[i] = ms_to_bf16(ms_from_bf16(row[i]) + ms_from_bf16(ms_to_bf16(x[i])));
  } else {
    float *row = (float *)y + first;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) row[i] += x[i];
  }
}

static void copy_rows(const ms_kernel_call *call, int64_t begin, int64_t end) {
  const int64_t row_bytes = call->out[0].dims[1] * ms_dtype_size(call->out[0].dtype);
  memcpy((char *)call->out_data[0] + begin * row_bytes, (const char *)call->in_data[2] + begin * row_bytes,
         (size_t)((end - begin) * row_bytes));
}

/* Computes rows [begin, end) of dw [rows][D] from dy [n][D]. */
MS_CLONES static void sum_rows(const ms_kernel_call *call, const sorted_tokens *sorted, int part, int64_t begin,
                               int64_t end) {
  const int64_t columns = call->out[0].dims[1];
  const int out = call->out[0].dtype, adds = call->inputs == 3;
  float *buffer = sorted->sums + part * sorted->stride;
  if (adds && call->in_data[2] != call->out_data[0]) copy_rows(call, begin, end);
  for (int64_t r = begin; r < end; r++) {
    if (adds && sorted->start[r] == sorted->start[r + 1]) continue;
    float *sum = adds ? buffer : ms_block_out(call->out_data[0], out, r * columns, buffer);
    ms_block_fill(sum, 0.0f, columns);
    for (int64_t i = sorted->start[r]; i < sorted->start[r + 1]; i++)
      add_row(sum, call->in_data[1], call->in[1].dtype == MS_BF16, sorted->position[i] * columns, columns);
    if (adds) add_to_row(call->out_data[0], out, r * columns, columns, buffer);
    else ms_block_done(call->out_data[0], out, r * columns, columns, buffer);
  }
}

/* The first row of part `part`: parts have about equal numbers of rows plus tokens. */
static int64_t cut(const sorted_tokens *sorted, int64_t rows, int64_t n, int part, int parts) {
  int64_t low = 0, high = rows, share = (rows + n) * part / parts;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (middle + sorted->start[middle] < share) low = middle + 1;
    else high = middle;
  }
  return low;
}

typedef struct backward {
  const ms_kernel_call *call;
  sorted_tokens sorted;
  int64_t rows, n;
  int parts;
} backward;

static void run_backward_part(void *context, int part) {
  const backward *b = context;
  const int64_t begin = cut(&b->sorted, b->rows, b->n, part, b->parts);
  const int64_t end = part + 1 < b->parts ? cut(&b->sorted, b->rows, b->n, part + 1, b->parts) : b->rows;
  sum_rows(b->call, &b->sorted, part, begin, end);
}

static int run_backward(const ms_kernel_call *call) {
  backward b = {call, workspace_of(call), call->out[0].dims[0], ms_numel(&call->in[0]), 1};
  b.parts = ms_part_count(call, b.rows, ms_call_bytes(call));
  MS_TRY(check_tokens(call->in_data[0], b.n, b.rows * ms_table_parts(&call->attrs)));
  sort_positions(&b.sorted, call->in_data[0], b.n, call->attrs.table.first, b.rows);
  b.n = b.sorted.start[b.rows];
  ms_team_run(b.parts, run_backward_part, &b);
  return MS_OK;
}

const ms_kernel ms_cpu_embedding_backward = {
    .prepare = prepare_backward, .run = run_backward, .in_place = MS_OVER(0, 2)};
