/* device.h - where tensors live and kernels run: the functions that the rest of the engine asks of a device.
**
** What a device can do is a set of capabilities; outside of this folder they are asked for, never the kind of device. A
** device whose memory is the host's (the CPU) has no streams here: the executor runs its plans on host threads, and its
** ranks meet in shared memory. An asynchronous device has memory that only copies reach, streams that do in order what
** they were given, events that order streams and report how far they are, and collectives of its own. Its functions
** enqueue and return; those that wait say so.
*/
#ifndef MS_DEVICE_DEVICE_H
#define MS_DEVICE_DEVICE_H

#include "kernels/op.h"

/* Of this table: a library that was built for another is refused. */
enum { MS_DEVICE_VERSION = 3, MS_DEVICE_ID_BYTES = 128, MS_DEVICE_PEERS = 64 };

typedef struct ms_device ms_device;
typedef struct ms_device_stream ms_device_stream;
typedef struct ms_device_event ms_device_event;
typedef struct ms_device_graph ms_device_graph;
typedef struct ms_device_comm ms_device_comm;
typedef struct ms_device_window ms_device_window;

/* What plans and the executor must know of a device. */
enum ms_device_capability {
  MS_DEVICE_HOST_MEMORY =
      1, /* the host follows pointers into its arenas, and the ranks of a host can map them together */
  MS_DEVICE_ASYNCHRONOUS = 2,      /* it has streams and events: all functions below `write` are there, and only then */
  MS_DEVICE_SPANS_HOSTS = 4,       /* its collectives reach ranks on other hosts */
  MS_DEVICE_SUMS_IN_PLACE = 8,     /* its collectives leave sums, or parts of them, in the buffers that they sum */
  MS_DEVICE_PRODUCT_ADDS = 16,     /* a matrix product adds to its output without a pass of its own */
  MS_DEVICE_PRODUCT_EPILOGUES = 32 /* a bias, an activation and their gradients are computed within a matrix product */
};

/* What a process has of a device beside arenas, in bytes. */
typedef struct ms_device_usage {
  int64_t total, free;   /* of the device, at this moment */
  int64_t arenas;        /* allocated and not released */
  int64_t context;       /* taken by the first use of the device in this process, as the device's free memory tells */
  int64_t communicators; /* taken while communicators were opened */
  int64_t pinned;        /* of the host */
} ms_device_usage;

enum ms_device_coll { MS_DEVICE_ALL_GATHER, MS_DEVICE_REDUCE_SCATTER, MS_DEVICE_ALL_REDUCE };

/* One buffer of a grouped collective; count: elements of a rank's chunk, or of everything (all_reduce). Sums are
** taken in the dtype. In place: all_gather's from is its chunk in to; reduce_scatter's to is its chunk in from. */
typedef struct ms_device_part {
  const void *from;
  void *to;
  int64_t count;
  int dtype; /* enum ms_dtype; sums of those with MS_DTYPE_REDUCE (base/dtype.h) */
} ms_device_part;

