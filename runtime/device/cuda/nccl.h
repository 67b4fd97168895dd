/* nccl.h - the part of NCCL that Moonshard uses, loaded at run time. Names, values and layouts match NCCL 2.18 and
 * later; nccl.c compares them with NCCL's header if the toolkit has it.
 */
#ifndef MS_DEVICE_CUDA_NCCL_H
#define MS_DEVICE_CUDA_NCCL_H

#include <limits.h>
#include <stddef.h>

#include <cuda_runtime_api.h>

typedef struct ncclComm *ms_nccl_comm;
typedef struct ncclWindow_vidmem *ms_nccl_window;

typedef struct ms_nccl_id {
  char bytes[128];
} ms_nccl_id;

enum { MS_NCCL_SUCCESS = 0, MS_NCCL_IN_PROGRESS = 7 };
enum { MS_NCCL_SUM = 0, MS_NCCL_MAX = 2 };
enum { MS_NCCL_UINT8 = 1, MS_NCCL_INT32 = 2, MS_NCCL_FLOAT32 = 7, MS_NCCL_BFLOAT16 = 9 };

/* ncclConfig_t of NCCL 2.28. The library learns from size and version which fields are present; those of 2.18.5 end
 * before comm_name. */
typedef struct ms_nccl_config {
  size_t size;
  unsigned magic, version;
  int blocking, cga_cluster_size, min_ctas, max_ctas;
  const char *net_name;
  int split_share, traffic_class;
  const char *comm_name;
  int collnet_enable, cta_policy, shrink_share, nvls_ctas, channels_per_net_peer, nvlink_centric_sched;
} ms_nccl_config;

enum { MS_NCCL_CTA_POLICY_ZERO = 2, MS_NCCL_WINDOW_SYMMETRIC = 1 };
/* First versions with everything that is always needed, with windows, with gathers by copy engines. */
enum { MS_NCCL_OLDEST = 21805, MS_NCCL_HAS_WINDOWS = 22700, MS_NCCL_HAS_COPY_ENGINES = 22800 };
#define MS_NCCL_MAGIC 0xcafebeefu

typedef struct ms_nccl {
  int (*get_version)(int *version);
  int (*get_unique_id)(ms_nccl_id *id);
  int (*comm_init_rank_config)(ms_nccl_comm *comm, int ranks, ms_nccl_id id, int rank, ms_nccl_config *config);
  int (*comm_split)(ms_nccl_comm comm, int color, int key, ms_nccl_comm *part, ms_nccl_config *config);
  int (*comm_get_async_error)(ms_nccl_comm comm, int *error);
  int (*comm_count)(ms_nccl_comm comm, int *ranks);
  int (*comm_abort)(ms_nccl_comm comm);
  const char *(*get_error_string)(int result);
  const char *(*get_last_error)(ms_nccl_comm comm);
  int (*group_start)(void);
  int (*group_end)(void);
  int (*all_gather)(const void *from, void *to, size_t count, int dtype, ms_nccl_comm comm, cudaStream_t stream);
  int (*reduce_scatter)(const void *from, void *to, size_t count, int dtype, int op, ms_nccl_comm comm,
                        cudaStream_t stream);
  int (*all_reduce)(const void *from, void *to, size_t count, int dtype, int op, ms_nccl_comm comm,
                    cudaStream_t stream);
  int (*send)(const void *from, size_t count, int dtype, int peer, ms_nccl_comm comm, cudaStream_t stream);
  int (*recv)(void *to, size_t count, int dtype, int peer, ms_nccl_comm comm, cudaStream_t stream);
  /* NULL if the version has no windows. */
  int (*mem_alloc)(void **data, size_t bytes);
  int (*mem_free)(void *data);
  int (*window_register)(ms_nccl_comm comm, void *base, size_t bytes, ms_nccl_window *window, int flags);
  int (*window_deregister)(ms_nccl_comm comm, ms_nccl_window window);
} ms_nccl;

/* *number: NCCL's number of the type that collectives send for a dtype; MS_EDTYPE if there is none. */
int ms_nccl_dtype(int dtype, int *number);
/* Loads the library at the first call; an error says where it was searched for, or that it is too old. Thread-safe. */
int ms_nccl_load(const ms_nccl **nccl);
/* Fails with MS_EUNSUPPORTED if the installed library lacks one of these enum ms_nccl_option. */
int ms_nccl_require(int options);
/* *version: as ncclGetVersion returns it (22809 is 2.28.9). Without a library, returns non-zero and raises
 * no error. */
int ms_nccl_version(int *version);

#endif
