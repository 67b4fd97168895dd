/* host_kernels.c - the CPU kernels in place of the CUDA kernels: enqueued on the emulated streams, on the emulated
 * memory. With them, the host code of the CUDA device is tested alone and quickly, and must produce the CPU's bits. */
#include <stdlib.h>
#include <string.h>

#include "base/numbers/dtype.h"
#include "emulated_log.h"
#include "emulated_runtime.h"
#include "kernels/cuda/architectures.h"
#include "kernels/cuda/places/mark.h"
#include "kernels/cuda/reductions/parts.h"
#include "kernels/op.h"

const ms_kernel *ms_cuda_kernel(int op);
const int ms_cuda_architectures[] = {__CUDA_ARCH_LIST__, 0};

static const char *const names[MS_OP_COUNT] = {
#define MS_OP(name, ...) [MS_OP_##name] = #name,
#include "kernels/ops.def"
#undef MS_OP
};

static void run(void *argument) {
  const ms_kernel_call *call = argument;
  if (ms_cpu_kernel(call->op)->run(call) && !call->fault->set)
    *call->fault = (ms_fault){.set = 1, .op = call->op, .value = -1, .limit = 1};
}

static emulated_range range_of(char kind, const void *data, const ms_value_info *info) {
  return (emulated_range){kind, data, (size_t)(ms_numel(info) * ms_dtype_size(info->dtype))};
}

static void log_call(const ms_kernel_call *call) {
  emulated_range range[MS_MAX_INPUTS + MS_MAX_OUTPUTS + 2];
  int n = 0;
  for (int i = 0; i < call->inputs; i++) range[n++] = range_of('r', call->in_data[i], &call->in[i]);
  for (int i = 0; i < call->outputs; i++) range[n++] = range_of('w', call->out_data[i], &call->out[i]);
  range[n++] = (emulated_range){'w', call->workspace, (size_t)call->workspace_bytes};
  range[n++] = (emulated_range){'r', call->scalars, sizeof *call->scalars};
  emulated_log_work(call->stream, names[call->op], n, range);
}

static int enqueue(const ms_kernel_call *call) {
  if (emulated_fails("cudaLaunchKernel")) return MS_EDEVICE;
  ms_kernel_call *copy = malloc(sizeof *copy);
  if (!copy) return MS_ENOMEM;
  *copy = *call;
  log_call(call);
  return emulated_submit(call->stream, run, copy, free) == cudaSuccess ? MS_OK : MS_EDEVICE;
}

const ms_kernel *ms_cuda_kernel(int op) {
  static ms_kernel kernels[MS_OP_COUNT];
  const ms_kernel *cpu = ms_cpu_kernel(op);
  if (!cpu) return NULL;
  kernels[op] = *cpu;
  kernels[op].run = enqueue;
  kernels[op].run_together = NULL;
  kernels[op].joins = NULL;
  return &kernels[op];
}

/* ---- moves ---- */

typedef struct moves {
  int n;
  ms_move move[];
} moves;

static void run_moves(void *argument) {
  const moves *m = argument;
  for (int i = 0; i < m->n; i++) {
    const ms_move *move = &m->move[i];
    if (!move->add && move->from_dtype == move->to_dtype) {
      memmove(move->to, move->from, (size_t)(move->n * ms_dtype_size(move->to_dtype)));
      continue;
    }
    ms_kernel_call call = {.op = move->add     ? MS_OP_accumulate
                                 : move->scale ? MS_OP_f8_codes
                                               : MS_OP_cast,
                           .inputs = 1 + (move->scale != NULL),
                           .outputs = 1,
                           .threads = 1};
    call.attrs.add = move->add;
    call.in_data[1] = move->scale;
    call.in[0] = (ms_value_info){.dtype = move->from_dtype, .ndim = 1, .dims = {move->n}};
    call.out[0] = (ms_value_info){.dtype = move->to_dtype, .ndim = 1, .dims = {move->n}};
    call.in_data[0] = move->from;
    call.out_data[0] = move->to;
    ms_cpu_kernel(call.op)->run(&call);
  }
}

static void log_moves(const moves *m, void *stream) {
  emulated_range range[3 * MS_CUDA_PARTS];
  int n = 0;
  for (int i = 0; i < m->n; i++) {
    const ms_move *move = &m->move[i];
    range[n++] = (emulated_range){'r', move->from, (size_t)(move->n * ms_dtype_size(move->from_dtype))};
    range[n++] = (emulated_range){'w', move->to, (size_t)(move->n * ms_dtype_size(move->to_dtype))};
    if (move->scale) range[n++] = (emulated_range){'r', move->scale, sizeof *move->scale};
  }
  emulated_log_work(stream, "move_parts", n, range);
}

int ms_cuda_move(const ms_move *move, int n, void *stream) {
  for (int next = 0; next < n;) {
    moves *m = malloc(sizeof *m + MS_CUDA_PARTS * sizeof *m->move);
    if (!m) return MS_ENOMEM;
    m->n = 0;
    for (; next < n && m->n < MS_CUDA_PARTS; next++)
      if (move[next].n) m->move[m->n++] = move[next];
    int fails = m->n && emulated_fails("cudaLaunchKernel");
    if (!m->n || fails) {
      free(m);
      if (fails) return MS_EDEVICE;
      continue;
    }
    log_moves(m, stream);
    if (emulated_submit(stream, run_moves, m, free) != cudaSuccess) return MS_EDEVICE;
  }
  return MS_OK;
}

/* ---- marks ---- */

typedef struct mark {
  int64_t *pinned;
  const int64_t *value;
} mark;

static void run_mark(void *argument) {
  const mark *m = argument;
  __atomic_store_n(m->pinned, *m->value, __ATOMIC_SEQ_CST);
}

int ms_cuda_mark(int64_t *pinned, const int64_t *value, void *stream) {
  mark *m = malloc(sizeof *m);
  if (!m) return MS_ENOMEM;
  *m = (mark){pinned, value};
  return emulated_submit(stream, run_mark, m, free) == cudaSuccess ? MS_OK : MS_EDEVICE;
}
