/* initial_values.c - initial values. Every mesh shape starts from the same bits, because an element depends only on
 * the seed, the parameter's name, its distribution and its index. Tensors that are not parameters use the same
 * function.
 */
#include "shard/initial_values.h"

#include <math.h>

#include "base/error.h"
#include "base/text/hash.h"
#include "base/numbers/philox.h"

void ms_fill_initial_values(uint64_t seed, const char *name, int init, double a, double b, int64_t first, int64_t n,
                            float *x) {
  uint64_t stream = ms_hash_string(MS_HASH_INIT, name);
  double shift = a, factor = b;
  if (init == MS_INIT_NORMAL) {
    ms_philox_normal(seed, stream, first, n, x);
  } else if (init == MS_INIT_UNIFORM) {
    ms_philox_uniform(seed, stream, first, n, x);
    factor = b - a;
  } else {
    float value = init == MS_INIT_ONES ? 1.0f : init == MS_INIT_CONSTANT ? (float)a : 0.0f;
    for (int64_t i = 0; i < n; i++) x[i] = value;
    return;
  }
  for (int64_t i = 0; i < n; i++) x[i] = (float)(shift + factor * (double)x[i]);
}

static const int64_t MAX_ELEMENTS = (int64_t)1 << 53;

int ms_initial_values(uint64_t seed, const char *name, int init, double a, double b, int64_t first, int64_t count,
                      float *out) {
  MS_GIVEN(name);
  if (count > 0) MS_GIVEN(out);
  if (init < MS_INIT_ZEROS || init > MS_INIT_CONSTANT)
    return MS_FAIL(MS_EINVAL, "unknown distribution of initial values %d", init);
  if (!isfinite(a) || !isfinite(b)) return MS_FAIL(MS_EINVAL, "a and b must be finite, not %g and %g", a, b);
  if (first < 0 || count < 0 || first > MAX_ELEMENTS || count > MAX_ELEMENTS - first)
    return MS_FAIL(MS_EINVAL, "first element %lld, %lld elements: both must be at least 0, and their sum at most 2^53",
                   (long long)first, (long long)count);
  ms_fill_initial_values(seed, name, init, a, b, first, count, out);
  return MS_OK;
}
