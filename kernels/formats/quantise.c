/* quantise.c - which quantisations exist, and how many scales they have. */
#include "kernels/formats/quantise.h"

#include "base/numbers/dtype.h"
#include "base/error.h"

static int is_float8(int dtype) { return dtype == MS_F8E4M3 || dtype == MS_F8E5M2; }
static int is_scaled_by_blocks(int dtype) {
  return is_float8(dtype) || dtype == MS_I8 || dtype == MS_I4 || dtype == MS_NF4;
}

static int check_dtype(const ms_quantisation *q) {
  if (q->scaling < MS_SCALE_TENSOR || q->scaling > MS_SCALE_MX)
    return MS_FAIL(MS_EINVAL, "quantise: there is no scaling %d; it must be %d to %d", q->scaling, MS_SCALE_TENSOR,
                   MS_SCALE_MX);
  if (q->scaling == MS_SCALE_BLOCK) {
    if (is_scaled_by_blocks(q->dtype)) return MS_OK;
    return MS_FAIL(MS_EDTYPE, "quantise: %s with a scale a block; it must be f8e4m3, f8e5m2, i8, i4 or nf4",
                   ms_dtype_name(q->dtype));
  }
  if (is_float8(q->dtype)) return MS_OK;
  return MS_FAIL(MS_EDTYPE, "quantise: %s with %s; it must be f8e4m3 or f8e5m2", ms_dtype_name(q->dtype),
                 q->scaling == MS_SCALE_MX ? "an e8m0 scale a block" : "one scale");
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
