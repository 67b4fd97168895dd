/* kernel_time.c - how long a kernel takes on a described device: a roofline, corrected by what was measured.
 *
 * The roofline needs a few rates and knows every shape. It is the larger of two times: that of the arithmetic, at the
 * rate which matrix products or attention of this shape reach, and that of the memory traffic. Where a calibration has
 * measured kernels of the same op, the roofline's time is multiplied by what the measured ones nearest in size took
 * more, or less, than it says.
 */
#include <math.h>

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "price/price.h"

/* ---- the roofline ----------------------------------------------------------------------------------------------- */

static double memory_time(const ms_cluster *c, double bytes) { return (bytes + c->memory_half) / c->memory_rate; }

/* The part of the device that tiles of one size keep busy. */
static double filled(const struct ms_product_rate *rate, const double *size, double tile_m, double tile_n) {
  const double tiles = size[0] * ceil(size[1] / tile_m) * ceil(size[2] / tile_n);
  const double room = ceil(tiles / rate->units) * rate->units * tile_m * tile_n;
  return size[0] * size[1] * size[2] / room;
}

/* Libraries choose the tile for each product, so the best of the full one and of three smaller ones counts. */
static double best_filled(const struct ms_product_rate *rate, const double *size) {
  double best = 0, reached = 1, tile_m = rate->tile_m, tile_n = rate->tile_n;
  if (tile_m <= 0) return 1;
  for (int halvings = 0; halvings < 4; halvings++, reached *= rate->half_tile) {
    const double part = reached * filled(rate, size, tile_m, tile_n);
    if (part > best) best = part;
    if (tile_n >= tile_m) tile_n /= 2;
    else tile_m /= 2;
  }
  return best;
}

/* The work that the kernel does, at the rate that its shape reaches. */
static double arithmetic_time(const ms_cluster *c, const ms_kernel_work *work) {
  const double peak = c->peak[work->dtype] * c->clock * (c->device == MS_DEVICE_CPU ? work->threads : 1);
  if (work->shape == MS_SHAPE_PRODUCT) {
    const double k = work->size[3];
    return work->flops /
           (peak * c->product.efficiency * best_filled(&c->product, work->size) * k / (k + c->product.k_half));
  }
  const double keys = work->size[2],
               of_peak = work->variant & MS_VARIANT_BACKWARD ? c->attention.backward : c->attention.forward;
  const double done = work->variant & MS_VARIANT_CAUSAL ? c->attention.causal : 1;
  return work->flops * done / (peak * of_peak * keys / (keys + c->attention.keys_half));
}

/* What a product moves before its arithmetic begins, because it rounds its operands itself: all but their codes, and a
 * result of bf16. */
static double rounding_bytes(const ms_kernel_work *work) {
  const double m = work->size[1], n = work->size[2], k = work->size[3];
  if (ms_op_row_of(work->op)->work != ms_work_product_f8) return 0;
  return fmax(0, work->bytes - (m + n) * k - 2 * m * n);
}

static int roofline(const ms_cluster *c, const ms_kernel_work *work, double *seconds) {
  const double before = rounding_bytes(work);
  double busy = memory_time(c, work->bytes - before);
  if (work->shape != MS_SHAPE_OTHER && work->flops > 0) {
    if (!(c->peak[work->dtype] > 0))
      return MS_FAIL(MS_EUNSUPPORTED,
                     "the cluster's device has no peak rate for %s, in which %s computes: describe one",
                     ms_dtype_name(work->dtype), ms_op_row_of(work->op)->name);
    busy = fmax(busy, arithmetic_time(c, work));
  }
  *seconds = c->kernel_start + busy + (before > 0 ? memory_time(c, before) : 0);
  return MS_OK;
}

/* ---- what was measured ------------------------------------------------------------------------------------------ */

/* The square of the distance of two sizes, in octaves. */
static double distance(const ms_kernel_work *a, const ms_kernel_work *b) {
  double sum = 0;
  for (int i = 0; i < 4; i++) {
    const double octaves = log2(fmax(a->size[i], 1) / fmax(b->size[i], 1));
    sum += octaves * octaves;
  }
  return sum;
}

static int is_alike(const ms_kernel_work *a, const ms_kernel_work *b) {
  return a->op == b->op && a->dtype == b->dtype && a->variant == b->variant && a->threads == b->threads;
}

/* By what factor kernels like this one take longer than the roofline says: the mean of the logarithms, weighted by the
 * inverse square of the squared distance, so that a measured size has its own factor and far ones hardly count. 0: none
 * like it was measured. */
static int correction(const ms_cluster *c, const ms_kernel_work *work, double *factor) {
  static const double SAME = 1e-4; /* octaves squared; keeps the weight of an equal size finite */
  double weights = 0, sum = 0;
  for (int i = 0; i < c->points; i++) {
    const ms_kernel_work *point = ms_cluster_point(c, i);
    double expected;
    if (!is_alike(point, work)) continue;
    MS_TRY(roofline(c, point, &expected));
    const double d = distance(point, work) + SAME, weight = 1 / (d * d);
    weights += weight;
    sum += weight * log(point->seconds / expected);
  }
  *factor = weights > 0 ? exp(sum / weights) : 0;
  return MS_OK;
}

/* Kernels that share launches were measured so. */
int ms_kernel_time_of(const ms_cluster *cluster, const ms_kernel_work *work, double *alone, double *joined) {
  double factor;
  MS_TRY(roofline(cluster, work, alone));
  MS_TRY(correction(cluster, work, &factor));
  *joined = factor > 0 ? *alone * factor : work->bytes / cluster->memory_rate;
  if (factor > 0) *alone *= factor;
  return MS_OK;
}

int ms_cluster_kernel_time(const ms_cluster *cluster, const ms_kernel_work *work, int size, double *seconds) {
  MS_GIVEN(cluster);
  MS_GIVEN(work);
  MS_GIVEN(seconds);
  MS_TAKE_CLUSTER(own, cluster);
  MS_TRY(ms_cluster_check(&own));
  MS_TAKE_INFO(ms_kernel_work, kernel, work, size);
  MS_TRY(ms_kernel_work_check(&kernel));
  double joined;
  return ms_kernel_time_of(&own, &kernel, seconds, &joined);
}
