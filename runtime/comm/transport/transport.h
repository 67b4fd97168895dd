/* transport.h - moves bytes between ranks on different hosts: the table that each transport implements (a folder
 * each; choice.h chooses one). Everything above it, which rank sends which bytes to whom and in which order they are
 * summed, is written once, over this table.
 *
 * A rank has one endpoint, connected to the peers that it names as it needs them: ranks of other hosts. Transfers are
 * in the caller's memory: the transport copies nothing and buffers nothing. A send moves no byte before the peer has
 * posted the receive that matches it (the receiver sends a credit), so a late receiver costs no memory on either side,
 * and bytes of one key never wait behind those of another. Send number k of a key to a peer matches that peer's receive
 * number k of the same key from this rank; both have the same size, or the connection fails.
 *
 * Keys: both sides use a key until both have cancelled it; then the peers have forgotten it, and its numbers begin at 0
 * again. A caller that goes on after a failed operation cancels its key and uses another one: connections survive that.
 *
 * Threads: one thread at a time uses an endpoint, its progress thread, except for ms_transport_api.wake, which any
 * thread can call. No function blocks but progress, which sleeps at most as long as it is asked to, and close; of mpi,
 * also open and cancel (ms_transport_mpi).
 *
 * Errors: the first failure of a connection (closed, reset, no byte moved within the deadline, a link that is down, a
 * peer that breaks the protocol) fails every transfer with that peer, now and later, and reports it once through
 * ms_transport_config.failed. Other peers are not affected. A peer that says goodbye has not failed, unless transfers
 * with it are left, or posted later.
 *
 * Trust: a peer proves that it knows the job's token before it can do anything. The bytes that follow are neither
 * encrypted nor signed; where others can change packets of the network, use WireGuard below it.
 *
 * Where ucx keeps less than this: UCX copies and buffers, so it needs memory for 4 pieces of 64 KiB a peer, and more of
 * its own; the last bytes of a send that is DONE can leave in later calls of progress; a failure names the
 * peer's host and not its address; a connection that fails is not tried again; a link that goes down is noticed for
 * certain only while transfers wait for the peer; the worker's port stays open, and UCX ends the process for some
 * packets that are not its own, so use it on trusted networks only. Over RDMA, where UCX moves bytes between the
 * callers' memories, cancel waits for the pieces under way, and fails a peer that does not take them within a second.
 */
#ifndef MS_COMM_TRANSPORT_TRANSPORT_H
#define MS_COMM_TRANSPORT_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

/* Defined by each transport; begins with what they have in common (peers.h). */
typedef struct ms_endpoint ms_endpoint;

enum {
  MS_TRANSPORT_ADDRESS = 1024, /* bytes of an endpoint's address, which ranks gather before they connect */
  MS_TRANSPORT_UNDER_WAY = 64, /* transfers of one key and direction that can be posted to a peer at a time */
  MS_TRANSPORT_KEYS = 128      /* keys that can be in use with a peer at a time */
};

enum ms_transfer_state {
  MS_TRANSFER_IDLE = 0,   /* belongs to the caller */
  MS_TRANSFER_POSTED = 1, /* belongs to the endpoint, as does its memory */
  MS_TRANSFER_DONE = 2,   /* all bytes are in place (receive), or the memory can be written again (send) */
  MS_TRANSFER_FAILED = 3  /* the connection failed, or the transfer was cancelled */
};

/* One send or receive. The caller fills the first five fields and keeps the struct until the state is DONE or FAILED.
 */
typedef struct ms_transfer {
  int peer;     /* world rank */
  int receives; /* 1: receive, 0: send */
  uint64_t key; /* the sequence that it belongs to; the same on both sides */
  void *data;
  int64_t bytes; /* at least 1 */
  enum ms_transfer_state state;
  /* Fields of the transport. */
  uint64_t number; /* its place in the sequence, from 0 */
  int64_t moved;   /* bytes moved so far */
  struct ms_transfer *next;
} ms_transfer;

/* Seconds for a peer to connect: a little less than the timeout, because an operation that waits for the peer fails
 * after that as well, and then knows only that the peer is missing. */
double ms_transport_connect_seconds(double timeout);

typedef struct ms_transport_config {
  int rank, size;    /* of this rank, in the world */
  const char *token; /* of the job; "": none, only for ranks of one user on one machine */
  const char *job;   /* id of the job; connections of another one are refused */
  /* Seconds after which a peer has failed: without a connection; without a byte in a transfer that both sides have
   * posted; without a sign that its process runs, while transfers wait for it. So progress must be called more often
   * than that, also while there is nothing to move: that a receive is posted late is no failure. */
  double timeout;
  /* Called from progress, once for each peer that fails, when all its transfers are FAILED; it can use the endpoint,
   * except for progress and close. why: one line, without the rank. */
  void (*failed)(void *context, int peer, const char *why);
  void *context;
} ms_transport_config;

