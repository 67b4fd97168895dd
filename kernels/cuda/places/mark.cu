/* mark.cu - writes a mark (see mark.h). One thread writes 8 bytes over the bus: a few microseconds on a stream that
 * would otherwise be idle. */
#include "kernels/cuda/places/mark.h"

#include "kernels/cuda/launch.h"

namespace {

__global__ void write_mark(volatile int64_t *pinned, const int64_t *value) {
  *pinned = *value;
  __threadfence_system();
}

} // namespace

int ms_cuda_mark(int64_t *pinned, const int64_t *value, void *stream) {
  return MS_CUDA_LAUNCH(write_mark, 1, 1, 0, stream, pinned, value);
}
