/* store_wire.c - sockets with deadlines. */
#include "comm/bootstrap/store/store_wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/bootstrap/store/store_wait.h"

/* Seconds per attempt: an unrouted address never answers, and another attempt can find a network that has come up
 * since. */
static const double LONGEST_CONNECT = 5.0;
static const double PORT_PATIENCE = 0.2;
enum { PORT_PAUSE_US = 5000, BACKLOG = 1024, KEEP_COUNT = 4 };

/* ---- listening ---- */

static int make_socket(int family, int *fd) {
  *fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (*fd >= 0) return MS_OK;
  return MS_FAIL(MS_EIO, "rendezvous: cannot make a socket: %s", strerror(errno));
}

static void local_address(const ms_store_place *place, struct sockaddr_un *address, socklen_t *bytes) {
  size_t n = strnlen(place->name, sizeof address->sun_path - 2);
  *address = (struct sockaddr_un){.sun_family = AF_UNIX};
  memcpy(address->sun_path + 1, place->name, n); /* a leading NUL: an abstract name, outside the file system */
  *bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

/* 0, or errno. Retries, since any outgoing connection of this host can briefly occupy the port as its local end. */
static int bind_and_listen(int fd, const struct sockaddr *address, socklen_t bytes) {
  int yes = 1;
  if (address->sa_family != AF_UNIX) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  for (double until = ms_clock() + PORT_PATIENCE;;) {
    if (!bind(fd, address, bytes)) return listen(fd, BACKLOG) ? errno : 0;
    if (errno != EADDRINUSE || address->sa_family == AF_UNIX || ms_clock() > until) return errno;
    usleep(PORT_PAUSE_US);
  }
}

static int listen_at(int fd, const struct sockaddr *address, socklen_t bytes, const ms_store_place *place) {
  int why = bind_and_listen(fd, address, bytes);
  if (!why) return MS_OK;
  if (why == EADDRINUSE && address->sa_family == AF_UNIX)
    return MS_FAIL(MS_EIO, "rendezvous at %s: another rank 0 of this user is already listening there on this host",
                   place->text);
  if (why == EADDRINUSE)
    return MS_FAIL(MS_EIO, "rendezvous at %s: rank 0 cannot listen there: the port is in use; choose another one",
                   place->text);
  if (why == EADDRNOTAVAIL)
    return MS_FAIL(MS_EIO, "rendezvous at %s: rank 0 cannot listen there: it is not an address of rank 0's host",
                   place->text);
  return MS_FAIL(MS_EIO, "rendezvous at %s: rank 0 cannot listen there: %s", place->text, strerror(why));
}

static int listen_locally(const ms_store_place *place, int *fd) {
  struct sockaddr_un address;
  socklen_t bytes;
  local_address(place, &address, &bytes);
  MS_TRY(make_socket(AF_UNIX, fd));
  return listen_at(*fd, (const struct sockaddr *)&address, bytes, place);
}

/* For an address, for localhost, or for all addresses of this host: asks no name server. */
static int find_own(const ms_store_place *place, int flags, struct addrinfo **found, const char **why) {
  char port[8];
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
  snprintf(port, sizeof port, "%d", place->port);
  int rc = getaddrinfo(flags & AI_PASSIVE ? NULL : place->host, port, &hints, found);
  *why = rc == EAI_SYSTEM ? strerror(errno) : rc ? gai_strerror(rc) : NULL;
  return rc;
}

/* Listens on an address as given. What a name resolves to differs between hosts (many map their own name to a loopback
 * address), so for a name rank 0 listens on all its addresses; only localhost is taken literally. */
static int listen_tcp(const ms_store_place *place, int *fd) {
  struct addrinfo *found = NULL;
  const char *why;
  int flags = ms_is_address(place->host) ? AI_NUMERICHOST : strcmp(place->host, "localhost") ? AI_PASSIVE : 0, no = 0;
  if (find_own(place, flags, &found, &why)) return MS_FAIL(MS_EIO, "rendezvous at %s: %s", place->text, why);
  struct addrinfo *chosen = found;
  /* The IPv6 wildcard accepts IPv4 too. */
  for (struct addrinfo *one = found; flags & AI_PASSIVE && one; one = one->ai_next)
    if (one->ai_family == AF_INET6 && chosen->ai_family != AF_INET6) chosen = one;
  ms_error_record before;
  ms_error_save(&before);
  int rc = make_socket(chosen->ai_family, fd);
  if (rc && chosen != found) { /* a kernel without IPv6 */
    ms_error_restore(&before);
    chosen = found;
    rc = make_socket(chosen->ai_family, fd);
  }
  if (!rc && chosen->ai_family == AF_INET6) setsockopt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  if (!rc) rc = listen_at(*fd, chosen->ai_addr, chosen->ai_addrlen, place);
  freeaddrinfo(found);
  return rc;
}

int ms_wire_listen(const ms_store_place *place, int *fd) {
  *fd = -1;
  int rc = place->kind == MS_STORE_TCP ? listen_tcp(place, fd) : listen_locally(place, fd);
  if (rc && *fd >= 0) {
    close(*fd);
    *fd = -1;
  }
  return rc;
}

/* ---- connecting ---- */

/* *why: 0 when connected, otherwise errno. */
static int connect_one(int fd, const struct sockaddr *address, socklen_t bytes, double deadline, int *why) {
  int ready;
  socklen_t size = sizeof *why;
  *why = 0;
  if (!connect(fd, address, bytes)) return MS_OK;
  *why = errno;
  if (*why != EINPROGRESS) return MS_OK;
  MS_TRY(ms_wire_wait(fd, POLLOUT, fmin(deadline, ms_clock() + LONGEST_CONNECT), &ready));
  if (!ready) *why = ETIMEDOUT;
  else getsockopt(fd, SOL_SOCKET, SO_ERROR, why, &size);
  return MS_OK;
}

/* In host order. */
static int port_of(const struct sockaddr *address) {
  return ntohs(address->sa_family == AF_INET6 ? ((const struct sockaddr_in6 *)address)->sin6_port
                                              : ((const struct sockaddr_in *)address)->sin_port);
}

/* Binds fd to a port that the system chooses, and returns it in *port. *why: 0, or errno. */
static void take_a_port(int fd, int family, int *port, int *why) {
  struct sockaddr_storage here = {.ss_family = (sa_family_t)family};
  socklen_t bytes = family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
  *why = bind(fd, (struct sockaddr *)&here, bytes) || getsockname(fd, (struct sockaddr *)&here, &bytes) ? errno : 0;
  *port = port_of((struct sockaddr *)&here);
}

/* A socket for an outgoing connection. A process that connects to a port of its own host before anything listens there
 * can be assigned that very port as its local end: it then connects to itself (TCP's simultaneous open), again and
 * again, and rank 0 cannot listen there. The local port is therefore bound first, and replaced if it is the
 * destination. */
static int make_caller(int family, int called, int *fd, int *why) {
  int same, port;
  MS_TRY(make_socket(family, fd));
  take_a_port(*fd, family, &port, why);
  if (*why || port != called) return MS_OK;
  same = *fd; /* kept until there is another one, otherwise the system would choose the same port again */
  int rc = make_socket(family, fd);
  if (!rc) take_a_port(*fd, family, &port, why);
  close(same);
  return rc;
}

static int connect_to(int family, const struct sockaddr *address, socklen_t bytes, double deadline, int *fd, int *why) {
  int made, rc;
  *fd = -1;
  *why = 0;
  if (family == AF_UNIX) MS_TRY(make_socket(family, &made));
  else MS_TRY(make_caller(family, port_of(address), &made, why));
  rc = *why ? MS_OK : connect_one(made, address, bytes, deadline, why);
  if (rc || *why) close(made);
  else *fd = made;
  return rc;
}

int ms_wire_connect(const ms_store_place *place, double deadline, int *fd, char *why, size_t bytes) {
  int error = 0, rc = MS_OK;
  *fd = -1;
  if (place->kind == MS_STORE_LOCAL) {
    struct sockaddr_un address;
    socklen_t size;
    local_address(place, &address, &size);
    MS_TRY(connect_to(AF_UNIX, (const struct sockaddr *)&address, size, deadline, fd, &error));
    snprintf(why, bytes, "%s", error == ECONNREFUSED ? "nothing is listening there yet" : strerror(error));
    return MS_OK;
  }
  struct addrinfo *found;
  MS_TRY(ms_resolve(place->host, place->port, deadline, &found, why, bytes));
  if (!found) return MS_OK;
  for (struct addrinfo *one = found; one && *fd < 0 && !rc; one = one->ai_next)
    rc = connect_to(one->ai_family, one->ai_addr, one->ai_addrlen, deadline, fd, &error);
  freeaddrinfo(found);
  snprintf(why, bytes, "%s", strerror(error));
  return rc;
}

/* ---- about connections ---- */

void ms_wire_keep_alive(int fd, double seconds) {
  const int whole = (int)fmax(1, ceil(seconds / (KEEP_COUNT + 1)));
  int yes = 1, idle = whole, interval = whole, count = KEEP_COUNT;
  unsigned limit = (unsigned)(1e3 * fmax(1, seconds)); /* for data that the other side does not confirm */
  /* Local sockets reject these options, and need none of them. */
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof limit);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

int ms_wire_allow_files(int ranks, int need) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= (rlim_t)need) return MS_OK;
  if (limit.rlim_max >= (rlim_t)need) {
    limit.rlim_cur = (rlim_t)need;
    if (!setrlimit(RLIMIT_NOFILE, &limit)) return MS_OK;
  }
  return MS_FAIL(MS_EIO, "rendezvous: rank 0 can open %llu files, but %d ranks need %d: raise its limit (ulimit -n)",
                 (unsigned long long)limit.rlim_max, ranks, need);
}

