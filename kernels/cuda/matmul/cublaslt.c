/* cublaslt.c - loads cuBLASLt and checks its version. */
#include "kernels/cuda/matmul/cublaslt.h"

#include <stdio.h>

#include "base/error.h"

#define ENTRY(field, symbol) \
  { symbol, offsetof(ms_cublaslt, field) }
static const ms_library_entry entries[] = {ENTRY(get_version, "cublasLtGetVersion"),
                                           ENTRY(get_status_name, "cublasLtGetStatusName"),
                                           ENTRY(create, "cublasLtCreate"),
                                           ENTRY(destroy, "cublasLtDestroy"),
                                           ENTRY(desc_create, "cublasLtMatmulDescCreate"),
                                           ENTRY(desc_destroy, "cublasLtMatmulDescDestroy"),
                                           ENTRY(desc_set, "cublasLtMatmulDescSetAttribute"),
                                           ENTRY(layout_create, "cublasLtMatrixLayoutCreate"),
                                           ENTRY(layout_destroy, "cublasLtMatrixLayoutDestroy"),
                                           ENTRY(layout_set, "cublasLtMatrixLayoutSetAttribute"),
                                           ENTRY(preference_create, "cublasLtMatmulPreferenceCreate"),
                                           ENTRY(preference_destroy, "cublasLtMatmulPreferenceDestroy"),
                                           ENTRY(preference_set, "cublasLtMatmulPreferenceSetAttribute"),
                                           ENTRY(algo_get_heuristic, "cublasLtMatmulAlgoGetHeuristic"),
                                           ENTRY(algo_check, "cublasLtMatmulAlgoCheck"),
                                           ENTRY(matmul, "cublasLtMatmul")};
enum { ENTRIES = sizeof entries / sizeof *entries, OLDEST = 12, NEWEST = 13 };

static const char *const names[] = {MS_CUBLASLT_NAMES, NULL};
const ms_library ms_cublaslt_library = {
    "MOONSHARD_CUBLASLT_LIBRARY", names, "fast matrix products need cuBLASLt", "cuBLASLt 12", entries, ENTRIES};

static ms_cublaslt table;

static int suits(char why[MS_LIBRARY_WHY_BYTES]) {
  const size_t version = table.get_version(), major = version / 10000;
  if (major >= OLDEST && major <= NEWEST) return 1;
  snprintf(why, MS_LIBRARY_WHY_BYTES, "%.512s is cuBLASLt %zu.%zu; a version from %d to %d is required",
           ms_library_path(&ms_cublaslt_library), major, version / 100 % 100, OLDEST, NEWEST);
  return 0;
}

static int check(const void *of, int status, const char *symbol) {
  const ms_cublaslt *lt = of;
  if (status == MS_LT_SUCCESS) return MS_OK;
  return MS_FAIL(status == MS_LT_ALLOC_FAILED ? MS_ENOMEM : MS_EDEVICE, "%s: %s", symbol, lt->get_status_name(status));
}

ms_handles ms_cublaslt_handles = {.library = &ms_cublaslt_library,
                                  .table = &table,
                                  .suits = suits,
                                  .create = offsetof(ms_cublaslt, create),
                                  .destroy = offsetof(ms_cublaslt, destroy),
                                  .check = check,
                                  .lock = PTHREAD_MUTEX_INITIALIZER};
