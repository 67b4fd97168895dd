/* embedding.cu - looks up rows of a table by token. Memory traffic: 2 s bytes per element of the result. A thread
 * copies one unit (units.h). A token of another part of a divided table gives a row of zeros; so does an invalid token,
 * which is recorded as the step's fault. The gradient is in embedding_backward.cu. */
#include "kernels/cuda/units.h"

namespace {

constexpr int THREADS = 256;

/* The rows [first, end) of a table that are here; tokens may select those below `all`. */
struct table_part {
  int64_t first, end, all;
};

table_part part_of(const ms_kernel_call *call) {
  const int64_t rows = call->in[0].dims[0], first = call->attrs.table.first;
  return {first, first + rows, call->attrs.table.rows ? call->attrs.table.rows : rows * ms_table_parts(&call->attrs)};
}

/* y [n][row_units] = rows of w [part.end - part.first][row_units] selected by tokens [n]. */
template <class U>
__global__ void __launch_bounds__(THREADS)
    embedding(const U *w, const int32_t *tokens, U *y, int64_t n, int64_t row_units, table_part part, ms_fault *fault) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (i >= n * row_units) return;
  const int64_t position = i / row_units, token = tokens[position];
  U unit = U();
  if (token < 0 || token >= part.all) ms_note_fault(fault, MS_OP_embedding, token, part.all);
  else if (token >= part.first && token < part.end)
    unit = w[(token - part.first) * row_units + (i - position * row_units)];
  y[i] = unit;
}

template <class U> int launch(const ms_kernel_call *call, int64_t row_units) {
  const int64_t n = ms_numel(&call->in[1]), blocks = ms_cuda_ceil(n * row_units, THREADS);
  return MS_CUDA_LAUNCH(embedding<U>, static_cast<unsigned>(blocks), THREADS, 0, call->stream,
                        static_cast<const U *>(call->in_data[0]), static_cast<const int32_t *>(call->in_data[1]),
                        static_cast<U *>(call->out_data[0]), n, row_units, part_of(call), call->fault);
}

int run(const ms_kernel_call *call) {
  const int64_t row_bytes = ms_row_length(&call->in[0]) * ms_dtype_size(call->in[0].dtype);
  if (ms_numel(&call->out[0]) == 0) return MS_OK;
  const int unit = ms_unit_of(static_cast<uint64_t>(row_bytes) | reinterpret_cast<uintptr_t>(call->in_data[0]) |
                              reinterpret_cast<uintptr_t>(call->out_data[0]));
  return MS_CUDA_UNITS(unit, U, launch<U>(call, row_bytes / unit));
}

} // namespace

extern const ms_kernel ms_cuda_embedding = {nullptr, run, nullptr, MS_CUDA_OVER_embedding};
