/* emulated_block.h - runs a grid on the host: one block after the other, with the threads of a block as fibers of one
 * host thread.
 *
 * A fiber runs until it waits at a barrier or for the other lanes of its warp; then the next thread runs. A kernel
 * without waits is a plain loop over threads on one stack. Threads and blocks run forwards in one launch and backwards
 * in the next, so that a missing barrier gives results that do not repeat. Errors that a GPU would not survive fail the
 * launch: a barrier that some thread never reaches, threads at different barriers of the source, lanes of a mask in
 * different operations or at different lines of the source, a shuffle from a lane that is not part of it, shared memory
 * beyond its limit.
 */
#ifndef EMULATED_BLOCK_H
#define EMULATED_BLOCK_H

#include "cuda_runtime_api.h"

#pragma GCC visibility push(default)

namespace emulated {

/* threadIdx, blockIdx, blockDim and gridDim of the thread that is running. */
struct Place {
  uint3 thread, block, block_dim, grid_dim;
};
extern __thread Place here;

enum class Collective { synchronize, shuffle, ballot, any, all, match, multiply, multiply_tf32, load, load_transposed };

/* A line of a kernel's source. */
struct Site {
  const char *file;
  int line;
};

void barrier(Site site);
/* The calling lane's part of a warp operation on the lanes of `mask`: its value and, for shuffles, the lane to read.
 * Returns the lane's result. Operations on matrices (emulated_tensor.h) need the whole warp, and the value is a pointer
 * to the lane's operands and results. */
uint64_t collective(Collective kind, unsigned mask, uint64_t value, Site site = {"", 0}, int source = 0);
int lane();
/* The number of the current thread in its block. */
int thread_number();
/* Reports an error that a GPU would not survive; the launch fails. */
__attribute__((format(printf, 1, 2))) void refuse(const char *format, ...);
/* The block's dynamic shared memory. It contains 0xff bytes when the block starts. */
void *dynamic_shared();

/* Dynamic shared memory per block, without and with cudaFuncSetAttribute: an A100's, the smallest of the supported
 * GPUs. */
enum { SHARED_BYTES = 48 * 1024, SHARED_BYTES_ON_REQUEST = 163 * 1024, MAX_THREADS = 1024, WARP = 32 };

/* What each thread of a grid runs: a closure, which copies share. The header of std::function would take the compiler
 * longer than most kernels. */
class Body {
public:
  template <class F> Body(const F &closure) : held(new Held<F>(closure)) {}
  Body(const Body &other) : held(other.held) { __atomic_add_fetch(&held->users, 1, __ATOMIC_SEQ_CST); }
  Body &operator=(const Body &) = delete;
  ~Body() {
    if (!__atomic_sub_fetch(&held->users, 1, __ATOMIC_SEQ_CST)) delete held;
  }
  void operator()() const { held->run(); }

private:
  struct Closure {
    int users = 1;
    virtual void run() = 0;
    virtual ~Closure() {}
  };
  template <class F> struct Held : Closure {
    F closure;
    explicit Held(const F &given) : closure(given) {}
    void run() override { closure(); }
  };
  Closure *held;
};

/* Runs all blocks on the calling thread. An error is printed and ends the grid. */
cudaError_t run_grid(const char *name, dim3 grid, dim3 block, size_t shared, const Body &thread);

/* Checks a launch as the driver would, and passes the grid to the stream (emulated_runtime.cpp). */
cudaError_t launch(const char *name, const void *kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                   const Body &thread);

} // namespace emulated

#pragma GCC visibility pop

#endif