typedef struct ms_device_api {
  int version; /* MS_DEVICE_VERSION */
  int kind;    /* enum ms_device_kind */
  const char *name;
  unsigned capabilities; /* enum ms_device_capability */
  /* The kernel of an op; NULL for an alias. Needs no device to be open, and none to be there. */
  const ms_kernel *(*kernel)(int op);
  /* local_rank: of this process on its host, by which it takes its device. nccl: enum ms_nccl_option. */
  int (*open)(int local_rank, int nccl, ms_device **device);
  void (*close)(ms_device *device);
  /* Zero-filled, 4096-byte aligned. label: what it is for, in messages. communicated: collectives read and write it.
  ** May wait for the device. */
  int (*allocate)(ms_device *device, int64_t bytes, int communicated, const char *label, void **base);
  void (*release)(ms_device *device, void *base, int64_t bytes, int communicated);
  /* Between the host and an arena; done when they return. Whoever calls them has waited for the streams that use
  ** those bytes. */
  int (*read)(ms_device *device, void *host, const void *at, int64_t bytes);
  int (*write)(ms_device *device, void *at, const void *host, int64_t bytes);

  /* Makes the device the calling thread's: before anything else on another thread than the one that opened it. */
  int (*attach)(ms_device *device);
  int (*pin)(ms_device *device, int64_t bytes, void **host);
  void (*unpin)(ms_device *device, void *host, int64_t bytes);
  /* urgent: its work goes before that of other streams where both could start. */
  int (*stream_open)(ms_device *device, int urgent, ms_device_stream **stream);
  void (*stream_close)(ms_device *device, ms_device_stream *stream);
  /* timed: elapsed may be asked of it. */
  int (*event_open)(ms_device *device, int timed, ms_device_event **event);
  void (*event_close)(ms_device *device, ms_device_event *event);
  int (*record)(ms_device *device, ms_device_event *event, ms_device_stream *stream);
  int (*wait)(ms_device *device, ms_device_stream *stream, ms_device_event *event);
  /* *done: the stream has come to where the event was recorded last. An error is any that the device has met since. */
  int (*query)(ms_device *device, ms_device_event *event, int *done);
  int (*elapsed)(ms_device *device, ms_device_event *from, ms_device_event *to, double *seconds);
  /* Host memory must be pinned, and stay as it is until the stream is past the copy. */
  int (*copy_in)(ms_device *device, ms_device_stream *stream, void *at, const void *pinned, int64_t bytes);
  int (*copy_out)(ms_device *device, ms_device_stream *stream, void *pinned, const void *at, int64_t bytes);
  int (*copy)(ms_device *device, ms_device_stream *stream, void *to, const void *from, int64_t bytes);
  /* All of them by as few launches as the device can: one for as many as a unit has. */
  int (*move)(ms_device *device, ms_device_stream *stream, int moves, const ms_move *move);
  int (*usage)(ms_device *device, ms_device_usage *usage);
  int64_t (*allocations)(void); /* of memory, streams, events, graphs and communicators, since the process began */

  /* *pinned = *value when the stream comes here, also in a graph; value: in an arena. */
  int (*mark)(ms_device *device, ms_device_stream *stream, int64_t *pinned, const int64_t *value);
  /* What is enqueued on the stream, and on streams that wait for it, from begin to end becomes a graph and does not
  ** run. */
  int (*capture_begin)(ms_device *device, ms_device_stream *stream);
  int (*capture_end)(ms_device *device, ms_device_stream *stream, ms_device_graph **graph); /* NULL: gives up */
  int (*graph_run)(ms_device *device, ms_device_graph *graph, ms_device_stream *stream);
  void (*graph_close)(ms_device *device, ms_device_graph *graph);

  /* Communicators. An id is made by one rank and told to the others; opening and splitting begin what comm_ready
  ** tells the end of, and all ranks of the parent split together: those of one color into one communicator, ordered
  ** by key. */
  int (*comm_id)(ms_device *device, void *id); /* NULL: only tells whether there can be communicators */
  int (*comm_open)(ms_device *device, const void *id, int size, int rank, ms_device_comm **comm);
  int (*comm_split)(ms_device *device, ms_device_comm *parent, int color, int key, ms_device_comm **comm);
  /* *ready: nothing is under way on the host side. The first error of the communicator, also one met by a
  ** collective, fails. */
  int (*comm_ready)(ms_device *device, ms_device_comm *comm, int *ready);
  /* Registers communicated memory, of equal size on all ranks of the communicator, which do it together; closed
  ** before the memory is released, if the communicator is still there. */
  int (*window_open)(ms_device *device, ms_device_comm *comm, void *base, int64_t bytes, ms_device_window **window);
  void (*window_close)(ms_device *device, ms_device_comm *comm, ms_device_window *window);
  /* All parts as one operation on the stream. Before the next, comm_ready must have told that this one is enqueued. */
  int (*collective)(ms_device *device, ms_device_comm *comm, ms_device_stream *stream, int kind, int parts,
                    const ms_device_part *part);
  /* Ends what is under way and frees the communicator, without the other ranks; waits at most so many seconds for
  ** that. */
  void (*comm_close)(ms_device *device, ms_device_comm *comm, double seconds);

  /* What `moonshard doctor` tells; none of it opens a device. */
  int (*count)(int *devices);
  int (*describe)(int index, ms_device_info *info);
  /* "driver", "runtime", "cublasLt", "cudnn", "nccl": its version, or "" where it is not found. */
  int (*library)(const char *name, char *version, int bytes);
} ms_device_api;

/* One open device; what an implementation adds follows it. */
struct ms_device {
  const ms_device_api *api;
};

/* What the engine lends to a library of a device, which has no error record of its own. */
typedef struct ms_device_host {
  int version;                                                             /* MS_DEVICE_VERSION */
  int (*raise)(int code, const char *file, int line, const char *message); /* ms_error_raise */
  void (*note)(const char *text);                                          /* ms_note */
} ms_device_host;

/* What a library exports under the name MS_DEVICE_ENTRY. NULL: it was built for another version. */
typedef const ms_device_api *(*ms_device_entry)(const ms_device_host *host);
#define MS_DEVICE_ENTRY "ms_device_table"

/* The functions of a kind of device, whose library is loaded by the first call; MS_EUNSUPPORTED when there is none. */
int ms_device_find(int kind, const ms_device_api **api);
/* The kernel of an op on a kind of device that was found before; NULL for an alias. */
const ms_kernel *ms_device_kernel(int kind, int op);
const char *ms_device_name(int kind);
/* 1 when a kind of device that was found before has a capability. */
int ms_device_can(int kind, enum ms_device_capability capability);

/* 1 when an open device has it. */
static inline int ms_device_has(const ms_device *device, enum ms_device_capability capability) {
  return (device->api->capabilities & capability) != 0;
}

extern const ms_device_api ms_cpu_device;

#endif
