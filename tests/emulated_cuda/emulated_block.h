/* emulated_block.h - how a grid runs on the host: block after block, the threads of a block as fibers of one host
 * thread.
 *
 * A fiber runs until it waits at a barrier, or for the other lanes of its warp; then the next thread goes on. Kernels
 * that wait nowhere are a plain loop over threads on one stack. Threads and blocks take turns forwards in one launch
 * and backwards in the next, so that a missing barrier shows as a result that does not repeat. What no GPU would
 * survive is an error of the launch: a barrier that some thread never reaches, threads that meet at different barriers
 * of the source, lanes of a mask that meet in different operations or at different places of the source, a value taken
 * from a lane that is not there, shared memory beyond its limit.
 */
#ifndef EMULATED_BLOCK_H
#define EMULATED_BLOCK_H

#include <functional>

#include "cuda_runtime_api.h"

#pragma GCC visibility push(default)

namespace emulated {

/* threadIdx, blockIdx, blockDim, gridDim of the thread that runs now. */
struct Place {
  uint3 thread, block, block_dim, grid_dim;
};
extern __thread Place here;

enum class Collective { synchronize, shuffle, ballot, any, all, match, multiply, multiply_tf32, load, load_transposed };

/* A line of a kernel. */
struct Site {
  const char *file;
  int line;
};

void barrier(Site site);
/* The calling lane's part of a warp operation among the lanes of `mask`: its value, and for shuffles the lane to read.
 * Operations on matrices (emulated_tensor.h) want the whole warp; the value is a pointer to what the lane gives and
 * gets. */
uint64_t collective(Collective kind, unsigned mask, uint64_t value, Site site = {"", 0}, int source = 0);
int lane();
/* The thread's number in its block. */
int thread_number();
/* Says that the kernel does what no GPU would survive; the launch fails. */
__attribute__((format(printf, 1, 2))) void refuse(const char *format, ...);
/* The block's dynamic shared memory: filled with 0xff when the block starts. */
void *dynamic_shared();

/* Bytes a block may have without and with cudaFuncSetAttribute: of an A100, which has the least of the GPUs that are
 * supported. */
enum { SHARED_BYTES = 48 * 1024, SHARED_BYTES_ON_REQUEST = 163 * 1024, MAX_THREADS = 1024, WARP = 32 };

/* Runs all blocks on the calling thread. On an error, which is printed, the rest of the grid does not run. */
cudaError_t run_grid(const char *name, dim3 grid, dim3 block, size_t shared, const std::function<void()> &thread);

/* What a launch does: checks it as the driver would, and hands the grid to the stream (emulated_runtime.cpp). */
cudaError_t launch(const char *name, const void *kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                   std::function<void()> thread);

} // namespace emulated

#pragma GCC visibility pop

#endif
