/* base.h - what all parts of the header use: status codes and errors, element types, devices, hashes.
 *
 * A part of moonshard.h, which explains the conventions. The Lua layer parses the text between the two ffi marks: it
 * contains no preprocessor directives, and no function returns a 64-bit value.
 */
#ifndef MOONSHARD_BASE_H
#define MOONSHARD_BASE_H

#include <stdint.h>

#if defined(__GNUC__)
  #define MS_API __attribute__((visibility("default")))
#else
  #define MS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ffi:begin */

enum { MS_ABI_VERSION = 14, MS_MAX_DIMS = 6, MS_MAX_MESH_DIMS = 6, MS_MAX_INPUTS = 8, MS_MAX_OUTPUTS = 5 };
/* The most ranks that a job can have, and one host. */
enum { MS_MAX_RANKS = 4096, MS_MAX_LOCAL_RANKS = 64 };

/* ---- status and errors ------------------------------------------------------------------------------------------ */

enum ms_status {
  MS_OK = 0,
  MS_EINVAL = 1, /* an invalid argument, or a call in the wrong state */
  MS_ESHAPE = 2, /* shapes that do not match */
  MS_EDTYPE = 3, /* element types that do not match, or are not supported here */
  MS_ENAME = 4,  /* an unknown name, or one that is already used */
  MS_ERULE = 5,  /* a rule with a bad pattern, or one that matches nothing */
  MS_ENOMEM = 6,
  MS_EIO = 7,          /* a file operation or a system call failed */
  MS_EUNSUPPORTED = 8, /* valid, but not supported by this build or device */
  MS_EPEER = 9,        /* another rank died or gave up */
  MS_ETIMEOUT = 10,    /* a wait reached its deadline */
  MS_EMISMATCH = 11,   /* ranks disagree */
  MS_ENONFINITE = 12,  /* the loss or the gradient norm is NaN or infinite */
  MS_ERACE = 13,       /* the verifier rejected a plan */
  MS_EINTERRUPT = 14,  /* Ctrl-C */
  MS_EINTERNAL = 15,
  MS_EDEVICE = 16 /* a GPU, its driver or one of its libraries failed */
};

/* Each thread has a record of its latest failed call: code, message and place, which always belong together. The code
 * is the status that the call returned. A successful call does not change the record, even if it tried something that
 * failed; only ms_error_clear empties it. So check the status first, and read the record only after a failure. The
 * texts are valid until the thread's next failure. */
MS_API int ms_error_code(void);
MS_API const char *ms_error_message(void); /* what is wrong, and what would be right; never NULL */
MS_API const char *ms_error_where(void);   /* "file.c:123", the C source line that raised the error */
MS_API void ms_error_clear(void);
/* The name of a status: "MS_EINVAL". */
MS_API const char *ms_status_name(int status);
/* MS_ABI_VERSION of the library. The version increases when a program that was compiled with an older header would
 * break: a function or field disappears, moves or changes its meaning. New functions, enumerators, and fields at the
 * end of a struct that says its size do not increase it. libmoonshard.so.N has version N, so the dynamic linker keeps
 * versions apart; programs that load the library themselves compare this number with MS_ABI_VERSION. */
MS_API int ms_abi_version(void);
MS_API const char *ms_version(void);

/* ---- objects and structs ----------------------------------------------------------------------------------------- */

/* Releases an object that another call has made: a handle of any kind. NULL, and one that was released before, are
 * allowed. A world is left, without communicating. */
MS_API void ms_free(void *object);
/* Fills a struct that begins with struct_size with its defaults; type is its name, "ms_plan_config", and size its
 * sizeof. MS_ENAME if no struct is called so. */
MS_API int ms_config_default(const char *type, void *config, int size);
/* Checks the values in an ms_cluster or a struct of moonshard/settings.h, and that those that are set go together, as
 * every call that takes one does before anything else; size is its sizeof. The error names the field. MS_ENAME for
 * other structs. */
MS_API int ms_config_check(const char *type, const void *config, int size);

/* ---- element types ---------------------------------------------------------------------------------------------- */

