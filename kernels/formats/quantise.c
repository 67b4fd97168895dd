/* quantise.c - which quantisations exist, and how many scales they have. */
#include "kernels/formats/quantise.h"

#include "base/numbers/dtype.h"
#include "base/error.h"

static int check_dtype(const ms_quantisation *q) {
  static const char *const with[] = {
      [MS_SCALE_TENSOR] = "one scale", [MS_SCALE_BLOCK] = "a scale a block", [MS_SCALE_MX] = "an e8m0 scale a block"};
  char allowed[MS_DTYPE_LIST];
  if (q->scaling < MS_SCALE_TENSOR || q->scaling > MS_SCALE_MX)
    return MS_FAIL(MS_EINVAL, "quantise: there is no scaling %d; it must be %d to %d", q->scaling, MS_SCALE_TENSOR,
                   MS_SCALE_MX);
  const int use = q->scaling == MS_SCALE_BLOCK ? MS_DTYPE_BLOCKS : MS_DTYPE_SCALED;
  if (ms_dtype_may(q->dtype, use)) return MS_OK;
  return MS_FAIL(MS_EDTYPE, "quantise: %s with %s; it must be %s", ms_dtype_name(q->dtype), with[q->scaling],
                 ms_dtype_list(use, allowed));
}

int ms_quantisation_check(const ms_quantisation *q, int64_t n) {
  int64_t bytes;
  MS_TRY(check_dtype(q));
  MS_TRY(ms_dtype_bytes(q->dtype, n, &bytes));
  if (q->scaling == MS_SCALE_MX && q->rounding != MS_MX_FLOOR && q->rounding != MS_MX_RCEIL)
    return MS_FAIL(MS_EINVAL, "quantise: there is no rounding %d of scales", q->rounding);
  if (q->scaling != MS_SCALE_BLOCK) return MS_OK;
  if (q->block < 1) return MS_FAIL(MS_EINVAL, "quantise: blocks of %lld elements", (long long)q->block);
  return ms_dtype_bytes(q->dtype, q->block, &bytes);
}

int64_t ms_quantisation_block(const ms_quantisation *q, int64_t n) {
  return q->scaling == MS_SCALE_TENSOR ? n : q->scaling == MS_SCALE_MX ? MS_MX_BLOCK : q->block;
}

int64_t ms_quantisation_scales(const ms_quantisation *q, int64_t n) {
  if (q->scaling == MS_SCALE_TENSOR) return 1;
  const int64_t block = ms_quantisation_block(q, n);
  return n / block + (n % block != 0);
}
