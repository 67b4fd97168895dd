/* broadcast_to.c - repeats a tensor to a larger shape, with NumPy's rules. Elements of any dtype. */
#include <string.h>

#include "base/numbers/dtype.h"
#include "kernels/cpu/parallel.h"
#include "kernels/shape.h"

/* Fills y [n][size bytes] with the element at x, doubling the filled part with each copy. */
static void repeat(char *y, const char *x, int64_t n, int64_t size) {
  memcpy(y, x, (size_t)size);
  for (int64_t done = 1; done < n; done *= 2) {
    int64_t take = done < n - done ? done : n - done;
    memcpy(y + done * size, y, (size_t)(take * size));
  }
}

static void broadcast_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  ms_broadcast broadcast = ms_broadcast_of(&call->out[0], 1, call->in);
  int walks = broadcast.strides[0][broadcast.ndim - 1] == 1;
  int64_t size = ms_dtype_size(call->out[0].dtype), n, from;
  char *y = call->out_data[0];
  for (int64_t element = begin; element < end; element += n) {
    n = ms_broadcast_run(&broadcast, 1, element, end, &from);
    const char *x = (const char *)call->in_data[0] + from * size;
    if (walks) memcpy(y + element * size, x, (size_t)(n * size));
    else repeat(y + element * size, x, n, size);
  }
}

static int run(const ms_kernel_call *call) { return ms_run_elements(call, ms_numel(&call->out[0]), broadcast_part); }

const ms_kernel ms_cpu_broadcast_to = {.run = run};
