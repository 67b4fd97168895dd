/* emulated_tensor.h - a warp's operations on matrices (ldmatrix, mma) and asynchronous copies to shared memory
 * (cp.async), which kernels call through kernels/cuda/hardware.h.
 *
 * A copy completes only when the kernel waits for its group: a kernel that reads too early reads the old contents.
 */
#ifndef EMULATED_TENSOR_H
#define EMULATED_TENSOR_H

#include "emulated_block.h"

#pragma GCC visibility push(default)

namespace emulated {

void copy_later(void *shared, const void *global, int bytes, bool there);
void commit_copies();
void wait_copies(int left);
/* Drops pending copies; called when a block begins. */
void forget_copies();

void load_matrices(unsigned (&matrices)[4], const void *row, bool transposed);
void multiply_tiles(float (&c)[4], const unsigned (&a)[4], unsigned b_low, unsigned b_high);
unsigned round_tf32(float x);
void multiply_tf32(float (&c)[4], const unsigned (&a)[4], unsigned b_low, unsigned b_high);

/* Called by the last lane of a warp that arrives, with the operands of all lanes. */
void load_lanes(void *const *lanes, bool transposed);
void multiply_lanes(void *const *lanes);
void multiply_tf32_lanes(void *const *lanes);

} // namespace emulated

#pragma GCC visibility pop

#endif
