/* matmul_gelu.c - splits a fused call into two: a product, then gelu or its gradient. */
#include "kernels/products/matmul_gelu.h"

#include <string.h>

#include "base/error.h"

static void add_input(ms_kernel_call *call, const ms_value_info *info) { call->in[call->inputs++] = *info; }

static void add_output(ms_kernel_call *call, const ms_value_info *info) { call->out[call->outputs++] = *info; }

static ms_kernel_call product_of(const ms_kernel_call *call) {
  ms_kernel_call product = {.op = MS_OP_matmul, .threads = call->threads, .spared = call->spared};
  product.attrs.product.trans_a = call->attrs.product.trans_a;
  product.attrs.product.trans_b = call->attrs.product.trans_b;
  for (int i = 0; i < (call->op == MS_OP_matmul_gelu ? 3 : 2); i++) add_input(&product, &call->in[i]);
  add_output(&product, &call->out[0]);
  return product;
}

static ms_kernel_call behind_it(const ms_kernel_call *call) {
  ms_kernel_call second = {.op = MS_OP_gelu_tanh, .threads = call->threads};
  if (call->op == MS_OP_matmul_gelu) {
    add_input(&second, &call->out[0]);
    add_output(&second, &call->out[1]);
    return second;
  }
  add_input(&second, &call->in[2]);
  add_input(&second, &call->out[0]);
  for (int o = 0; o < call->outputs; o++) add_output(&second, &call->out[o]);
  second.op = MS_OP_gelu_tanh_backward;
  if (call->op == MS_OP_matmul_gelu_backward) return second;
  second.op = MS_OP_activation_backward_bias;
  second.attrs.product.activation = MS_ACT_GELU_TANH;
  second.attrs.out_dtype = 1 + call->out[1].dtype;
  return second;
}

int ms_gelu_steps_prepare(ms_kernel_call *call, const ms_kernel *(*kernel_of)(int op), ms_gelu_steps *steps) {
  int rc = MS_OK;
  memset(steps, 0, sizeof *steps);
  steps->call[0] = product_of(call);
  steps->call[1] = behind_it(call);
  call->workspace_bytes = 0;
  for (int i = 0; i < 2 && !rc; i++) {
    ms_kernel_call *step = &steps->call[i];
    steps->kernel[i] = kernel_of(step->op);
    if (steps->kernel[i]->prepare) rc = steps->kernel[i]->prepare(step);
    if (step->workspace_bytes > call->workspace_bytes) call->workspace_bytes = step->workspace_bytes;
  }
  if (rc) ms_gelu_steps_release(steps);
  return rc;
}

static ms_kernel_call bound(const ms_gelu_steps *steps, int which, const ms_kernel_call *call) {
  ms_kernel_call step = steps->call[which];
  const int forward = call->op == MS_OP_matmul_gelu;
  step.workspace = call->workspace;
  step.scalars = call->scalars;
  step.stream = call->stream;
  step.fault = call->fault;
  if (which == 0) {
    for (int i = 0; i < step.inputs; i++) step.in_data[i] = call->in_data[i];
    step.out_data[0] = call->out_data[0];
  } else if (forward) {
    step.in_data[0] = call->out_data[0];
    step.out_data[0] = call->out_data[1];
  } else {
    step.in_data[0] = call->in_data[2];
    step.in_data[1] = call->out_data[0];
    for (int o = 0; o < step.outputs; o++) step.out_data[o] = call->out_data[o];
  }
  return step;
}

int ms_gelu_steps_bind(const ms_gelu_steps *steps, const ms_kernel_call *call) {
  for (int i = 0; i < 2; i++) {
    const ms_kernel_call step = bound(steps, i, call);
    if (steps->kernel[i]->bind) MS_TRY(steps->kernel[i]->bind(&step));
  }
  return MS_OK;
}

int ms_gelu_steps_run(const ms_gelu_steps *steps, const ms_kernel_call *call) {
  for (int i = 0; i < 2; i++) {
    const ms_kernel_call step = bound(steps, i, call);
    MS_TRY(steps->kernel[i]->run(&step));
  }
  return MS_OK;
}

void ms_gelu_steps_release(const ms_gelu_steps *steps) {
  for (int i = 0; i < 2; i++)
    if (steps->kernel[i] && steps->kernel[i]->release) steps->kernel[i]->release(steps->call[i].prepared);
}
