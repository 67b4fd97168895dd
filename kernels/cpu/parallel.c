/* parallel.c - divides a range into parts for the threads of a rank. */
#include "kernels/cpu/parallel.h"

#include "base/numbers/dtype.h"
#include "kernels/cpu/team.h"

/* Smaller parts cost more than they save: a thread copies 64 KiB in about 5 us. */
enum { BYTES_PER_PART = 1 << 16 };

/* Two cache lines of bf16: bounds at multiples of it keep two threads from writing to one cache line. */
enum { ELEMENT_GRAIN = 64 };

int ms_part_count(const ms_kernel_call *call, int64_t count, int64_t bytes) {
  int64_t parts = bytes / BYTES_PER_PART;
  if (parts > call->threads) parts = call->threads;
  if (parts > count) parts = count;
  return parts < 1 ? 1 : (int)parts;
}

typedef struct range {
  const ms_kernel_call *call;
  int64_t count, grain;
  ms_part_fn *run;
  int parts;
} range;

static void run_range(void *context, int part) {
  const range *r = context;
  const int64_t grains = (r->count + r->grain - 1) / r->grain;
  int64_t begin = grains * part / r->parts * r->grain, end = grains * (part + 1) / r->parts * r->grain;
  if (end > r->count) end = r->count;
  r->run(r->call, part, begin < end ? begin : end, end);
}

void ms_run_parts(const ms_kernel_call *call, int parts, int64_t count, int64_t grain, ms_part_fn *run) {
  range all = {call, count, grain, run, parts};
  if (parts > 1) ms_team_run(parts, run_range, &all);
  else run(call, 0, 0, count);
}

static int64_t value_bytes(const ms_value_info *info) { return ms_numel(info) * ms_dtype_size(info->dtype); }

int64_t ms_call_bytes(const ms_kernel_call *call) {
  int64_t bytes = 0;
  for (int i = 0; i < call->inputs; i++) bytes += value_bytes(&call->in[i]);
  for (int i = 0; i < call->outputs; i++) bytes += value_bytes(&call->out[i]);
  return bytes;
}

int ms_run_elements(const ms_kernel_call *call, int64_t count, ms_part_fn *run) {
  ms_run_parts(call, ms_part_count(call, count, ms_call_bytes(call)), count, ELEMENT_GRAIN, run);
  return MS_OK;
}

/* The length of an f32 row, rounded up to whole cache lines. */
static int64_t scratch_stride(int64_t columns) { return (columns + 15) / 16 * 16; }

int64_t ms_scratch_bytes(int parts, int rows, int64_t columns) {
  return parts * rows * scratch_stride(columns) * (int64_t)sizeof(float);
}

float *ms_scratch_row(const ms_kernel_call *call, int part, int rows, int row, int64_t columns) {
  return (float *)call->workspace + ((int64_t)part * rows + row) * scratch_stride(columns);
}