/* The first four are computed in. Tensors can hold the next four, and ops that only move bytes take them; the op cast
 * converts between all eight (not to u8), through f32, which holds all but large numbers of i32 exactly:
 *
 *   f8e4m3  1 sign, 4 exponent and 3 fraction bits, bias 7, to 448: no infinities; 0x7f and 0xff are NaN
 *   f8e5m2  1, 5 and 2 bits, bias 15, to 57344: with infinities and NaNs
 *   e8m0    8 exponent bits: the powers of two from 2^-127 to 2^127, for scales; 0xff is NaN
 *   i8      two's complement
 *
 * A cast to f8 rounds to nearest, ties to even, and saturates: beyond the largest finite number, infinities included,
 * it gives that number with the sign of the input; NaN gives 0x7f. To e8m0 it rounds to the nearest power of two, ties
 * up; 0 and what is below 2^-127 give 2^-127, finite numbers above 2^127 that; negative numbers, infinity and NaN give
 * NaN. To i8, as to i32, it truncates and saturates, and NaN gives 0.
 *
 * The last two are packed, two elements a byte, the first one in the high four bits. They mean something only with
 * scales, so no tensor of a graph has them, and no op takes them. With scales they are formats in which parameters are
 * stored and sums are sent, as i8 is, and f8 (enum ms_dtype_use):
 *
 *   i4      two's complement, -8 to 7
 *   nf4     the number of an entry of QLoRA's table of 16 quantiles of a normal distribution, -1 to 1 */
enum ms_dtype {
  MS_F32 = 0,
  MS_BF16 = 1,
  MS_I32 = 2,
  MS_U8 = 3,
  MS_F8E4M3 = 4,
  MS_F8E5M2 = 5,
  MS_E8M0 = 6,
  MS_I8 = 7,
  MS_I4 = 8,
  MS_NF4 = 9,
  MS_DTYPES = 10
};

/* Where an element type can be used, as flags. */
enum ms_dtype_use {
  MS_DTYPE_FLOAT = 1 << 0,  /* floating point that kernels compute with, and that has gradients */
  MS_DTYPE_CAST = 1 << 1,   /* result of the op cast */
  MS_DTYPE_PARAM = 1 << 2,  /* parameters as kernels read them */
  MS_DTYPE_REDUCE = 1 << 3, /* reductions over ranks; each addition is in f32 */
  MS_DTYPE_SUM = 1 << 4,    /* sums of micro-batches */
  MS_DTYPE_MOMENT = 1 << 5, /* moments of optimizers */
  /* Kernels and sums read and write it. Their loops over floats exist for f32 and bf16: what is not the one is the
   * other. So nothing else may reach them, and every call is checked for this flag before it is prepared. */
  MS_DTYPE_LOOPS = 1 << 6,
  MS_DTYPE_STORED = 1 << 7,   /* frozen parameters are stored in it (ms_param_config.storage_dtype) */
  MS_DTYPE_PIECES = 1 << 8,   /* ranks send sums in it, in blocks with a scale (ms_unit_config.shard_dtype) */
  MS_DTYPE_GATHERED = 1 << 9, /* shards gather masters in it, in blocks with a scale (ms_param_config.gather_dtype) */
  MS_DTYPE_BLOCKS = 1 << 10,  /* elements are codes with a scale for each block of them */
  MS_DTYPE_SCALED = 1 << 11,  /* and also with one scale for all, or with scales of e8m0 */
  MS_DTYPE_PRODUCT = 1 << 12  /* devices have matrix products of it, so a cluster describes their peak */
};

/* The properties of an element type. */
typedef struct ms_dtype_info {
  const char *name, *long_name; /* "bf16", and PyTorch's name, "bfloat16" */
  const char *c_type;           /* in memory; a bf16 is the upper half of an f32, stored in a uint16_t */
  const char *stored;           /* the name in safetensors files; "U8" for the bytes of packed types */
  int size;                     /* bytes of one element; 0 of packed types */
  int bits;                     /* of one element; fewer than 8: packed, 8 / bits elements a byte */
  int is_float;                 /* 1: the values are floating-point numbers; 0: integers */
  double lowest, largest;       /* finite values */
  int uses;                     /* flags of enum ms_dtype_use */
  /* How far two runs that compute in it, or send gradients in it, may differ: relative, for losses and parameters, and
   * for the norm of gradients, which some types round individually; 0: runs are not compared in it. */
  double tolerance, norm_tolerance;
} ms_dtype_info;

