/* store_link.c - one thread and one queue for a connection to the store.
 *
 * A frame is sent by the thread that has it, as far as the socket takes it; the rest waits in a queue, which the link's
 * thread sends. That thread reads all frames, also while this rank leaves: until the store closes the connection,
 * nothing that it has sent to this rank is lost.
 */
#include "comm/bootstrap/store/store_link.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

enum { LONGEST = 8 + MS_STORE_POST, MAX_QUEUED = 64 << 20, ALL_TIME = -1, TURN_MS = 20 };
/* Seconds for the store to close the connection of a rank that leaves, and of one that leaves a failed run. */
static const double LEAVE_SECONDS = 2.0, HURRIED_SECONDS = 0.3;

static const char LOST[] = "rank 0 died, or lost its connection";

struct ms_store_link {
  int fd, wake; /* wake: an eventfd: there is a queue, or this rank leaves */
  pthread_t thread;
  int joined; /* the thread has ended, and was joined */
  const ms_store_listener *listener;
  void *context;
  atomic_int leaving, over; /* over: the store has closed, or the connection is lost */
  double leave_until;       /* written before leaving is set */
  pthread_mutex_t lock;     /* protects the queue and the order of frames */
  uint8_t *queue;
  size_t queued, sent, capacity;
  int overflow;
  /* used only by the thread */
  uint8_t in[MS_WIRE_HEADER + LONGEST];
  size_t in_used;
};

/* ---- sending ---- */

/* As much as the socket takes. A connection that is closed takes everything: the thread notices its end. */
static size_t send_some(int fd, const uint8_t *data, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    ssize_t n = send(fd, data + done, bytes - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) done += (size_t)n;
    else if (n < 0 && errno == EAGAIN) return done;
    else if (n < 0 && errno != EINTR) return bytes;
  }
  return done;
}

/* The lock is held. */
static void enqueue(ms_store_link *link, const uint8_t *data, size_t bytes) {
  if (link->sent && link->queued + bytes > link->capacity) {
    memmove(link->queue, link->queue + link->sent, link->queued - link->sent);
    link->queued -= link->sent;
    link->sent = 0;
  }
  if (link->queued + bytes > link->capacity) {
    size_t capacity = 2 * link->capacity + bytes;
    uint8_t *grown = capacity > MAX_QUEUED ? NULL : realloc(link->queue, capacity);
    link->overflow |= !grown;
    if (!grown) return;
    link->queue = grown;
    link->capacity = capacity;
  }
  memcpy(link->queue + link->queued, data, bytes);
  link->queued += bytes;
}

static void wake(const ms_store_link *link) {
  uint64_t one = 1;
  while (write(link->wake, &one, sizeof one) < 0 && errno == EINTR) continue;
}

void ms_store_link_send(ms_store_link *link, uint32_t kind, const void *body, size_t bytes) {
  uint8_t frame[MS_WIRE_HEADER + LONGEST];
  ms_wire_put32(frame, (uint32_t)bytes);
  ms_wire_put32(frame + 4, kind);
  if (bytes) memcpy(frame + MS_WIRE_HEADER, body, bytes);
  bytes += MS_WIRE_HEADER;
  if (atomic_load(&link->over)) {
    if (kind == MS_WIRE_POST)
      link->listener->failed(link->context, "rank 0 has left the run: without it ranks of several hosts cannot "
                                            "work together");
    return;
  }
  pthread_mutex_lock(&link->lock);
  size_t done = link->queued ? 0 : send_some(link->fd, frame, bytes);
  if (done < bytes) enqueue(link, frame + done, bytes - done);
  pthread_mutex_unlock(&link->lock);
  if (done < bytes) wake(link);
}

/* 1 when there is more to send. */
static int flush(ms_store_link *link, int *overflow) {
  pthread_mutex_lock(&link->lock);
  link->sent += send_some(link->fd, link->queue + link->sent, link->queued - link->sent);
  if (link->sent == link->queued) link->sent = link->queued = 0;
  int more = link->queued > 0;
  *overflow = link->overflow;
  pthread_mutex_unlock(&link->lock);
  return more;
}

/* ---- receiving ---- */

static void end(ms_store_link *link, const char *why) {
  int was = atomic_exchange(&link->over, 1);
  if (!was && why && !atomic_load(&link->leaving)) link->listener->failed(link->context, why);
}

