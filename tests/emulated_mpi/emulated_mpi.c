/* emulated_mpi.c - see emulated_mpi.h. A rank is read from Open MPI's variables when it starts. */
#include "tests/emulated_mpi/emulated_mpi.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/transport/mpi/library.h"

extern emulated_mpi ms_emulated_mpi;
__attribute__((visibility("default"))) emulated_mpi ms_emulated_mpi;

enum state { FREE = 0, BEGUN, MET, OVER };

/* A send or receive. */
typedef struct request {
  enum state state;
  int sends, rank, tag, bytes; /* rank: of the other side */
  void *data;
  unsigned long long turn; /* of a receive: which of them is older */
} request;

/* A message that has been sent, and not received. */
typedef struct message {
  int from, tag, bytes;
  void *copy;            /* NULL: it is read from the sender's memory */
  request *send, *meets; /* send: NULL when it is copied; meets: the receive */
  struct message *next;
} message;

struct ms_mpi {
  int rank, slots;
  request *slot;
  message *first; /* oldest first */
  char why[MS_MPI_WHY];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ms_mpi *ranks[EMULATED_RANKS];
static unsigned long long turns;

static int number_in(const char *name) { return getenv(name) ? atoi(getenv(name)) : 0; }

static ms_mpi *start(ms_mpi_world *world, char why[MS_MPI_WHY]) {
  *world = (ms_mpi_world){.rank = number_in("OMPI_COMM_WORLD_RANK"),
                          .size = number_in("EMULATED_SIZE") ? number_in("EMULATED_SIZE")
                                                             : number_in("OMPI_COMM_WORLD_SIZE"),
                          .name = "emulated MPI"};
  if (world->rank >= EMULATED_RANKS) {
    snprintf(why, MS_MPI_WHY, "the emulated MPI has no rank %d", world->rank);
    return NULL;
  }
  ms_mpi *mpi = ranks[world->rank] = calloc(1, sizeof *mpi);
  mpi->rank = world->rank;
  ms_emulated_mpi.started++;
  return mpi;
}

static int make_slots(ms_mpi *mpi, int slots) {
  mpi->slots = slots;
  mpi->slot = calloc((size_t)slots + 1, sizeof *mpi->slot);
  return 1;
}

static void add_message(ms_mpi *to, const message *content) {
  message *made = malloc(sizeof *made), **end = &to->first;
  *made = *content;
  while (*end) end = &(*end)->next;
  *end = made;
}

static int begin_send(ms_mpi *mpi, int slot, int rank, int tag, const void *data, int bytes) {
  request *send = &mpi->slot[slot];
  message content = {.from = mpi->rank, .tag = tag, .bytes = bytes};
  *send = (request){BEGUN, 1, rank, tag, bytes, (void *)data, 0};
  if (bytes <= EMULATED_EAGER) {
    send->state = OVER;
    content.copy = malloc((size_t)bytes);
    memcpy(content.copy, data, (size_t)bytes);
  } else content.send = send;
  if (!ranks[rank]) {
    free(content.copy);
    return 1;
  }
  if (content.copy) ms_emulated_mpi.waiting += bytes;
  add_message(ranks[rank], &content);
  return 1;
}

static int begin_receive(ms_mpi *mpi, int slot, int rank, int tag, void *data, int bytes) {
  mpi->slot[slot] = (request){BEGUN, 0, rank, tag, bytes, data, ++turns};
  return 1;
}

/* The oldest receive that this message can meet. */
static request *find_receive(ms_mpi *mpi, const message *m) {
  request *found = NULL;
  for (int i = 0; i < mpi->slots; i++) {
    request *r = &mpi->slot[i];
    if (r->state != BEGUN || r->sends || r->rank != m->from || r->tag != m->tag) continue;
    if (!found || r->turn < found->turn) found = r;
  }
  return found;
}

static void deliver(message **at) {
  message *m = *at;
  request *receive = m->meets;
  const int bytes = m->bytes < receive->bytes ? m->bytes : receive->bytes;
  memcpy(receive->data, m->copy ? m->copy : m->send->data, (size_t)bytes);
  receive->bytes = bytes;
  receive->state = OVER;
  if (m->send) m->send->state = OVER;
  else ms_emulated_mpi.waiting -= m->bytes;
  *at = m->next;
  free(m->copy);
  free(m);
}

static int poll(ms_mpi *mpi, ms_mpi_over *over) {
  int n = 0;
  if (ms_emulated_mpi.fails) {
    snprintf(mpi->why, sizeof mpi->why, "MPI_Testsome: broken by a test");
    return -1;
  }
  for (message **at = &mpi->first; *at;) {
    message *m = *at;
    if (m->meets) {
      deliver(at);
      continue;
    }
    m->meets = find_receive(mpi, m);
    if (m->meets) m->meets->state = MET;
    if (m->meets && m->copy) deliver(at);
    else at = &m->next;
  }
  for (int i = 0; i < mpi->slots; i++) {
    if (mpi->slot[i].state != OVER) continue;
    over[n++] = (ms_mpi_over){i, mpi->slot[i].sends ? 0 : mpi->slot[i].bytes};
    mpi->slot[i].state = FREE;
  }
  return n;
}

static int take_back(ms_mpi *mpi, int slot) {
  if (mpi->slot[slot].state != BEGUN) return 0;
  mpi->slot[slot].state = FREE;
  ms_emulated_mpi.taken_back++;
  return 1;
}

static const char *get_why(const ms_mpi *mpi) { return mpi->why; }

/* Messages of a rank that has gone, whose memory may be freed now, are not read any more. */
static void forget_sends(const ms_mpi *gone) {
  for (int rank = 0; rank < EMULATED_RANKS; rank++)
    for (message **at = ranks[rank] ? &ranks[rank]->first : NULL; at && *at;) {
      message *m = *at;
      if (m->from == gone->rank && m->send) {
        *at = m->next;
        free(m);
      } else at = &m->next;
    }
}

static void end(ms_mpi *mpi) {
  ms_emulated_mpi.started--;
  forget_sends(mpi);
  if (ranks[mpi->rank] == mpi) ranks[mpi->rank] = NULL;
  while (mpi->first) {
    message *m = mpi->first;
    mpi->first = m->next;
    if (m->copy) ms_emulated_mpi.waiting -= m->bytes;
    free(m->copy);
    free(m);
  }
  free(mpi->slot);
  free(mpi);
}

/* ---- the table: endpoints can be driven by several threads ---- */

static ms_mpi *start_locked(ms_mpi_world *world, char why[MS_MPI_WHY]) {
  pthread_mutex_lock(&lock);
  ms_mpi *mpi = start(world, why);
  pthread_mutex_unlock(&lock);
  return mpi;
}

static int send_locked(ms_mpi *mpi, int slot, int rank, int tag, const void *data, int bytes) {
  pthread_mutex_lock(&lock);
  int done = begin_send(mpi, slot, rank, tag, data, bytes);
  pthread_mutex_unlock(&lock);
  return done;
}

static int receive_locked(ms_mpi *mpi, int slot, int rank, int tag, void *data, int bytes) {
  pthread_mutex_lock(&lock);
  int done = begin_receive(mpi, slot, rank, tag, data, bytes);
  pthread_mutex_unlock(&lock);
  return done;
}

static int poll_locked(ms_mpi *mpi, ms_mpi_over *over) {
  pthread_mutex_lock(&lock);
  int n = poll(mpi, over);
  pthread_mutex_unlock(&lock);
  return n;
}

static int take_back_locked(ms_mpi *mpi, int slot) {
  pthread_mutex_lock(&lock);
  int taken = take_back(mpi, slot);
  pthread_mutex_unlock(&lock);
  return taken;
}

static void end_locked(ms_mpi *mpi) {
  pthread_mutex_lock(&lock);
  end(mpi);
  pthread_mutex_unlock(&lock);
}

__attribute__((visibility("default"))) const ms_mpi_library *ms_mpi_library_table(void);
const ms_mpi_library *ms_mpi_library_table(void) {
  static const ms_mpi_library table = {.version = MS_MPI_LIBRARY_VERSION,
                                       .start = start_locked,
                                       .make_slots = make_slots,
                                       .send = send_locked,
                                       .receive = receive_locked,
                                       .poll = poll_locked,
                                       .take_back = take_back_locked,
                                       .why = get_why,
                                       .end = end_locked};
  return &table;
}