/* ---- sending and receiving ---- */

int ms_wire_send(int fd, const void *data, size_t bytes, double deadline) {
  const char *from = data;
  while (bytes) {
    ssize_t sent = send(fd, from, bytes, MSG_NOSIGNAL);
    if (sent > 0) {
      from += sent;
      bytes -= (size_t)sent;
      continue;
    }
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN) return MS_FAIL(MS_EIO, "the connection failed: %s", strerror(errno));
    int ready;
    MS_TRY(ms_wire_wait(fd, POLLOUT, deadline, &ready));
    if (!ready) return MS_FAIL(MS_ETIMEOUT, "the other side does not read its data");
  }
  return MS_OK;
}

int ms_wire_receive(int fd, void *data, size_t bytes, double deadline) {
  char *to = data;
  while (bytes) {
    ssize_t got = recv(fd, to, bytes, 0);
    if (got > 0) {
      to += got;
      bytes -= (size_t)got;
      continue;
    }
    if (got == 0) return MS_FAIL(MS_EIO, "the connection was closed");
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return MS_FAIL(MS_EIO, "the connection failed: %s", strerror(errno));
    int ready;
    MS_TRY(ms_wire_wait(fd, POLLIN, deadline, &ready));
    if (!ready) return MS_FAIL(MS_ETIMEOUT, "no answer from the other side");
  }
  return MS_OK;
}
