/* test_block.cpp - tests the emulation itself: it runs kernels as a GPU would, and refuses what a GPU would not
 * survive. */
#include "cuda_bf16.h"
#include "emulated_state.h"

extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
}

using emulated::launch_kernel;

static void sum_block(int *sums, int threads) {
  __shared__ int of_warp[32];
  int value = static_cast<int>(threadIdx.x) + 1;
  for (int bits = 16; bits > 0; bits /= 2) value += __shfl_xor_sync(0xffffffffu, value, bits);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x != 0) return;
  int sum = 0;
  for (int w = 0; w < threads / 32; w++) sum += of_warp[w];
  sums[blockIdx.x] = sum;
}

static void blocks_of_any_size_run(void **) {
  for (int threads = 32; threads <= 1024; threads += 32) {
    int sums[3] = {};
    assert_int_equal(launch_kernel("sum", sum_block, 3, threads, 0, nullptr, sums, threads), cudaSuccess);
    for (int sum : sums) assert_int_equal(sum, threads * (threads + 1) / 2);
  }
}

static void vote(unsigned *results) {
  const int lane = static_cast<int>(threadIdx.x);
  if (lane >= 24) return; /* the others do not wait for lanes that have left */
  const unsigned odd = __ballot_sync(0xffffffffu, lane % 2), equal = __match_any_sync(0xffffffffu, lane / 8);
  const int any = __any_sync(0xffffffffu, lane == 3), all = __all_sync(0xffffffffu, lane < 24);
  const int up = __shfl_up_sync(0xffffffffu, lane, 1), other = __shfl_sync(0xffffffffu, lane, 5, 8);
  if (lane != 9) return;
  const unsigned values[] = {odd,
                             equal,
                             static_cast<unsigned>(any),
                             static_cast<unsigned>(all),
                             static_cast<unsigned>(up),
                             static_cast<unsigned>(other)};
  for (int i = 0; i < 6; i++) results[i] = values[i];
}

static void warps_vote_match_and_shuffle(void **) {
  unsigned results[6] = {};
  assert_int_equal(launch_kernel("vote", vote, 1, 32, 0, nullptr, results), cudaSuccess);
  const unsigned expected[] = {0xaaaaaau, 0xff00u, 1, 1, 8, 13};
  assert_memory_equal(results, expected, sizeof expected);
}

/* A kernel's error persists on the device, as on a real one; the next test needs a working device. */
static void mend_device() {
  emulated::device_error = cudaSuccess;
  cudaGetLastError();
}

static void half_a_barrier(int) {
  if (threadIdx.x < 40) __syncthreads();
}

static void a_barrier_that_some_never_reach_is_told(void **) {
  assert_int_equal(launch_kernel("half", half_a_barrier, 2, 64, 0, nullptr, 0), cudaErrorLaunchFailure);
  assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure);
  assert_int_equal(cudaGetLastError(), cudaSuccess);
  assert_int_equal(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  mend_device();
  blocks_of_any_size_run(nullptr); /* the next launch works again */
}

static void two_barriers(int) {
  if (threadIdx.x < 32) __syncthreads();
  else __syncthreads();
}

static void threads_at_different_barriers_are_told(void **) {
  assert_int_equal(launch_kernel("two", two_barriers, 1, 64, 0, nullptr, 0), cudaErrorLaunchFailure);
  mend_device();
  cudaGetLastError();
}

static void torn_warp(int) {
  if (threadIdx.x % 2) __syncwarp();
  else __ballot_sync(0xffffffffu, 1);
}

static void two_shuffles(int *to) {
  int other;
  if (threadIdx.x < 16) other = __shfl_xor_sync(0xffffffffu, 1, 16);
  else other = __shfl_xor_sync(0xffffffffu, 2, 16);
  to[threadIdx.x] = other;
}

static void read_from_nowhere(int) {
  if (threadIdx.x < 8) __shfl_sync(0xffu, 1, 20);
}

static void not_in_own_mask(int) { __syncwarp(0x0000ffffu); }

static void warp_operations_that_do_not_fit_are_told(void **) {
  assert_int_equal(launch_kernel("torn", torn_warp, 1, 32, 0, nullptr, 0), cudaErrorLaunchFailure);
  mend_device();
  int others[32];
  assert_int_equal(launch_kernel("apart", two_shuffles, 1, 32, 0, nullptr, others), cudaErrorLaunchFailure);
  mend_device();
  assert_int_equal(launch_kernel("nowhere", read_from_nowhere, 1, 32, 0, nullptr, 0), cudaErrorLaunchFailure);
  mend_device();
  assert_int_equal(launch_kernel("outside", not_in_own_mask, 1, 32, 0, nullptr, 0), cudaErrorLaunchFailure);
  mend_device();
  cudaGetLastError();
}

/* Each thread reads the value that its neighbour writes, with no barrier in between. */
static void unordered(int *to) {
  int *shared = static_cast<int *>(emulated::dynamic_shared());
  shared[threadIdx.x] = static_cast<int>(threadIdx.x);
  to[threadIdx.x] = shared[(threadIdx.x + 1) % blockDim.x];
}

static void a_missing_barrier_does_not_repeat(void **) {
  int first[64], second[64];
  assert_int_equal(launch_kernel("unordered", unordered, 1, 64, 64 * sizeof(int), nullptr, first), cudaSuccess);
  assert_int_equal(launch_kernel("unordered", unordered, 1, 64, 64 * sizeof(int), nullptr, second), cudaSuccess);
  assert_memory_not_equal(first, second, sizeof first);
}

static void nothing(int) {}