/* Bytes and messages that an endpoint has moved, for counters and tests. Payload only: no headers, no credits. */
typedef struct ms_transport_counts {
  int64_t sent, received; /* bytes */
} ms_transport_counts;

typedef struct ms_transport_api {
  const char *name; /* "tcp" */
  /* Makes an endpoint that listens; copies the config. Fails with MS_EIO (no port, no such interface), MS_EINVAL
   * (settings), MS_EUNSUPPORTED (a library that is not there). */
  int (*open)(const ms_transport_config *config, ms_endpoint **endpoint);
  /* Writes the address by which peers connect, which does not change, to MS_TRANSPORT_ADDRESS bytes; the caller gathers
   * those of all ranks. */
  int (*address)(const ms_endpoint *endpoint, void *address);
  /* Starts to connect to n peers (world ranks), whose addresses are [n][MS_TRANSPORT_ADDRESS]. In a pair the lower rank
   * connects and the higher one accepts; over tcp it does so before it has named the lower one, too, whereas over ucx
   * and mpi both have to name each other within the timeout. It can be called again with further peers, at any time;
   * one that was named before is ignored. Progress completes the connections, and transfers can be posted before that.
   * Fails with MS_EINVAL: a rank that cannot be a peer, an address of another transport or build, a peer on another
   * host when there is no token (ucx: open fails without one); MS_EIO: no network leads to a peer. */
  int (*connect)(ms_endpoint *endpoint, int n, const int *peers, const void *addresses);
  /* Number of peers whose connections are open. */
  int (*connected)(const ms_endpoint *endpoint);
  /* Posts a transfer; it is POSTED afterwards, or FAILED when the peer has failed already. Fails with MS_EINVAL and
   * leaves the transfer as it is: a rank that is no peer, a size below 1, a key that this rank has cancelled and the
   * peer has not, too many transfers or keys. */
  int (*post)(ms_endpoint *endpoint, ms_transfer *transfer);
  /* Moves what can be moved without waiting. With nothing to do it sleeps at most `seconds`, and less when wake was
   * called. A failure of a peer is no failure of the endpoint. */
  int (*progress)(ms_endpoint *endpoint, double seconds);
  /* Makes progress return soon. From any thread. */
  void (*wake)(ms_endpoint *endpoint);
  /* Takes back every posted transfer of a key (FAILED), with every peer; its memory belongs to the caller at once.
   * Matching transfers of the peers stay posted, without a deadline, until they cancel the key too. */
  void (*cancel)(ms_endpoint *endpoint, uint64_t key);
  void (*counts)(const ms_endpoint *endpoint, ms_transport_counts *counts);
  /* Says goodbye to the peers, so that they do not report a failure, and frees the endpoint; accepts NULL. Transfers
   * that are still posted are FAILED. Waits at most a second until the peers' hosts have the goodbyes. */
  void (*close)(ms_endpoint *endpoint);
} ms_transport_api;

extern const ms_transport_api ms_transport_tcp, ms_transport_ucx;

/* Over the MPI whose mpirun, mpiexec or srun started the ranks. Different from the description above:
 *
 * - Ranks are those of MPI_COMM_WORLD: rank and size must be the launcher's, and each rank a process that it started.
 *   `open` initialises MPI (MPI_THREAD_SERIALIZED), unless the program has (with MPI_THREAD_MULTIPLE), and waits until
 *   all ranks of the job have called it. So they all ask ms_transport_mpi_usable first. The process should not fork
 *   afterwards: MPI's networks may not allow that.
 * - Trust is the launcher's: no rank proves the token.
 * - MPI reports no failure of a process or link: the launcher ends the job, and peers are noticed only after `timeout`,
 *   unless that comes first.
 * - MPI does not give memory back. `cancel` waits until what is under way of the key, at most 4 MiB with a peer, has
 *   arrived; transfers of a peer that fails end when it has. What has not arrived within `timeout` MPI may still use
 *   later: then progress fails with MS_EIO from there on, and the process has to end.
 * - MPI cannot be waited for: progress polls it without a pause for 0.1 ms after anything has happened, then with
 *   pauses of up to 0.1 ms while bytes are under way, and 1 ms otherwise. wake ends a pause.
 * - MPI_Finalize, which waits for all ranks, is called when the process ends: with status 0, after `close`, and only if
 *   `open` has initialised MPI. A process that ends otherwise ends the job.
 */
extern const ms_transport_api ms_transport_mpi;
/* 1: this process can use ms_transport_mpi: such a launcher started it, and libmoonshard_mpi.so can be loaded. 0: not,
 * and `why` is one line that says what to do. Does not initialise MPI. */
int ms_transport_mpi_usable(char *why, size_t bytes);

#endif