static void lose(ms_store_link *link) {
  int tells = link->listener->lost && !atomic_load(&link->leaving) && !atomic_load(&link->over);
  if (tells) link->listener->lost(link->context);
  end(link, tells ? NULL : LOST);
}

static void take_frame(ms_store_link *link, uint32_t kind, const uint8_t *body, size_t bytes) {
  char text[MS_STORE_TEXT];
  if (kind == MS_WIRE_POSTED && bytes >= 8) {
    link->listener->posted(link->context, (int)ms_wire_get32(body), (int)ms_wire_get32(body + 4), body + 8, bytes - 8);
  } else if (kind == MS_WIRE_FAILED && bytes >= 4) {
    ms_wire_get_text(body + 4, bytes - 4, text, sizeof text);
    if (!atomic_load(&link->leaving)) link->listener->failed(link->context, text);
  } else if (kind == MS_WIRE_LEAVE) {
    end(link, NULL);
    if (!atomic_load(&link->leaving)) link->listener->closed(link->context);
  } else end(link, "invalid data from the store");
}

static void receive(ms_store_link *link) {
  ssize_t n = recv(link->fd, link->in + link->in_used, sizeof link->in - link->in_used, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    lose(link);
    return;
  }
  link->in_used += (size_t)n;
  size_t taken = 0;
  while (!atomic_load(&link->over) && link->in_used - taken >= MS_WIRE_HEADER) {
    uint32_t bytes = ms_wire_get32(link->in + taken), kind = ms_wire_get32(link->in + taken + 4);
    if (bytes > LONGEST) {
      end(link, "invalid data from the store");
      return;
    }
    if (link->in_used - taken < MS_WIRE_HEADER + (size_t)bytes) break;
    take_frame(link, kind, link->in + taken + MS_WIRE_HEADER, bytes);
    taken += MS_WIRE_HEADER + (size_t)bytes;
  }
  link->in_used -= taken;
  memmove(link->in, link->in + taken, link->in_used);
}

/* ---- the thread ---- */

static void *run(void *context) {
  ms_store_link *link = context;
  uint64_t count;
  int more = 0, overflow = 0;
  ms_allocations_set_counted(0);
  while (!atomic_load(&link->over)) {
    struct pollfd ready[2] = {{.fd = link->fd, .events = (short)(POLLIN | (more ? POLLOUT : 0))},
                              {.fd = link->wake, .events = POLLIN}};
    int leaving = atomic_load(&link->leaving);
    if (leaving && ms_clock() > link->leave_until) break;
    if (poll(ready, 2, leaving ? TURN_MS : ALL_TIME) < 0 && errno != EINTR) break;
    if (ready[1].revents && read(link->wake, &count, sizeof count) < 0 && errno != EAGAIN && errno != EINTR) break;
    if (ready[0].revents & (POLLIN | POLLHUP | POLLERR)) receive(link);
    more = flush(link, &overflow);
    if (overflow) end(link, "rank 0, which runs the store, does not read what this rank sends");
  }
  atomic_store(&link->over, 1);
  shutdown(link->fd, SHUT_RDWR); /* rank 0 waits briefly for this before it leaves */
  return NULL;
}

int ms_store_link_start(int fd, const ms_store_listener *listener, void *context, ms_store_link **link) {
  sigset_t all, old;
  ms_store_link *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  made->fd = fd;
  made->listener = listener;
  made->context = context;
  made->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (made->wake < 0) {
    free(made);
    return MS_FAIL(MS_EIO, "rendezvous: eventfd: %s", strerror(errno));
  }
  pthread_mutex_init(&made->lock, NULL);
  *link = made; /* the thread's callbacks can use it at once */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int why = pthread_create(&made->thread, NULL, run, made);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (!why) return MS_OK;
  *link = NULL;
  made->joined = 1;
  ms_store_link_free(made);
  return MS_FAIL(MS_EIO, "rendezvous: cannot start a thread: %s", strerror(why));
}

void ms_store_link_leave(ms_store_link *link, int hurry) {
  if (!link || link->joined) return;
  link->leave_until = ms_clock() + (hurry ? HURRIED_SECONDS : LEAVE_SECONDS);
  atomic_store(&link->leaving, 1);
  ms_store_link_send(link, MS_WIRE_LEAVE, NULL, 0);
  wake(link);
  pthread_join(link->thread, NULL);
  link->joined = 1;
}

void ms_store_link_free(ms_store_link *link) {
  close(link->wake);
  pthread_mutex_destroy(&link->lock);
  free(link->queue);
  free(link);
}
