/* test_kernel_time.c - the time of a kernel on a described device, worked out by hand, and descriptions that are
 * refused.
 */
#include <math.h>

#include "tests/c/support/networks/priced_cluster.h"

static ms_kernel_work product_of(double m, double n, double k) {
  return (ms_kernel_work){.op = ms_op_find("matmul"),
                          .shape = MS_SHAPE_PRODUCT,
                          .dtype = MS_F32,
                          .threads = 1,
                          .flops = 2 * m * n * k,
                          .bytes = 4 * (m * n + n * k + m * k),
                          .size = {1, m, n, k}};
}

static double time_of(const ms_cluster *cluster, const ms_kernel_work *work) {
  double seconds = -1;
  must(ms_cluster_kernel_time(cluster, work, sizeof *work, &seconds));
  assert_true(seconds > 0 && seconds < INFINITY);
  return seconds;
}

static void E1_a_product_takes_its_arithmetic_or_its_bytes(void **state) {
  (void)state;
  ms_cluster c = cluster_of(MS_DEVICE_CUDA);
  ms_kernel_work square = product_of(1000, 1000, 1000), thin = product_of(1000, 1000, 1);
  assert_true(fabs(time_of(&c, &square) - (1e-6 + 2e9 / 1e12)) < 1e-12);
  assert_true(fabs(time_of(&c, &thin) - (1e-6 + 4 * 1002000 / 100e9)) < 1e-12);
  c.clock = 0.5;
  assert_true(fabs(time_of(&c, &square) - (1e-6 + 4e9 / 1e12)) < 1e-12);
  square.dtype = MS_BF16;
  double seconds;
  assert_fails(ms_cluster_kernel_time(&c, &square, sizeof square, &seconds), MS_EUNSUPPORTED, "bf16 | matmul | peak");
}

/* 100 tiles run at once: the 101st takes a wave of its own. */
static void E1_a_product_fills_waves_of_tiles(void **state) {
  (void)state;
  ms_cluster c = cluster_of(MS_DEVICE_CUDA);
  c.kernel_start = 0;
  c.product = (struct ms_product_rate){
      .efficiency = 1, .tile_m = 100, .tile_n = 100, .units = 100, .half_tile = 0.1, .k_half = 0};
  const ms_kernel_work full = product_of(1000, 1000, 1000), more = product_of(1010, 1000, 1000);
  assert_true(fabs(time_of(&c, &full) - 2e9 / 1e12) < 1e-12);
  assert_true(fabs(time_of(&c, &more) - 2 * 2e9 / 1e12) < 1e-12);
  c.product.k_half = 1000;
  assert_true(fabs(time_of(&c, &full) - 2 * 2e9 / 1e12) < 1e-12);
}

static void E1_more_work_never_takes_less_time(void **state) {
  (void)state;
  ms_cluster c = cluster_of(MS_DEVICE_CUDA);
  double before = 0;
  for (double k = 1; k < 1e5; k *= 1.7) {
    const ms_kernel_work work = product_of(512, 512, k);
    assert_true(time_of(&c, &work) > before);
    before = time_of(&c, &work);
  }
}

/* A measured size takes what was measured, sizes near it the same factor, other ops nothing. */
static void E1_measured_kernels_correct_the_model_near_their_sizes(void **state) {
  (void)state;
  ms_cluster c = cluster_of(MS_DEVICE_CPU);
  const ms_kernel_work near = product_of(110, 100, 100);
  ms_kernel_work other = product_of(100, 100, 100);
  const double plain = time_of(&c, &other), plain_near = time_of(&c, &near);
  ms_kernel_work points[] = {product_of(100, 100, 100), product_of(8000, 8000, 8000)};
  points[0].seconds = 3 * plain;
  points[1].seconds = time_of(&c, &points[1]);
  c.point = points;
  c.point_size = sizeof *points;
  c.points = 2;
  assert_true(fabs(time_of(&c, &other) / plain - 3) < 1e-3);
  assert_true(fabs(time_of(&c, &near) / plain_near - 3) < 0.1);
  assert_true(fabs(time_of(&c, &points[1]) / points[1].seconds - 1) < 1e-3);
  other.op = ms_op_find("matmul_gelu");
  assert_true(fabs(time_of(&c, &other) - plain) < 1e-12);
}

static void E1_a_description_out_of_range_is_refused_by_name(void **state) {
  (void)state;
  ms_cluster c = cluster_of(MS_DEVICE_CPU);
  c.memory_rate = 0;
  assert_fails(ms_config_check("ms_cluster", &c, sizeof c), MS_EINVAL, "memory_rate");
  c.memory_rate = 1e-300; /* sums of a step would be infinite */
  assert_fails(ms_config_check("ms_cluster", &c, sizeof c), MS_EINVAL, "memory_rate");
  c = cluster_of(MS_DEVICE_CPU);
  c.overlap = NAN;
  assert_fails(ms_config_check("ms_cluster", &c, sizeof c), MS_EINVAL, "overlap");
  c = cluster_of(MS_DEVICE_CPU);
  c.struct_size = 0;
  assert_fails(ms_config_check("ms_cluster", &c, sizeof c), MS_EINVAL, "ms_cluster");
}

static void E1_a_kernel_out_of_range_is_refused(void **state) {
  (void)state;
  ms_cluster c = cluster_of(MS_DEVICE_CPU);
  const ms_kernel_work right = product_of(64, 64, 64);
  ms_kernel_work wrong[] = {right, right, right, right, right, right};
  double seconds;
  wrong[0].threads = 0;
  wrong[1].size[2] = NAN;
  wrong[2].flops = INFINITY;
  wrong[3].bytes = -1;
  wrong[4].shape = MS_SHAPES;
  wrong[5].op = ms_op_find("add"); /* not counted as a product */
  for (int i = 0; i < 6; i++) {
    ms_kernel_work point = wrong[i];
    point.seconds = 1e-3;
    assert_fails(ms_cluster_kernel_time(&c, &wrong[i], sizeof wrong[i], &seconds), MS_EINVAL, "kernel");
    c.point = &point;
    c.point_size = sizeof point;
    c.points = 1;
    assert_fails(ms_config_check("ms_cluster", &c, sizeof c), MS_EINVAL, "kernel");
    c.points = 0;
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(E1_a_product_takes_its_arithmetic_or_its_bytes),
      TEST(E1_a_product_fills_waves_of_tiles),
      TEST(E1_more_work_never_takes_less_time),
      TEST(E1_measured_kernels_correct_the_model_near_their_sizes),
      TEST(E1_a_description_out_of_range_is_refused_by_name),
      TEST(E1_a_kernel_out_of_range_is_refused),
  };
  return cmocka_run_group_tests_name("kernel time", tests, NULL, NULL);
}
