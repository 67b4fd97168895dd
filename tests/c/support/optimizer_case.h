/* optimizer_case.h - calls of the ops that update parameters, for some steps and sizes. */
#ifndef TESTS_SUPPORT_OPTIMIZER_CASE_H
#define TESTS_SUPPORT_OPTIMIZER_CASE_H

#include "tests/c/support/kernel_case.h"

enum { STEPS = 3 };

static const int64_t sizes[] = {0, 1, 3, 17, 1000, 70001};

/* Inputs: gradient [n], step norm [4] and the number of updates. In and out: n_states + 1 arrays [n], the first with
 * random weights, the others zero. */
static kernel_case optimizer_case(int op, int64_t n, int states, int64_t state_size) {
  kernel_case c = case_of(op);
  add_input(&c, SHAPE(MS_F32, n));
  add_input(&c, SHAPE(MS_F32, 4));
  set_input(&c, 1, 2, 0.5);
  add_input(&c, SCALAR(MS_F32));
  set_input(&c, 2, 0, 1.0);
  for (int i = 0; i <= states; i++) {
    int64_t size = i ? state_size : n;
    add_output(&c, SHAPE(MS_F32, size));
    for (int64_t e = 0; e < size; e++) ((float *)c.call.out_data[i])[e] = i ? 0.0f : (float)sin((double)e);
  }
  return c;
}

static void new_gradient(kernel_case *c, int step) {
  for (int64_t i = 0, n = ms_numel(&c->call.in[0]); i < n; i++) set_input(c, 0, i, cos((double)(i * 7 + step)));
}

#endif
