/* delta_chunk.c - a chunk of the gated delta rule: its inputs, x and u, and the state after it (see the header).
 * Products are sums of rows of a matrix, of which the second one is transposed where needed.
 */
#include "kernels/cpu/delta_rule/delta_chunk.h"

enum { C = MS_DELTA_CHUNK };

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* to[n] += factor (a[0] x[0] + a[step] x[1] + ...), of `rows` rows x [n]. */
MS_CLONES void ms_delta_add_rows(float *restrict to, float factor, const float *a, int64_t step,
                                 const float *restrict x, int64_t rows, int64_t n) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const float a0 = factor * a[r * step], a1 = factor * a[(r + 1) * step], a2 = factor * a[(r + 2) * step],
                a3 = factor * a[(r + 3) * step];
    const float *x0 = x + r * n, *x1 = x0 + n, *x2 = x1 + n, *x3 = x2 + n;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] += (a0 * x0[i] + a1 * x1[i]) + (a2 * x2[i] + a3 * x3[i]);
  }
  for (; r < rows; r++) {
    const float only = factor * a[r * step];
    const float *own = x + r * n;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] += only * own[i];
  }
}

MS_CLONES float ms_delta_dot(const float *a, const float *b, int64_t n) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
  return sum;
}

/* decay[j] = e^{from - c_j} */
MS_CLONES void ms_delta_decays(float *decay, float from, const float *c, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; j++) decay[j] = ms_exp(from - c[j]);
}

/* to [columns][rows] of x [rows][columns] */
void ms_delta_transpose(float *to, const float *x, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) to[j * rows + i] = x[i * columns + j];
}

/* to[i][j] = a_i' b_j for all i and j of n rows [length]; turned: b [length][n] */
void ms_delta_pairs(float *to, const float *a, const float *turned, int64_t n, int64_t length) {
  for (int64_t i = 0; i < n; i++) {
    memset(to + i * C, 0, sizeof(float) * (size_t)n);
    ms_delta_add_rows(to + i * C, 1.0f, a + i * length, 1, turned, length, n);
  }
}

void ms_delta_scale(float *x, float factor, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) x[i] *= factor;
}

/* ---- a chunk ----------------------------------------------------------------------------------------------------- */

int64_t ms_delta_row_at(const ms_delta_rule *r, const ms_delta_chunk *at, int64_t i) {
  return at->b * r->t + at->first + i;
}

/* Where the document of a position begins: 1 at its first. */
int ms_delta_begins_document(const ms_kernel_call *call, const ms_delta_rule *r, int64_t b, int64_t position) {
  return r->tokens >= 0 && ((const int32_t *)call->in_data[r->tokens])[b * r->t + position] == r->start;
}

int64_t ms_delta_end_of_chunk(const ms_kernel_call *call, const ms_delta_rule *r, int64_t b, int64_t first) {
  int64_t end = first + 1;
  while (end < r->t && end % C && !ms_delta_begins_document(call, r, b, end)) end++;
  return end;
}

void ms_delta_load(const ms_kernel_call *call, const ms_delta_rule *r, const ms_delta_chunk *at,
                   const ms_delta_scratch *s) {
  float sum = 0.0f;
  for (int64_t i = 0; i < at->n; i++) {
    const int64_t row = ms_delta_row_at(r, at, i), key = (row * r->groups + at->group) * r->d,
                  head = row * r->heads + at->h;
    ms_widen(call->in_data[MS_DELTA_Q], call->in[MS_DELTA_Q].dtype, key, r->d, s->q + i * r->d);
    ms_widen(call->in_data[MS_DELTA_K], call->in[MS_DELTA_K].dtype, key, r->d, s->k + i * r->d);
    ms_widen(call->in_data[MS_DELTA_V], call->in[MS_DELTA_V].dtype, head * r->e, r->e, s->x + i * r->e);
    sum += ms_scalar_at(call->in_data[MS_DELTA_G], call->in[MS_DELTA_G].dtype, head);
    s->c[i] = sum;
    s->beta[i] = ms_scalar_at(call->in_data[MS_DELTA_BETA], call->in[MS_DELTA_BETA].dtype, head);
  }
}

/* M below its diagonal and P with its own, which have other numbers elsewhere, x and u. */
void ms_delta_solve(const ms_delta_rule *r, const ms_delta_chunk *at, const ms_delta_scratch *s) {
  ms_delta_transpose(s->turned, s->k, at->n, r->d);
  ms_delta_pairs(s->m, s->k, s->turned, at->n, r->d);
  ms_delta_pairs(s->p, s->q, s->turned, at->n, r->d);
  for (int64_t i = 0; i < at->n; i++) {
    const float *k = s->k + i * r->d;
    float *x = s->x + i * r->e, *u = s->u + i * r->e;
    ms_delta_decays(s->decay, s->c[i], s->c, i + 1);
    for (int64_t j = 0; j <= i; j++) {
      s->m[i * C + j] *= s->decay[j];
      s->p[i * C + j] *= r->scale * s->decay[j];
    }
    ms_delta_add_rows(x, -ms_exp(s->c[i]), k, 1, s->state, r->d, r->e);
    ms_delta_add_rows(x, -1.0f, s->m + i * C, 1, s->u, i, r->e);
#pragma omp simd
    for (int64_t e = 0; e < r->e; e++) u[e] = s->beta[i] * x[e];
  }
}

/* rows of x [d], each times e^{from - c_i} or, without from, e^{c_i}. */
void ms_delta_weigh(const ms_delta_rule *r, const ms_delta_chunk *at, const ms_delta_scratch *s, const float *x,
                    const float *from) {
  for (int64_t i = 0; i < at->n; i++) {
    const float factor = ms_exp(from ? *from - s->c[i] : s->c[i]);
#pragma omp simd
    for (int64_t d = 0; d < r->d; d++) s->weighted[i * r->d + d] = factor * x[i * r->d + d];
  }
}

void ms_delta_update_state(const ms_delta_rule *r, const ms_delta_chunk *at, const ms_delta_scratch *s) {
  const float *last = &s->c[at->n - 1], kept = ms_exp(*last);
  ms_delta_weigh(r, at, s, s->k, last);
  for (int64_t d = 0; d < r->d; d++) {
    ms_delta_scale(s->state + d * r->e, kept, r->e);
    ms_delta_add_rows(s->state + d * r->e, 1.0f, s->weighted + d, r->d, s->u, at->n, r->e);
  }
}
