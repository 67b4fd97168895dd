/* emulated_nccl.h - a communicator of the emulated NCCL, between the file that creates it and the one that runs its
 * collectives. */
#ifndef EMULATED_NCCL_H
#define EMULATED_NCCL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "device/cuda/nccl.h"

enum { MAX_RANKS = 64, ROUND_BYTES = 1 << 18, COMM_BYTES = 16 << 20 };
enum { UNHANDLED = 1, SYSTEM_ERROR = 2, INTERNAL = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };

typedef struct emulated_nccl_memory {
  _Atomic uint32_t arrived[2]; /* for even and odd barriers */
  _Atomic uint32_t generation;
  struct {
    int32_t pid, fd, color, key;
  } split[MAX_RANKS];
  uint64_t signature[MAX_RANKS];
  char round[MAX_RANKS][ROUND_BYTES];
} emulated_nccl_memory;

/* The process and descriptor of the memory; a unique id is one. */
typedef struct emulated_nccl_home {
  int32_t pid, fd;
} emulated_nccl_home;

struct ncclComm {
  int size, rank, fd;
  emulated_nccl_memory *memory;
  _Atomic int state;   /* enum ncclResult: in progress, success, or an error */
  _Atomic int aborted; /* 1: streams leave their collectives */
  _Atomic int pending; /* collectives that a stream has not finished */
  _Atomic int issuing; /* collectives that a thread is about to submit to a stream */
  int windowed;        /* 1: copy engines can access only windows */
  uint32_t generation; /* barriers passed; used by one thread at a time */
  pthread_t opening;
  int opens;
  /* used while the communicator is created */
  emulated_nccl_home id;
  struct ncclComm *parent;
  ms_nccl_comm *out; /* of a split: where to store the new communicator */
  int color, key;
};

/* Sleeps briefly; longer after the thousandth turn. */
void emulated_nccl_nap(int turn);
/* Returns 0 when all ranks have arrived, or 1 if the communicator was aborted. */
int emulated_nccl_barrier(struct ncclComm *comm);

#endif
