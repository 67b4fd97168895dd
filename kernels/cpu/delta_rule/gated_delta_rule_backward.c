/* gated_delta_rule_backward.c - the gradient of the gated delta rule, from dy and that of the state after a chunk, dS,
 * with z for the gradient of x (kernels/gated_delta_rule.h):
 *
 *   du_j = sum over i >= j of P_ij dy_i + e^{c_n - c_j} dS' k_j
 *   z_j = beta_j w_j,  dv_j = z_j,  dbeta_j = w_j' x_j,  w_j = du_j - sum over i > j of M_ij z_i
 *   dM_ij = -z_i' u_j,  dP_ij = dy_i' u_j, and through the products in M, P, the state and y to q, k and c
 *   dS <- e^{c_n} dS + sum over i of e^{c_i} (scale q_i dy_i' - k_i z_i')
 */
#include "kernels/cpu/delta_rule/delta_chunk.h"

enum { C = MS_DELTA_CHUNK };

static int64_t begin_of_chunk(const ms_kernel_call *call, const ms_delta_rule *r, int64_t b, int64_t end) {
  int64_t first = end - 1;
  while (first % C && !ms_delta_begins_document(call, r, b, first)) first--;
  return first;
}

/* The state before each chunk that begins at a multiple of C. */
static void keep_states(const ms_kernel_call *call, const ms_delta_rule *r, int64_t b, int64_t h,
                        const ms_delta_scratch *s) {
  const int64_t n = r->d * r->e;
  ms_block_fill(s->state, 0.0f, n);
  for (int64_t first = 0, end; first < r->t; first = end) {
    end = ms_delta_end_of_chunk(call, r, b, first);
    const ms_delta_chunk at = {b, h, h / (r->heads / r->groups), first, end - first};
    if (first % C == 0) memcpy(s->states + first / C * n, s->state, sizeof(float) * (size_t)n);
    if (ms_delta_begins_document(call, r, b, first)) ms_block_fill(s->state, 0.0f, n);
    ms_delta_load(call, r, &at, s);
    ms_delta_solve(r, &at, s);
    ms_delta_update_state(r, &at, s);
  }
}

/* z and dbeta */
static void solve_back(const ms_delta_rule *r, const ms_delta_chunk *at, const ms_delta_scratch *s) {
  const int64_t n = at->n;
  const float last = s->c[n - 1];
  for (int64_t j = n - 1; j >= 0; j--) {
    float *z = s->z + j * r->e;
    ms_block_fill(z, 0.0f, r->e);
    ms_delta_add_rows(z, ms_exp(last - s->c[j]), s->k + j * r->d, 1, s->dstate, r->d, r->e);
    ms_delta_add_rows(z, 1.0f, s->p + j * C + j, C, s->dy + j * r->e, n - j, r->e);
    ms_delta_add_rows(z, -1.0f, s->m + (j + 1) * C + j, C, s->z + (j + 1) * r->e, n - 1 - j, r->e);
    s->dbeta[j] = ms_delta_dot(z, s->x + j * r->e, r->e);
    ms_delta_scale(z, s->beta[j], r->e);
  }
}

/* The gradients of the products k k' and q k' in M and P, and what c has through their decay. */
static void products_back(const ms_delta_rule *r, const ms_delta_chunk *at, const ms_delta_scratch *s) {
  ms_delta_transpose(s->turned, s->u, at->n, r->e);
  ms_delta_pairs(s->dm, s->z, s->turned, at->n, r->e);
  ms_delta_pairs(s->dp, s->dy, s->turned, at->n, r->e);
  for (int64_t i = 0; i < at->n; i++) {
    ms_delta_decays(s->decay, s->c[i], s->c, i + 1);
    for (int64_t j = 0; j <= i; j++) {
      const float dm = j < i ? -s->dm[i * C + j] : 0.0f, dp = s->dp[i * C + j];
      const float through = (j < i ? dm * s->m[i * C + j] : 0.0f) + dp * s->p[i * C + j];
      s->dc[i] += through;
      s->dc[j] -= through;
      s->dm[i * C + j] = dm * s->decay[j];
      s->dp[i * C + j] = dp * s->decay[j] * r->scale;
    }
  }
}

/* to [d] += factor x v, of x [d][e], which is transposed in s->turned, and v [e]; returns what is added times `with`.
 */
static float add_columns(float *to, float factor, const float *v, const float *with, const ms_delta_rule *r,
                         const ms_delta_scratch *s) {
  const float one = 1.0f;
  ms_block_fill(s->row, 0.0f, r->d);
  ms_delta_add_rows(s->row, factor, v, 1, s->turned, r->e, r->d);
  ms_delta_add_rows(to, 1.0f, &one, 1, s->row, 1, r->d);
  return ms_delta_dot(s->row, with, r->d);
}

