/* emulated_tensor.h - what a warp does on matrices (ldmatrix, mma), and copies to shared memory that are under way
 * (cp.async), as kernels/cuda/hardware.h gives them to kernels.
 *
 * A copy lands when its group is waited for, and not before: a kernel that reads too early reads what was there.
 */
#ifndef EMULATED_TENSOR_H
#define EMULATED_TENSOR_H

#include "emulated_block.h"

#pragma GCC visibility push(default)

namespace emulated {

void copy_later(void *shared, const void *global, int bytes, bool there);
void commit_copies();
void wait_copies(int left);
/* A block begins: what the last one left under way is gone. */
void forget_copies();

void load_matrices(unsigned (&matrices)[4], const void *row, bool transposed);
void multiply_tiles(float (&c)[4], const unsigned (&a)[4], unsigned b_low, unsigned b_high);
unsigned round_tf32(float x);
void multiply_tf32(float (&c)[4], const unsigned (&a)[4], unsigned b_low, unsigned b_high);

/* All once all lanes of a warp are there, by the last of them: what each gave. */
void load_lanes(void *const *lanes, bool transposed);
void multiply_lanes(void *const *lanes);
void multiply_tf32_lanes(void *const *lanes);

} // namespace emulated

#pragma GCC visibility pop

#endif
