/* device.h - where tensors live and kernels run: the functions that a device offers to the rest of the engine.
 *
 * A device has a set of capabilities; code outside this folder tests capabilities, never the kind of device. A device
 * whose memory is the host's (the CPU) has no streams here: the executor runs its plans on host threads, and its ranks
 * exchange data in shared memory. An asynchronous device has memory that the host reaches only by copies, streams that
 * execute work in order, events that order streams and report their progress, and its own collectives. Its functions
 * enqueue work and return, unless their comment says that they wait.
 *
 * Functions return enum ms_status unless they say otherwise.
 */
#ifndef MS_DEVICE_DEVICE_H
#define MS_DEVICE_DEVICE_H

#include "kernels/op.h"

/* What a library knows of the ops: a sum that differs where they have other names, numbers or attributes. */
#define MS_OP(name, ...) +(MS_OP_##name + 1) * (int)sizeof #name
enum {
  MS_DEVICE_OPS = (int)sizeof(ms_kernel_call)
#include "kernels/ops.def"
};
#undef MS_OP

/* MS_DEVICE_VERSION: version of this table (the last two digits) and of the ops. A library that was built for another
 * version is refused: it would take an op of a plan for another one. */
enum { MS_DEVICE_VERSION = 100 * MS_DEVICE_OPS + 9, MS_DEVICE_ID_BYTES = 128 };

typedef struct ms_device ms_device;
typedef struct ms_device_stream ms_device_stream;
typedef struct ms_device_event ms_device_event;
typedef struct ms_device_graph ms_device_graph;
typedef struct ms_device_comm ms_device_comm;
typedef struct ms_device_window ms_device_window;

/* Properties of a device that plans and the executor depend on. */
enum ms_device_capability {
  MS_DEVICE_HOST_MEMORY = 1,        /* the host can access its arenas, and the ranks of a host can map them together */
  MS_DEVICE_ASYNCHRONOUS = 2,       /* it has streams and events; without it, all functions after `write` are NULL */
  MS_DEVICE_SPANS_HOSTS = 4,        /* its collectives reach ranks on other hosts */
  MS_DEVICE_SUMS_IN_PLACE = 8,      /* its collectives overwrite the buffers they sum with full or partial sums */
  MS_DEVICE_PRODUCT_ADDS = 16,      /* a matrix product can add to its output without an extra pass */
  MS_DEVICE_PRODUCT_EPILOGUES = 32, /* a matrix product can also compute a bias, an activation and their gradients */
  /* All of CUDA's, for its library and for plans that are made without it. */
  MS_DEVICE_CUDA_CAPABILITIES = MS_DEVICE_ASYNCHRONOUS | MS_DEVICE_SPANS_HOSTS | MS_DEVICE_SUMS_IN_PLACE |
                                MS_DEVICE_PRODUCT_ADDS | MS_DEVICE_PRODUCT_EPILOGUES
};

/* A device's memory as this process uses it, in bytes. */
typedef struct ms_device_usage {
  int64_t total, free;   /* of the whole device, now */
  int64_t arenas;        /* allocated and not yet released */
  int64_t context;       /* used on the device (total - free) when this process first opened it */
  int64_t communicators; /* by how much free memory fell while communicators were opened */
  int64_t pinned;        /* pinned host memory */
} ms_device_usage;

enum ms_device_coll {
  MS_DEVICE_ALL_GATHER,
  MS_DEVICE_REDUCE_SCATTER,
  MS_DEVICE_ALL_REDUCE,
  MS_DEVICE_ALL_REDUCE_MAX,
  MS_DEVICE_ALL_TO_ALL /* chunk p of `from` goes to rank p; chunk p of `to` comes from it. Never in place */
};

/* One buffer of a grouped collective. count: elements per rank, or of the whole buffer for all_reduce. Sums are
 * computed in dtype. In place: all_gather's `from` is the rank's chunk of `to`; reduce_scatter's `to` is its chunk of
 * `from`. */
typedef struct ms_device_part {
  const void *from;
  void *to;
  int64_t count;
  int dtype; /* enum ms_dtype; sums only for dtypes with MS_DTYPE_REDUCE (base/numbers/dtype.h) */
} ms_device_part;