/* Adds to dq and dk of the key head, and to c what it has through the states. */
static void keys_back(const ms_delta_rule *r, const ms_delta_chunk *at, const ms_delta_scratch *s) {
  const int64_t n = at->n;
  const float last = s->c[n - 1];
  ms_delta_transpose(s->turned, s->state, r->d, r->e);
  for (int64_t i = 0; i < n; i++) {
    const float grown = ms_exp(s->c[i]);
    const int64_t key = (at->first + i) * r->d;
    s->dc[i] += add_columns(s->dq + key, r->scale * grown, s->dy + i * r->e, s->q + i * r->d, r, s);
    s->dc[i] += add_columns(s->dk + key, -grown, s->z + i * r->e, s->k + i * r->d, r, s);
  }
  ms_delta_transpose(s->turned, s->dstate, r->d, r->e);
  for (int64_t i = 0; i < n; i++) {
    float *dq = s->dq + (at->first + i) * r->d, *dk = s->dk + (at->first + i) * r->d;
    const float through = add_columns(dk, ms_exp(last - s->c[i]), s->u + i * r->e, s->k + i * r->d, r, s);
    s->dc[n - 1] += through;
    s->dc[i] -= through;
    ms_delta_add_rows(dq, 1.0f, s->dp + i * C, 1, s->k, i + 1, r->d);
    ms_delta_add_rows(dk, 1.0f, s->dm + i * C, 1, s->k, i, r->d);
    ms_delta_add_rows(dk, 1.0f, s->dm + (i + 1) * C + i, C, s->k + (i + 1) * r->d, n - 1 - i, r->d);
    ms_delta_add_rows(dk, 1.0f, s->dp + i * C + i, C, s->q + i * r->d, n - i, r->d);
  }
}

/* The gradient of the state before the chunk, in place of that of the state after it. */
static void state_back(const ms_delta_rule *r, const ms_delta_chunk *at, const ms_delta_scratch *s) {
  const float kept = ms_exp(s->c[at->n - 1]);
  s->dc[at->n - 1] += kept * ms_delta_dot(s->state, s->dstate, r->d * r->e);
  ms_delta_scale(s->dstate, kept, r->d * r->e);
  ms_delta_weigh(r, at, s, s->q, NULL);
  for (int64_t d = 0; d < r->d; d++)
    ms_delta_add_rows(s->dstate + d * r->e, r->scale, s->weighted + d, r->d, s->dy, at->n, r->e);
  ms_delta_weigh(r, at, s, s->k, NULL);
  for (int64_t d = 0; d < r->d; d++)
    ms_delta_add_rows(s->dstate + d * r->e, -1.0f, s->weighted + d, r->d, s->z, at->n, r->e);
}

static void store_at(const ms_kernel_call *call, int output, int64_t at, float value) {
  ms_simd_store(call->out_data[output], at, value, call->out[output].dtype == MS_BF16);
}

/* dv, dg and dbeta; g is in the c of all positions from its own on. */
static void write_gradients(const ms_kernel_call *call, const ms_delta_rule *r, const ms_delta_chunk *at,
                            const ms_delta_scratch *s) {
  float sum = 0.0f;
  for (int64_t i = at->n - 1; i >= 0; i--) {
    const int64_t head = ms_delta_row_at(r, at, i) * r->heads + at->h;
    sum += s->dc[i];
    store_at(call, MS_DELTA_G, head, sum);
    store_at(call, MS_DELTA_BETA, head, s->dbeta[i]);
    if (call->out[MS_DELTA_V].dtype == MS_F32)
      memcpy((float *)call->out_data[MS_DELTA_V] + head * r->e, s->z + i * r->e, sizeof(float) * (size_t)r->e);
    else ms_narrow((ms_bf16 *)call->out_data[MS_DELTA_V] + head * r->e, s->z + i * r->e, r->e);
  }
}

void ms_delta_backward_of_head(const ms_kernel_call *call, const ms_delta_rule *r, int64_t b, int64_t h,
                               const ms_delta_scratch *s) {
  const int64_t n = r->d * r->e;
  keep_states(call, r, b, h, s);
  ms_block_fill(s->dstate, 0.0f, n);
  for (int64_t end = r->t, first; end > 0; end = first) {
    first = begin_of_chunk(call, r, b, end);
    const ms_delta_chunk at = {b, h, h / (r->heads / r->groups), first, end - first};
    const int begins = ms_delta_begins_document(call, r, b, first);
    if (begins) ms_block_fill(s->state, 0.0f, n);
    else memcpy(s->state, s->states + first / C * n, sizeof(float) * (size_t)n);
    ms_delta_load(call, r, &at, s);
    ms_delta_solve(r, &at, s);
    for (int64_t i = 0; i < at.n; i++)
      ms_widen(call->in_data[MS_DELTA_DY], call->in[MS_DELTA_DY].dtype,
               (ms_delta_row_at(r, &at, i) * r->heads + h) * r->e, r->e, s->dy + i * r->e);
    ms_block_fill(s->dc, 0.0f, C);
    solve_back(r, &at, s);
    products_back(r, &at, s);
    keys_back(r, &at, s);
    state_back(r, &at, s);
    write_gradients(call, r, &at, s);
    if (begins) ms_block_fill(s->dstate, 0.0f, n);
  }
}

void ms_delta_write_keys(const ms_kernel_call *call, const ms_delta_rule *r, int64_t b, int64_t group,
                         const ms_delta_scratch *s) {
  for (int output = MS_DELTA_Q; output <= MS_DELTA_K; output++)
    for (int64_t i = 0; i < r->t; i++) {
      const float *from = (output == MS_DELTA_Q ? s->dq : s->dk) + i * r->d;
      const int64_t to = ((b * r->t + i) * r->groups + group) * r->d;
      if (call->out[output].dtype == MS_F32)
        memcpy((float *)call->out_data[output] + to, from, sizeof(float) * (size_t)r->d);
      else ms_narrow((ms_bf16 *)call->out_data[output] + to, from, r->d);
    }
}
