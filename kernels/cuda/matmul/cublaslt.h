/* cublaslt.h - the part of cuBLASLt that Moonshard uses, loaded at run time. Names are the library's without prefixes.
 * Values and layouts match versions 12 and 13; cublaslt_check.c compares them with the toolkit's header if there is
 * one. */
#ifndef MS_KERNELS_CUDA_CUBLASLT_H
#define MS_KERNELS_CUDA_CUBLASLT_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#include "kernels/cuda/handles.h"

typedef struct cublasLtContext *ms_lt_handle;
/* Opaque handles: the description of a product, a matrix layout, and limits for algorithms. */
typedef struct ms_lt_desc ms_lt_desc;
typedef struct ms_lt_layout ms_lt_layout;
typedef struct ms_lt_preference ms_lt_preference;

enum { MS_LT_SUCCESS = 0, MS_LT_ALLOC_FAILED = 3, MS_LT_INVALID_VALUE = 7, MS_LT_NOT_SUPPORTED = 15 };
enum { MS_LT_R_32F = 0, MS_LT_R_16BF = 14, MS_LT_R_8F_E4M3 = 28, MS_LT_R_8F_E5M2 = 29 };
enum { MS_LT_OP_N = 0, MS_LT_OP_T = 1 };
/* f32 sums of f32 or bf16 products, or of f32 operands rounded to TF32 (10 bits of mantissa). */
enum { MS_LT_COMPUTE_32F = 68, MS_LT_COMPUTE_32F_FAST_TF32 = 77 };
enum { MS_LT_LAYOUT_BATCH_COUNT = 5, MS_LT_LAYOUT_STRIDED_BATCH_OFFSET = 6 };
enum {
  MS_LT_DESC_TRANSA = 3,
  MS_LT_DESC_TRANSB = 4,
  MS_LT_DESC_EPILOGUE = 7,
  MS_LT_DESC_BIAS_POINTER = 8,
  MS_LT_DESC_EPILOGUE_AUX_POINTER = 11,
  MS_LT_DESC_EPILOGUE_AUX_LD = 12,
  MS_LT_DESC_SM_COUNT_TARGET = 15, /* int32_t, 0: all */
  MS_LT_DESC_A_SCALE_POINTER = 17,
  MS_LT_DESC_B_SCALE_POINTER = 18,
  MS_LT_DESC_FAST_ACCUM = 25,
  MS_LT_DESC_A_SCALE_MODE = 31,
  MS_LT_DESC_B_SCALE_MODE = 32
};
/* What the product of 8-bit operands is multiplied by: a number for each of them, or one for each row of op(A) and one
 * for each column of op(B), or for each 128 summed elements or 128 x 128, from this version on, and only on
 * GPUs of this compute capability; or an e8m0 for each 32 summed elements, from another capability on. */
enum {
  MS_LT_SCALE_SCALAR_32F = 0,
  MS_LT_SCALE_VEC32_UE8M0 = 2,
  MS_LT_SCALE_OUTER_VEC_32F = 3,
  MS_LT_SCALE_VEC128_32F = 4,
  MS_LT_SCALE_BLK128X128_32F = 5
};
enum { MS_LT_OUTER_VEC_VERSION = 120900, MS_LT_OUTER_VEC_MAJOR = 9 };
enum { MS_LT_VEC32_VERSION = 120800, MS_LT_VEC32_MAJOR = 10 };
enum {
  MS_LT_EPILOGUE_DEFAULT = 1,
  MS_LT_EPILOGUE_BIAS = 4,
  MS_LT_EPILOGUE_GELU = 32, /* the tanh form */
  MS_LT_EPILOGUE_GELU_BIAS = 36,
  MS_LT_EPILOGUE_GELU_AUX_BIAS = 164, /* also stores the input of gelu */
  MS_LT_EPILOGUE_DGELU = 192,         /* the product times gelu' of the auxiliary matrix */
  MS_LT_EPILOGUE_DGELU_BGRAD = 208    /* and its column sums, in the dtype of the result */
};
enum {
  MS_LT_PREF_MAX_WORKSPACE_BYTES = 1,
  MS_LT_PREF_REDUCTION_SCHEME_MASK = 3,
  MS_LT_PREF_MIN_ALIGNMENT_A_BYTES = 5, /* B, C and D are the next numbers */
  MS_LT_PREF_MIN_ALIGNMENT_D_BYTES = 8
};
/* How partial sums along k are combined: in f32, in the workspace, by a separate step, never in place. */
enum { MS_LT_REDUCTION_IN_PLACE = 1, MS_LT_REDUCTION_COMPUTE_TYPE = 2 };

/* An algorithm. It can be stored and reused with the same version of the library. */
typedef struct ms_lt_algo {
  uint64_t data[8];
} ms_lt_algo;

typedef struct ms_lt_result {
  ms_lt_algo algo;
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
} ms_lt_result;

typedef struct ms_cublaslt {
  size_t (*get_version)(void);
  const char *(*get_status_name)(int status);
  int (*create)(ms_lt_handle *handle);
  int (*destroy)(ms_lt_handle handle);
  int (*desc_create)(ms_lt_desc **desc, int compute_type, int scale_type);
  int (*desc_destroy)(ms_lt_desc *desc);
  int (*desc_set)(ms_lt_desc *desc, int attribute, const void *value, size_t bytes);
  int (*layout_create)(ms_lt_layout **layout, int type, uint64_t rows, uint64_t columns, int64_t leading);
  int (*layout_destroy)(ms_lt_layout *layout);
  int (*layout_set)(ms_lt_layout *layout, int attribute, const void *value, size_t bytes);
  int (*preference_create)(ms_lt_preference **preference);
  int (*preference_destroy)(ms_lt_preference *preference);
  int (*preference_set)(ms_lt_preference *preference, int attribute, const void *value, size_t bytes);
  int (*algo_get_heuristic)(ms_lt_handle handle, ms_lt_desc *desc, ms_lt_layout *a, ms_lt_layout *b, ms_lt_layout *c,
                            ms_lt_layout *d, ms_lt_preference *preference, int wanted, ms_lt_result *results,
                            int *count);
  int (*algo_check)(ms_lt_handle handle, ms_lt_desc *desc, ms_lt_layout *a, ms_lt_layout *b, ms_lt_layout *c,
                    ms_lt_layout *d, const ms_lt_algo *algo, ms_lt_result *result);
  int (*matmul)(ms_lt_handle handle, ms_lt_desc *desc, const void *alpha, const void *a, ms_lt_layout *a_layout,
                const void *b, ms_lt_layout *b_layout, const void *beta, const void *c, ms_lt_layout *c_layout, void *d,
                ms_lt_layout *d_layout, const ms_lt_algo *algo, void *workspace, size_t workspace_bytes,
                cudaStream_t stream);
} ms_cublaslt;

/* File names to try unless MOONSHARD_CUBLASLT_LIBRARY names a file: names for the dynamic linker, then the toolkit's
 * folder. */
#define MS_CUBLASLT_NAMES "libcublasLt.so.13", "libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so.13"
extern const ms_library ms_cublaslt_library;

extern ms_handles ms_cublaslt_handles; /* handles are ms_lt_handle, the table is an ms_cublaslt */
/* MS_OK, or an error such as "cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED". */
#define MS_CUBLASLT(lt, function, ...) MS_HANDLES_CALL(ms_cublaslt_handles, lt, ms_cublaslt, function, __VA_ARGS__)

#endif
