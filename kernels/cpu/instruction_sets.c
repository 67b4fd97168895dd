/* instruction_sets.c - names the instruction sets that decide bits: those by which kernels choose their copies
 * (simd.h, target.h), and those of the products of oneDNN.
 */
#include "kernels/cpu/instruction_sets.h"

#include <stdio.h>

#include "kernels/cpu/matmul/onednn_api.h"
#include "kernels/cpu/target.h"

#if defined(__x86_64__)
static const char *level(void) { return ms_cpu_is_v4() ? "x86-64-v4" : ms_cpu_is_v3() ? "x86-64-v3" : "x86-64"; }

static const char *products(void) {
  if (ms_cpu_has_bf16_tiles()) return " with bf16 tiles";
  return ms_cpu_multiplies_bf16() ? " with bf16" : "";
}
#else
static const char *level(void) { return "another processor than x86-64"; }
static const char *products(void) { return ""; }
#endif

void ms_cpu_instruction_sets(char *text, size_t bytes) {
  const dnnl_version_t *version = dnnl_version();
  snprintf(text, bytes, "%s%s, oneDNN %d.%d.%d with %#x", level(), products(), version->major, version->minor,
           version->patch, (unsigned)dnnl_get_effective_cpu_isa());
}