MS_API int ms_dtype_describe(int dtype, ms_dtype_info *info, int size); /* MS_EDTYPE if there is no such type */

/* ---- devices ---------------------------------------------------------------------------------------------------- */

/* Where kernels run and tensors are stored. CUDA needs libmoonshard_cuda.so in the folder of the engine's library; the
 * first call that can use it loads it. If it is missing, plans are compiled and priced all the same; other calls for
 * CUDA are MS_EUNSUPPORTED. Rank i of a host uses GPU i. */
enum ms_device_kind { MS_DEVICE_CPU = 0, MS_DEVICE_CUDA = 1 };

/* How NCCL moves bytes between GPUs that can access each other's memory. Both options allocate communicated buffers
 * with NCCL and register them with every communicator (windows; NCCL 2.27 or later), which avoids copies of small
 * messages. COPY_ENGINES includes WINDOWS, and all-gathers then use copy engines instead of multiprocessors (NCCL 2.28
 * or later). */
enum ms_nccl_option { MS_NCCL_WINDOWS = 1, MS_NCCL_COPY_ENGINES = 2 };

/* A GPU, or the host with all of its processors: the only device of MS_DEVICE_CPU. */
typedef struct ms_device_info {
  char name[256];               /* of the model; "": unknown */
  int major, minor;             /* compute capability; 0 of the host */
  int processors;               /* streaming multiprocessors; of the host: the cores that this process can keep busy */
  int64_t memory_bytes;         /* of the host: without swap, -1: unknown */
  int peer[MS_MAX_LOCAL_RANKS]; /* [i] 1: it can read the memory of GPU i directly */
  /* What processes can still take of the host's memory: of the machine, or of what control groups (of containers, batch
   * systems, services) leave this process; cached pages of files count as available. -1: unknown, or a GPU, for which
   * ms_state_memory says what is free. */
  int64_t available;
  int64_t limit;         /* of the group that leaves the least: this process's own, or one above it. -1: none is below
                            memory_bytes */
  char limit_file[1024]; /* the file that says this limit; "" if none does */
} ms_device_info;

/* The number of devices of a kind (enum ms_device_kind) that this process can use, and the properties of one. */
MS_API int ms_device_count(int device, int *count);
MS_API int ms_device_describe(int device, int index, ms_device_info *info, int size);
/* MS_OK if a rank can open this device; otherwise the error says why not, for example because the device's library
 * contains no code for its compute capability. */
MS_API int ms_device_check(int device, int index);
/* Libraries of a GPU. The last two stand for the version of NCCL if it supports the option of enum ms_nccl_option.
 */
enum ms_gpu_library {
  MS_LIBRARY_DRIVER = 0,
  MS_LIBRARY_RUNTIME = 1,
  MS_LIBRARY_CUBLASLT = 2,
  MS_LIBRARY_CUDNN = 3,
  MS_LIBRARY_NCCL = 4,
  MS_LIBRARY_NCCL_WINDOWS = 5,
  MS_LIBRARY_NCCL_COPY_ENGINES = 6,
  MS_LIBRARIES = 7
};
/* Writes the version of a library as text, "" if it is not found; version is [bytes]. MS_EINVAL for the CPU. */
MS_API int ms_device_library(int device, int library, char *version, int bytes);

/* ---- notes ------------------------------------------------------------------------------------------------------- */

/* What a program should show its user once: something works, but not as well as it could, because a library is missing,
 * for example. Binding a plan can add notes. Each is given once: to the log, if one is set, in the thread that adds it;
 * else to the next caller of ms_note_next, which returns NULL if there is none. Texts stay valid. A log may call the
 * library. */
typedef void (*ms_note_log)(void *user, const char *text);
/* Also gives the log, in this call, the notes that are there and were not given yet. log NULL: none. */
MS_API void ms_set_log(ms_note_log log, void *user);
MS_API const char *ms_note_next(void);

/* ---- hashing ---------------------------------------------------------------------------------------------------- */

/* Hashes bytes, so that ranks can compare their inputs; hash is [2], the high 32 bits first. Not cryptographic. */
MS_API void ms_hash(const void *data, int64_t bytes, uint32_t *hash);

/* ffi:end */

#ifdef __cplusplus
}
#endif
#endif
