/* parallel.h - divides a kernel's work among the threads of a rank.
 *
 * Every kernel passes its range of elements or rows to ms_run_parts. Small ranges stay on the calling thread, because
 * waking the team costs a few microseconds. The division depends only on shapes and call->threads, so sums over parts
 * are reproducible bit for bit.
 */
#ifndef MS_KERNELS_CPU_PARALLEL_H
#define MS_KERNELS_CPU_PARALLEL_H

#include "kernels/op.h"

/* Processes [begin, end) of the divided range. part is numbered from 0 and selects the slot for partial results. */
typedef void ms_part_fn(const ms_kernel_call *call, int part, int64_t begin, int64_t end);

/* The number of parts worth creating, from 1 to call->threads, for `count` items (elements or rows) that read and write
 * `bytes` in total. */
int ms_part_count(const ms_kernel_call *call, int64_t count, int64_t bytes);
/* Divides [0, count) into `parts` ranges with bounds at multiples of grain, and runs each on its own thread. */
void ms_run_parts(const ms_kernel_call *call, int parts, int64_t count, int64_t grain, ms_part_fn *run);

/* Total size of all inputs and outputs in bytes: the memory traffic of an elementwise kernel. */
int64_t ms_call_bytes(const ms_kernel_call *call);
/* Runs an elementwise kernel: the number of parts follows from ms_call_bytes; parts do not share cache lines. */
int ms_run_elements(const ms_kernel_call *call, int64_t count, ms_part_fn *run);

/* Scratch for row kernels: per part, `rows` rows of f32 [columns] in the workspace, aligned to cache lines. */
int64_t ms_scratch_bytes(int parts, int rows, int64_t columns);
float *ms_scratch_row(const ms_kernel_call *call, int part, int rows, int row, int64_t columns);

#endif
