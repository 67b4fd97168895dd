/* stand_in.cu - a kernel in place of a collective's, for bench_overlap: blocks of 512 threads that copy memory again
 * and again. Like NCCL's, a block takes shared memory, so that no block of a large product fits on the same
 * multiprocessor. A library of its own: what trains has no use for it.
 */
#include "tests/gpu/programs/stand_in.h"

#include "kernels/cuda/launch.h"

namespace {

enum { THREADS = 512, SHARED_BYTES = 48 << 10 };

/* Each block copies its part of n elements of 16 bytes, `rounds` times. */
__global__ void __launch_bounds__(THREADS) copy_again(uint4 *to, const uint4 *from, int64_t n, int rounds) {
  const int64_t part = n / gridDim.x, begin = blockIdx.x * part;
  for (int round = 0; round < rounds; round++)
    for (int64_t i = begin + threadIdx.x; i < begin + part; i += THREADS) to[i] = from[i];
}

} // namespace

int ms_stand_in(void *to, const void *from, int64_t bytes, int blocks, int rounds, void *stream) {
  const int64_t n = bytes / static_cast<int64_t>(sizeof(uint4));
  return launch_kernel("copy_again", copy_again, blocks, THREADS, static_cast<size_t>(SHARED_BYTES),
                       static_cast<cudaStream_t>(stream), static_cast<uint4 *>(to), static_cast<const uint4 *>(from), n,
                       rounds);
}
