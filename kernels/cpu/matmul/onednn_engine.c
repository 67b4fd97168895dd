/* onednn_engine.c - what all kernels by oneDNN share: the engine, and what the processor can do. */
#include <pthread.h>

#include "kernels/cpu/matmul/onednn_api.h"

static dnnl_engine_t made;
static dnnl_status_t made_status;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* oneDNN keeps the primitives that were made last, some 40 KiB each, after their last use. With its default of 1024 a
 * process that sees ever new shapes grows by 50 MiB; plans keep those that they use themselves. */
enum { ONEDNN_DEFAULT = 1024, KEPT_PRIMITIVES = 128 };

static void make(void) {
  int capacity;
  made_status = dnnl_engine_create(&made, dnnl_cpu, 0);
  if (made_status != dnnl_success || dnnl_get_primitive_cache_capacity(&capacity) != dnnl_success) return;
  if (capacity == ONEDNN_DEFAULT) made_status = dnnl_set_primitive_cache_capacity(KEPT_PRIMITIVES);
}

dnnl_status_t ms_onednn_engine(dnnl_engine_t *engine) {
  pthread_once(&once, make);
  *engine = made;
  return made_status;
}

int ms_onednn_multiplies_bf16(void) {
  return ((int)dnnl_get_effective_cpu_isa() & (int)dnnl_cpu_isa_avx512_core_bf16) == (int)dnnl_cpu_isa_avx512_core_bf16;
}