typedef struct ms_device_api {
  int version; /* MS_DEVICE_VERSION */
  int kind;    /* enum ms_device_kind */
  const char *name;
  unsigned capabilities; /* enum ms_device_capability */
  /* The kernel of an op; NULL for an alias. Works without an open device, and on a machine without one. */
  const ms_kernel *(*kernel)(int op);
  /* local_rank: this process's rank on its host, which selects the device. nccl: enum ms_nccl_option. carveout:
   * multiprocessors that products leave to collectives (ms_plan_config.sm_carveout), which then have no more thread
   * blocks; MS_EINVAL if the device has no more than that. */
  int (*open)(int local_rank, int nccl, int carveout, ms_device **device);
  void (*close)(ms_device *device);
  /* *base: zero-filled memory, 4096-byte aligned. label: its purpose, for messages. communicated: collectives read and
   * write it. Can wait for the device. */
  int (*allocate)(ms_device *device, int64_t bytes, int communicated, const char *label, void **base);
  void (*release)(ms_device *device, void *base, int64_t bytes, int communicated);
  /* Copy between the host and an arena, and wait until the copy is done. The caller has waited for the streams that use
   * those bytes. */
  int (*read)(ms_device *device, void *host, const void *at, int64_t bytes);
  int (*write)(ms_device *device, void *at, const void *host, int64_t bytes);

  /* Selects the device on the calling thread; required on every thread but the one that opened it. */
  int (*attach)(ms_device *device);
  /* *host: zero-filled pinned host memory, as asynchronous copies need it. */
  int (*pin)(ms_device *device, int64_t bytes, void **host);
  void (*unpin)(ms_device *device, void *host, int64_t bytes);
  /* urgent: its work takes precedence over that of other streams. */
  int (*stream_open)(ms_device *device, int urgent, ms_device_stream **stream);
  void (*stream_close)(ms_device *device, ms_device_stream *stream);
  /* timed: elapsed accepts the event. */
  int (*event_open)(ms_device *device, int timed, ms_device_event **event);
  void (*event_close)(ms_device *device, ms_device_event *event);
  int (*record)(ms_device *device, ms_device_event *event, ms_device_stream *stream);
  int (*wait)(ms_device *device, ms_device_stream *stream, ms_device_event *event);
  /* *done: the stream has reached the event's last record. Also returns errors of work that was enqueued earlier. */
  int (*query)(ms_device *device, ms_device_event *event, int *done);
  /* *seconds between two timed events that the device has reached. */
  int (*elapsed)(ms_device *device, ms_device_event *from, ms_device_event *to, double *seconds);
  /* Host memory must be pinned, and unchanged until the stream has finished the copy. */
  int (*copy_in)(ms_device *device, ms_device_stream *stream, void *at, const void *pinned, int64_t bytes);
  int (*copy_out)(ms_device *device, ms_device_stream *stream, void *pinned, const void *at, int64_t bytes);
  int (*copy)(ms_device *device, ms_device_stream *stream, void *to, const void *from, int64_t bytes);
  /* Copies, converts or adds all moves with as few launches as possible: usually one per unit. */
  int (*move)(ms_device *device, ms_device_stream *stream, int moves, const ms_move *move);
  int (*usage)(ms_device *device, ms_device_usage *usage);
  /* The device's address on its host, the same for two processes that use the same device; "" where they are allowed
   * to. text: [bytes] */
  int (*place)(ms_device *device, char *text, int bytes);
  int64_t (*allocations)(void); /* of memory, streams, events, graphs and communicators, since the process started */

  /* Enqueues *pinned = *value, also inside a graph. value: in device memory. */
  int (*mark)(ms_device *device, ms_device_stream *stream, int64_t *pinned, const int64_t *value);
  /* What is enqueued on the stream, and on streams that wait for it, from begin to end becomes a graph and does not
   * run. */
  int (*capture_begin)(ms_device *device, ms_device_stream *stream);
  int (*capture_end)(ms_device *device, ms_device_stream *stream, ms_device_graph **graph); /* NULL: gives up */
  int (*graph_run)(ms_device *device, ms_device_graph *graph, ms_device_stream *stream);
  void (*graph_close)(ms_device *device, ms_device_graph *graph);

  /* Communicators. One rank makes an id and sends it to the others. comm_open and comm_split only begin: comm_ready
   * reports when they are done. All ranks of the parent split together; those with the same color form a communicator,
   * ordered by key. */
  /* id: [MS_DEVICE_ID_BYTES]; NULL: only checks that communicators work. at_once: the most communicators of this device
   * that run a collective at the same time. Called before comm_open on every rank. */
  int (*comm_id)(ms_device *device, int at_once, void *id);
  int (*comm_open)(ms_device *device, const void *id, int size, int rank, ms_device_comm **comm);
  int (*comm_split)(ms_device *device, ms_device_comm *parent, int color, int key, ms_device_comm **comm);
  /* *ready: nothing is pending on the host side. Returns the communicator's first error, including those of
   * collectives. */
  int (*comm_ready)(ms_device *device, ms_device_comm *comm, int *ready);
  /* Registers communicated memory. Collective over the communicator, with the same size on all ranks. Close the window
   * before the memory is released; closing the communicator closes it too. */
  int (*window_open)(ms_device *device, ms_device_comm *comm, void *base, int64_t bytes, ms_device_window **window);
  void (*window_close)(ms_device *device, ms_device_comm *comm, ms_device_window *window);
  /* Enqueues all parts as one operation. Call comm_ready until it reports *ready before the next collective. */
  int (*collective)(ms_device *device, ms_device_comm *comm, ms_device_stream *stream, int kind, int parts,
                    const ms_device_part *part);
  /* Begins to abort collectives in flight and to free the communicator, without the other ranks. Each can wait for the
   * collectives of others, so abort all communicators before the first is closed, splits before their parents. *comm
   * becomes NULL if there is nothing to wait for. */
  void (*comm_abort)(ms_device *device, ms_device_comm **comm);
  /* Waits at most `seconds` for that. */
  void (*comm_close)(ms_device *device, ms_device_comm *comm, double seconds);

  /* What there is; these do not open a device. */
  int (*count)(int *devices);
  int (*describe)(int index, ms_device_info *info);
  int (*check)(int index); /* whether open accepts it */
  /* "driver", "runtime", "cublasLt", "cudnn", "nccl": its version, or "" if not found. NULL: the kind has none. */
  int (*library)(const char *name, char *version, int bytes);
} ms_device_api;

