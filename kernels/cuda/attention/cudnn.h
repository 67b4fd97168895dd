/* cudnn.h - the part of cuDNN's backend API that attention uses, in our own declarations: a graph of small operations
 * on descriptors, a plan that runs it, and the plan's arguments. cudnn_check.c compares them with NVIDIA's header if
 * there is one.
 *
 * A descriptor has a type and numbered attributes. Each attribute is an array of values of one type. A descriptor must
 * be finalized before use.
 */
#ifndef MS_KERNELS_CUDA_CUDNN_H
#define MS_KERNELS_CUDA_CUDNN_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#include "kernels/cuda/handles.h"

typedef void *ms_dnn_handle, *ms_dnn_descriptor;

enum { MS_DNN_SUCCESS = 0, MS_DNN_ALLOC_FAILED = 4003 };

enum { /* types of attribute values */
       MS_DNN_OF_HANDLE = 0,
       MS_DNN_OF_DATA_TYPE = 1,
       MS_DNN_OF_BOOLEAN = 2,
       MS_DNN_OF_INT64 = 3,
       MS_DNN_OF_POINTER = 6,
       MS_DNN_OF_HEUR_MODE = 8,
       MS_DNN_OF_POINTWISE_MODE = 14,
       MS_DNN_OF_DESCRIPTOR = 15,
       MS_DNN_OF_REDUCTION = 18
};

enum { /* types of descriptors */
       MS_DNN_POINTWISE = 0,
       MS_DNN_ENGINE_CONFIG = 3,
       MS_DNN_HEURISTIC = 4,
       MS_DNN_PLAN = 5,
       MS_DNN_OPERATION_POINTWISE = 13,
       MS_DNN_GRAPH = 15,
       MS_DNN_VARIANT_PACK = 16,
       MS_DNN_TENSOR = 17,
       MS_DNN_MATMUL = 18,
       MS_DNN_OPERATION_MATMUL = 19,
       MS_DNN_REDUCTION = 21,
       MS_DNN_OPERATION_REDUCTION = 22,
       MS_DNN_OPERATION_RESHAPE = 31
};

enum { /* attributes */
       MS_DNN_POINTWISE_MODE = 0,
       MS_DNN_POINTWISE_PRECISION = 1,
       MS_DNN_POINTWISE_AXIS = 9,
       MS_DNN_HEURISTIC_MODE = 200,
       MS_DNN_HEURISTIC_GRAPH = 201,
       MS_DNN_HEURISTIC_RESULTS = 202,
       MS_DNN_PLAN_HANDLE = 400,
       MS_DNN_PLAN_ENGINE_CONFIG = 401,
       MS_DNN_PLAN_WORKSPACE = 402,
       MS_DNN_OPERATION_POINTWISE_BY = 750,
       MS_DNN_OPERATION_POINTWISE_X = 751,
       MS_DNN_OPERATION_POINTWISE_B = 752,
       MS_DNN_OPERATION_POINTWISE_Y = 753,
       MS_DNN_OPERATION_POINTWISE_T = 758,
       MS_DNN_GRAPH_HANDLE = 800,
       MS_DNN_GRAPH_OPERATIONS = 801,
       MS_DNN_TENSOR_ALIGNMENT = 900,
       MS_DNN_TENSOR_DATA_TYPE = 901,
       MS_DNN_TENSOR_DIMENSIONS = 902,
       MS_DNN_TENSOR_STRIDES = 903,
       MS_DNN_TENSOR_ID = 906,
       MS_DNN_TENSOR_VIRTUAL = 907,
       MS_DNN_TENSOR_BY_VALUE = 908,
       MS_DNN_PACK_IDS = 1000,
       MS_DNN_PACK_POINTERS = 1001,
       MS_DNN_PACK_WORKSPACE = 1003,
       MS_DNN_MATMUL_PRECISION = 1500,
       MS_DNN_OPERATION_MATMUL_A = 1520,
       MS_DNN_OPERATION_MATMUL_B = 1521,
       MS_DNN_OPERATION_MATMUL_C = 1522,
       MS_DNN_OPERATION_MATMUL_BY = 1523,
       MS_DNN_REDUCTION_OPERATOR = 1600,
       MS_DNN_REDUCTION_PRECISION = 1601,
       MS_DNN_OPERATION_REDUCTION_X = 1610,
       MS_DNN_OPERATION_REDUCTION_Y = 1611,
       MS_DNN_OPERATION_REDUCTION_BY = 1612,
       MS_DNN_OPERATION_RESHAPE_X = 2200,
       MS_DNN_OPERATION_RESHAPE_Y = 2201
};

enum { /* dtypes */
       MS_DNN_F32 = 0,
       MS_DNN_I32 = 4,
       MS_DNN_BF16 = 9,
       MS_DNN_BOOLEAN = 11
};

enum { /* pointwise operations; x and b are the operands, t selects between them */
       MS_DNN_ADD = 0,
       MS_DNN_MUL = 1,
       MS_DNN_DIV = 6,
       MS_DNN_SUB = 9,
       MS_DNN_EXP = 13,
       MS_DNN_LOG = 15,
       MS_DNN_IDENTITY = 21,
       MS_DNN_GREATER_EQUAL = 303,
       MS_DNN_INDEX = 501,
       MS_DNN_SELECT = 601
};

enum { MS_DNN_REDUCE_ADD = 0, MS_DNN_REDUCE_MAX = 3 };
enum { MS_DNN_HEURISTIC_A = 3 };

typedef struct ms_cudnn {
  size_t (*get_version)(void);
  const char *(*get_error_string)(int status);
  void (*get_last_error)(char *message, size_t bytes);
  int (*create)(ms_dnn_handle *handle);
  int (*destroy)(ms_dnn_handle handle);
  int (*set_stream)(ms_dnn_handle handle, cudaStream_t stream);
  int (*descriptor_create)(int type, ms_dnn_descriptor *descriptor);
  int (*descriptor_destroy)(ms_dnn_descriptor descriptor);
  int (*descriptor_finalize)(ms_dnn_descriptor descriptor);
  int (*descriptor_set)(ms_dnn_descriptor descriptor, int attribute, int kind, int64_t count, const void *values);
  int (*descriptor_get)(ms_dnn_descriptor descriptor, int attribute, int kind, int64_t capacity, int64_t *count,
                        void *values);
  int (*execute)(ms_dnn_handle handle, ms_dnn_descriptor plan, ms_dnn_descriptor pack);
} ms_cudnn;

/* File names to try unless MOONSHARD_CUDNN_LIBRARY names a file: names for the dynamic linker, then the toolkit's
 * folder. */
#define MS_CUDNN_NAMES "libcudnn.so.9", "/usr/local/cuda/lib64/libcudnn.so.9"
extern const ms_library ms_cudnn_library;

extern ms_handles ms_cudnn_handles; /* handles are ms_dnn_handle, the table is an ms_cudnn */
/* Runs a plan on a stream. Threads that share a handle take turns. */
int ms_cudnn_execute(ms_dnn_handle handle, void *stream, ms_dnn_descriptor plan, ms_dnn_descriptor pack);
/* MS_OK, or an error with the library's last message: "cudnnBackendFinalize: CUDNN_STATUS_BAD_PARAM: ...". */
#define MS_CUDNN(dnn, function, ...) MS_HANDLES_CALL(ms_cudnn_handles, dnn, ms_cudnn, function, __VA_ARGS__)

#endif
