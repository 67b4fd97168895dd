/* parallel.h - how a kernel's work is cut for the threads of a rank.
**
** Every kernel hands its range of elements or rows to ms_run_parts. Small ones stay on the calling thread: waking a team
** costs a few microseconds. The cut depends on shapes and call->threads alone, so that sums over parts repeat bit for bit.
*/
#ifndef MS_KERNELS_CPU_PARALLEL_H
#define MS_KERNELS_CPU_PARALLEL_H

#include "kernels/op.h"

/* Does [begin, end) of the range that was cut. part counts from 0 and picks partial results. */
typedef void ms_part_fn(const ms_kernel_call *call, int part, int64_t begin, int64_t end);

/* Parts worth making of `count` items (elements, rows) when all of them together touch `bytes`: 1 to call->threads. */
int ms_part_count(const ms_kernel_call *call, int64_t count, int64_t bytes);
/* Cuts [0, count) in `parts` ranges whose bounds are multiples of grain, and runs each on a thread of its own. */
void ms_run_parts(const ms_kernel_call *call, int parts, int64_t count, int64_t grain, ms_part_fn *run);

/* Bytes of all inputs and outputs: what an elementwise kernel touches. */
int64_t ms_call_bytes(const ms_kernel_call *call);
/* An elementwise kernel in one line: parts by ms_call_bytes, bounds that share no cache line. */
int ms_run_elements(const ms_kernel_call *call, int64_t count, ms_part_fn *run);

/* Row kernels: scratch rows of f32 [columns] in the workspace, `rows` for each part, each on cache lines of its own. */
int64_t ms_scratch_bytes(int parts, int rows, int64_t columns);
float *ms_scratch_row(const ms_kernel_call *call, int part, int rows, int row, int64_t columns);

#endif