/* An open device; an implementation's own fields follow it. */
struct ms_device {
  const ms_device_api *api;
};

/* Functions of the engine that a device library calls, since it has no error record of its own. */
typedef struct ms_device_host {
  int version;                                                             /* MS_DEVICE_VERSION */
  int (*raise)(int code, const char *file, int line, const char *message); /* ms_error_raise */
  void (*note)(const char *text);                                          /* ms_note */
} ms_device_host;

/* The function that a library exports as MS_DEVICE_ENTRY. Returns NULL if it was built for another version. */
typedef const ms_device_api *(*ms_device_entry)(const ms_device_host *host);
#define MS_DEVICE_ENTRY "ms_device_table"

/* *api: the functions of a kind of device. The first call loads its library; MS_EUNSUPPORTED without one.
 * Thread-safe. */
int ms_device_find(int kind, const ms_device_api **api);
/* The same for plans, which need only capabilities, and of kernels only prepare and in_place: where no library is
 * installed, plans are compiled from the engine's own table of these (planned_cuda.c), and this process can then not
 * use a library that appears later. */
int ms_device_find_for_plans(int kind);
/* The kernel of an op; NULL for an alias. One of the two functions above has found this kind before. */
const ms_kernel *ms_device_kernel(int kind, int op);
const char *ms_device_name(int kind);
/* 1 when a kind of device, which has been found before, has a capability. */
int ms_device_can(int kind, enum ms_device_capability capability);

/* 1 when an open device has the capability. */
static inline int ms_device_has(const ms_device *device, enum ms_device_capability capability) {
  return (device->api->capabilities & capability) != 0;
}

extern const ms_device_api ms_cpu_device;
extern const ms_device_api ms_planned_cuda_device; /* compiles plans, and does nothing else */

#endif
