/* parity.h - the same training on two meshes. */
#ifndef MS_TESTS_PARITY_H
#define MS_TESTS_PARITY_H

#include <math.h>

#include "tests/c/support/networks/mlp_training.h"

static inline int64_t elements_of(const training_result *r) {
  int64_t n = 0;
  for (int p = 0; p < r->params; p++) n += r->numel[p];
  return n;
}

static inline double largest_difference(const float *a, const float *b, int64_t n) {
  double largest = 0;
  for (int64_t i = 0; i < n; i++) {
    double d = fabs((double)a[i] - (double)b[i]);
    if (!(d <= largest)) largest = d; /* a NaN too */
  }
  return largest;
}

static inline void assert_close(double value, double wanted, double tolerance, const char *what, int step) {
  if (!(fabs(value - wanted) <= tolerance * fmax(1, fabs(wanted))))
    fail_msg("%s of step %d: %.9g, not %.9g", what, step, value, wanted);
}

/* The same training within rounding: sums are taken in another order. */
static inline void assert_same_training(const training_result *a, const training_result *b, double tolerance) {
  assert_int_equal(a->params, b->params);
  int64_t n = elements_of(a);
  assert_memory_equal(a->initial, b->initial, (size_t)n * sizeof(float));
  for (int step = 0; step < TRAINING_STEPS; step++) {
    assert_close(b->loss[step], a->loss[step], tolerance, "loss", step);
    assert_close(b->grad_norm[step], a->grad_norm[step], 10 * tolerance, "gradient norm", step);
  }
  assert_close(b->evaluated, a->evaluated, tolerance, "evaluated loss", TRAINING_STEPS);
  double off = largest_difference(a->final, b->final, n);
  if (!(off < 100 * tolerance)) fail_msg("parameters differ by %g", off);
}

/* Trains on a mesh and compares with one rank. */
static inline void check_parity(const training_config *config, double tolerance) {
  training_config alone = *config;
  alone.net.replicate = alone.net.shard = alone.net.tensor = alone.net.world = 1;
  training_result *a = train(&alone), *b = train(config);
  assert_same_training(a, b, tolerance);
  training_free(a);
  training_free(b);
}

#endif