static void launches_are_checked(void **) {
  assert_int_equal(launch_kernel("wide", nothing, 1, 1025, 0, nullptr, 0), cudaErrorInvalidConfiguration);
  assert_int_equal(launch_kernel("empty", nothing, 0, 32, 0, nullptr, 0), cudaErrorInvalidConfiguration);
  assert_int_equal(launch_kernel("high", nothing, dim3(1, 65536), 32, 0, nullptr, 0), cudaErrorInvalidConfiguration);
  assert_int_equal(launch_kernel("hungry", nothing, 1, 32, 50000, nullptr, 0), cudaErrorInvalidConfiguration);
  const void *kernel = reinterpret_cast<const void *>(nothing);
  assert_int_equal(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000), cudaSuccess);
  assert_int_equal(launch_kernel("hungry", nothing, 1, 32, 50000, nullptr, 0), cudaSuccess);
  cudaGetLastError();
}

/* Each of these calls would invalidate a capture on a GPU. */
static void calls_that_wait_or_allocate_are_refused_in_a_capture(void **) {
  cudaStream_t stream;
  cudaEvent_t event;
  void *memory, *pinned;
  assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  assert_int_equal(cudaEventCreateWithFlags(&event, cudaEventDefault), cudaSuccess);
  assert_int_equal(cudaMalloc(&memory, 64), cudaSuccess);
  assert_int_equal(cudaHostAlloc(&pinned, 64, cudaHostAllocDefault), cudaSuccess);
  assert_int_equal(cudaEventRecord(event, stream), cudaSuccess);
  const std::function<cudaError_t()> calls[] = {
      [&] { return cudaMalloc(&memory, 64); },
      [&] { return cudaFree(memory); },
      [&] { return cudaHostAlloc(&pinned, 64, cudaHostAllocDefault); },
      [&] { return cudaFreeHost(pinned); },
      [&] { return cudaMemcpy(memory, pinned, 64, cudaMemcpyHostToDevice); },
      [&] { return cudaMemset(memory, 0, 64); },
      [&] { return cudaDeviceSynchronize(); },
      [&] { return cudaStreamSynchronize(nullptr); },
      [&] { return cudaStreamQuery(nullptr); },
      [&] { return cudaEventQuery(event); },
      [&] { return cudaEventSynchronize(event); },
  };
  for (const auto &call : calls) {
    void *const kept_memory = memory, *const kept_pinned = pinned;
    cudaGraph_t graph;
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    assert_int_equal(call(), cudaErrorStreamCaptureUnsupported);
    assert_int_not_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    memory = kept_memory, pinned = kept_pinned;
    cudaGetLastError();
  }
  assert_int_equal(cudaEventQuery(event), cudaSuccess);
  assert_int_equal(cudaFree(memory), cudaSuccess);
  assert_int_equal(cudaFreeHost(pinned), cudaSuccess);
  assert_int_equal(cudaEventDestroy(event), cudaSuccess);
  assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

static void what_leaves_its_memory_is_refused(void **) {
  char pageable[64] = {0};
  void *memory, *pinned;
  assert_int_equal(cudaMalloc(&memory, 64), cudaSuccess);
  assert_int_equal(cudaHostAlloc(&pinned, 64, cudaHostAllocDefault), cudaSuccess);
  assert_int_equal(reinterpret_cast<uintptr_t>(memory) % 512, 256); /* aligned no better than a GPU guarantees */
  assert_int_equal(cudaMemcpy(memory, pageable, 64, cudaMemcpyHostToDevice), cudaSuccess);
  assert_int_equal(cudaMemcpyAsync(memory, pinned, 64, cudaMemcpyHostToDevice, nullptr), cudaSuccess);
  assert_int_equal(cudaMemcpyAsync(memory, pageable, 64, cudaMemcpyHostToDevice, nullptr), cudaErrorInvalidValue);
  assert_int_equal(cudaMemcpyAsync(pageable, memory, 64, cudaMemcpyDeviceToHost, nullptr), cudaErrorInvalidValue);
  assert_int_equal(cudaMemsetAsync(memory, 0, 65, nullptr), cudaErrorInvalidValue);
  assert_int_equal(cudaMemset(pinned, 0, 64), cudaErrorInvalidValue);
  assert_int_equal(cudaFree(memory), cudaSuccess);
  assert_int_equal(cudaFreeHost(pinned), cudaSuccess);
  cudaGetLastError();
}

static void bf16_rounds_to_nearest_even(void **) {
  const float x[] = {1.00390625f, 1.01171875f, -1.00390625f, 3.4e38f, 1e-40f, INFINITY};
  const unsigned short expected[] = {0x3f80, 0x3f82, 0xbf80, 0x7f80, 0x0001, 0x7f80};
  for (int i = 0; i < 6; i++) assert_int_equal(__bfloat16_as_ushort(__float2bfloat16_rn(x[i])), expected[i]);
  assert_int_equal(__bfloat16_as_ushort(__float2bfloat16_rn(NAN)), 0x7fff);
}

int main() {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(blocks_of_any_size_run),
      cmocka_unit_test(warps_vote_match_and_shuffle),
      cmocka_unit_test(a_barrier_that_some_never_reach_is_told),
      cmocka_unit_test(threads_at_different_barriers_are_told),
      cmocka_unit_test(calls_that_wait_or_allocate_are_refused_in_a_capture),
      cmocka_unit_test(what_leaves_its_memory_is_refused),
      cmocka_unit_test(warp_operations_that_do_not_fit_are_told),
      cmocka_unit_test(a_missing_barrier_does_not_repeat),
      cmocka_unit_test(launches_are_checked),
      cmocka_unit_test(bf16_rounds_to_nearest_even),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
