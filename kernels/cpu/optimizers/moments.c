/* moments.c - records of moments (kernels/formats/moments.h) for programs that read and write a state. */
#include "kernels/cpu/optimizers/moments.h"

#include "base/min.h"

void ms_moment_encode(enum ms_moment_map map, const float *x, int64_t n, void *records) {
  ms_moment_tables tables;
  ms_moment_fill_tables((int)map, &tables);
  for (uint8_t *record = records; n > 0; record += MS_MOMENT_WORDS * 4, x += MS_MOMENT_BLOCK, n -= MS_MOMENT_BLOCK) {
    float all[MS_MOMENT_BLOCK] = {0};
    memcpy(all, x, (size_t)ms_min(n, MS_MOMENT_BLOCK) * sizeof *x);
    ms_moment_write((int)map, &tables, all, record);
  }
}

void ms_moment_decode(enum ms_moment_map map, const void *records, int64_t first, int64_t n, float *x) {
  ms_moment_tables tables;
  ms_moment_fill_tables((int)map, &tables);
  for (int64_t count; n > 0; first += count, x += count, n -= count) {
    const int64_t skipped = first % MS_MOMENT_BLOCK;
    float all[MS_MOMENT_BLOCK];
    count = ms_min(n, MS_MOMENT_BLOCK - skipped);
    ms_moment_read(&tables, (const uint8_t *)records + first / MS_MOMENT_BLOCK * MS_MOMENT_WORDS * 4, all);
    memcpy(x, all + skipped, (size_t)count * sizeof *x);
  }
}
