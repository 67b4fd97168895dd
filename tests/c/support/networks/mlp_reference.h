/* mlp_reference.h - the network of mlp.h on one processor in double, written out by hand: forward, backward, AdamW. */
#ifndef MS_TESTS_MLP_REFERENCE_H
#define MS_TESTS_MLP_REFERENCE_H

#include "tests/c/support/networks/mlp_training.h"

#include <math.h>
#include <stdlib.h>

enum { REFERENCE_BLOCKS = 8 };

typedef struct reference {
  training_config config;
  int64_t at[TRAINING_PARAMS]; /* first element of each parameter */
  int64_t n;
  double w[TRAINING_ELEMENTS], g[TRAINING_ELEMENTS], m[TRAINING_ELEMENTS], v[TRAINING_ELEMENTS];
} reference;

/* y [rows,out] = x [rows,in] w' + b; w [out,in], b [out] or NULL */
static inline void ref_linear(int rows, int in, int out, const double *x, const double *w, const double *b, double *y) {
  for (int r = 0; r < rows; r++)
    for (int o = 0; o < out; o++) {
      double sum = b ? b[o] : 0;
      for (int i = 0; i < in; i++) sum += x[r * in + i] * w[o * in + i];
      y[r * out + o] = sum;
    }
}

/* Adds to dw, db and dx what dy [rows,out] gives; db and dx may be NULL. */
static inline void ref_linear_backward(int rows, int in, int out, const double *x, const double *w, const double *dy,
                                       double *dw, double *db, double *dx) {
  for (int r = 0; r < rows; r++)
    for (int o = 0; o < out; o++) {
      double d = dy[r * out + o];
      if (db) db[o] += d;
      for (int i = 0; i < in; i++) {
        dw[o * in + i] += d * x[r * in + i];
        if (dx) dx[r * in + i] += d * w[o * in + i];
      }
    }
}

/* Mean cross-entropy; logits become their gradient. */
static inline double ref_cross_entropy(int rows, int classes, double *logits, const int *y) {
  double loss = 0;
  for (int r = 0; r < rows; r++) {
    double *l = logits + r * classes, sum = 0, target = l[y[r]];
    for (int c = 0; c < classes; c++) sum += exp(l[c]);
    loss += log(sum) - target;
    for (int c = 0; c < classes; c++) l[c] = (exp(l[c]) / sum - (c == y[r])) / rows;
  }
  return loss / rows;
}

static inline void ref_start(reference *ref, const training_config *config, const training_result *given) {
  ref->config = *config;
  for (int p = 0; p < given->params; p++) {
    ref->at[p] = ref->n;
    ref->n += given->numel[p];
  }
  for (int64_t i = 0; i < ref->n; i++) ref->w[i] = given->initial[i];
}

/* Loss and gradient (in ref->g) of the whole batch of a step. */
static inline double ref_gradient(reference *ref, int step) {
  const mlp_config *c = &ref->config.net;
  int rows = ref->config.global_batch, W = c->width, H = c->hidden, n = c->blocks;
  double *x = calloc((size_t)(rows * c->inputs), sizeof *x), *h = calloc((size_t)((n + 1) * rows * W), sizeof *h);
  double *inner = calloc((size_t)(n * rows * H), sizeof *inner),
         *logits = calloc((size_t)(rows * c->classes), sizeof *logits);
  double *dh = calloc((size_t)(rows * W), sizeof *dh), *dinner = calloc((size_t)(rows * H), sizeof *dinner);
  int *y = calloc((size_t)rows, sizeof *y);
  for (int r = 0; r < rows; r++) {
    float row[64];
    y[r] = training_row(c, step, r, row);
    for (int i = 0; i < c->inputs; i++) x[r * c->inputs + i] = row[i];
  }
  double *w = ref->w, *g = ref->g;
  const int64_t *at = ref->at;
  memset(g, 0, sizeof ref->g);
  ref_linear(rows, c->inputs, W, x, w + at[0], NULL, h);
  for (int b = 0; b < n; b++) {
    const int64_t *p = at + 2 + 4 * b;
    double *in = h + b * rows * W, *out = in + rows * W, *mid = inner + b * rows * H;
    ref_linear(rows, W, H, in, w + p[0], w + p[1], mid);
    for (int i = 0; i < rows * H; i++) mid[i] = mid[i] > 0 ? mid[i] : 0;
    ref_linear(rows, H, W, mid, w + p[2], w + p[3], out);
    for (int i = 0; i < rows * W; i++) out[i] += in[i];
  }
  ref_linear(rows, W, c->classes, h + n * rows * W, w + at[1], NULL, logits);
  double loss = ref_cross_entropy(rows, c->classes, logits, y);
  ref_linear_backward(rows, W, c->classes, h + n * rows * W, w + at[1], logits, g + at[1], NULL, dh);
  for (int b = n - 1; b >= 0; b--) {
    const int64_t *p = at + 2 + 4 * b;
    double *in = h + b * rows * W, *mid = inner + b * rows * H;
    memset(dinner, 0, (size_t)(rows * H) * sizeof *dinner);
    ref_linear_backward(rows, H, W, mid, w + p[2], dh, g + p[2], g + p[3], dinner);
    for (int i = 0; i < rows * H; i++) dinner[i] = mid[i] > 0 ? dinner[i] : 0;
    ref_linear_backward(rows, W, H, in, w + p[0], dinner, g + p[0], g + p[1], dh);
  }
  ref_linear_backward(rows, c->inputs, W, x, w + at[0], dh, g + at[0], NULL, NULL);
  free(x), free(h), free(inner), free(logits), free(dh), free(dinner), free(y);
  return loss;
}

/* One AdamW step (Loshchilov & Hutter 2019) on the gradient, clipped by its norm; returns the norm. Matrices decay. */
static inline double ref_update(reference *ref, int params, const int64_t *numel, double lr, int step) {
  const ms_plan_config *c = &ref->config.plan;
  double squares = 0;
  for (int64_t i = 0; i < ref->n; i++) squares += ref->g[i] * ref->g[i];
  double norm = sqrt(squares), factor = c->max_norm > 0 && norm + 1e-6 > c->max_norm ? c->max_norm / (norm + 1e-6) : 1;
  for (int p = 0; p < params; p++) {
    int is_bias = p >= 2 && (p - 2) % 2 == 1;
    for (int64_t i = ref->at[p]; i < ref->at[p] + numel[p]; i++) {
      double g = ref->g[i] * factor;
      if (!is_bias) ref->w[i] *= 1 - lr * 0.1;
      ref->m[i] = c->adamw.beta1 * ref->m[i] + (1 - c->adamw.beta1) * g;
      ref->v[i] = c->adamw.beta2 * ref->v[i] + (1 - c->adamw.beta2) * g * g;
      double first = ref->m[i] / (1 - pow(c->adamw.beta1, step)), second = ref->v[i] / (1 - pow(c->adamw.beta2, step));
      ref->w[i] -= lr * first / (sqrt(second) + c->adamw.eps);
    }
  }
  return norm;
}

#endif
