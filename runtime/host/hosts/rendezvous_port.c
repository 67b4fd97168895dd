/* rendezvous_port.c - finds the first host's address and a free port.
 *
 * The port stays reserved: a socket is bound to it with SO_REUSEADDR and never listens. Linux lets rank 0, whose socket
 * has SO_REUSEADDR as well, bind and listen there, but gives the port to no program that leaves the choice to it.
 */
#include "host/hosts/rendezvous_port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/env.h"
#include "base/error.h"
#include "comm/transport/tcp/tcp.h"

enum { HOST_BYTES = 256 };

static int is_loopback(const struct sockaddr *address) {
  if (address->sa_family == AF_INET)
    return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

static int port_of(const struct sockaddr_storage *address) {
  if (address->ss_family == AF_INET) return ntohs(((const struct sockaddr_in *)address)->sin_port);
  return ntohs(((const struct sockaddr_in6 *)address)->sin6_port);
}

static int bind_any_port(const struct addrinfo *where, int *fd, int *port) {
  struct sockaddr_storage bound;
  socklen_t bytes = sizeof bound;
  int yes = 1;
  *fd = socket(where->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (*fd >= 0 && !setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) &&
      !bind(*fd, where->ai_addr, where->ai_addrlen) && !getsockname(*fd, (struct sockaddr *)&bound, &bytes)) {
    *port = port_of(&bound);
    return 0;
  }
  int why = errno;
  if (*fd >= 0) close(*fd);
  *fd = -1;
  return why;
}

/* chosen: by this program; a user who gives the loopback may have a reason. */
static int reserve_port(const char *host, int chosen, int *fd, int *port) {
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
  static const char advice[] = "; give an address of the first host that the others reach: --rendezvous tcp://ADDRESS, "
                               "or its network interface: MOONSHARD_INTERFACE";
  int wrong = getaddrinfo(host, "0", &hints, &found);
  if (wrong)
    return MS_FAIL(MS_EINVAL, "the first host cannot resolve the name %s: %s%s", host, gai_strerror(wrong), advice);
  int loopback = chosen && is_loopback(found->ai_addr);
  int why = loopback ? 0 : bind_any_port(found, fd, port);
  freeaddrinfo(found);
  if (loopback)
    return MS_FAIL(MS_EINVAL, "%s is the loopback on the first host, which no other host reaches%s", host, advice);
  return why ? MS_FAIL(MS_EIO, "cannot take a port of %s on the first host: %s%s", host, strerror(why), advice) : MS_OK;
}

/* tcp://host, tcp://host:port or tcp://[ipv6]:port: 1 when a port other than 0 is given. */
static int split(const char *url, char host[HOST_BYTES]) {
  snprintf(host, HOST_BYTES, "%s", strncmp(url, "tcp://", 6) ? url : url + 6);
  char *colon = strrchr(host, ':'), *close_bracket = strrchr(host, ']');
  int port = 0;
  if (colon && (!close_bracket || colon > close_bracket)) {
    port = strcmp(colon + 1, "0") != 0;
    *colon = '\0';
  }
  size_t n = strlen(host);
  if (host[0] == '[' && host[n - 1] == ']') {
    memmove(host, host + 1, n - 2);
    host[n - 2] = '\0';
  }
  return port;
}

int ms_rendezvous_port_choose(const char *wanted, const char *host, char *place, size_t bytes, int *reserved) {
  char name[HOST_BYTES];
  const char *interface = ms_env_string("MOONSHARD_INTERFACE", NULL);
  int port = 0;
  *reserved = -1;
  snprintf(place, bytes, "%s", wanted);
  if (*wanted && split(wanted, name)) return MS_OK;
  if (!*wanted && interface) MS_TRY(ms_tcp_chosen_address(name, sizeof name));
  else if (!*wanted) snprintf(name, sizeof name, "%s", host);
  MS_TRY(reserve_port(name, !*wanted && !interface, reserved, &port));
  snprintf(place, bytes, strchr(name, ':') ? "tcp://[%s]:%d" : "tcp://%s:%d", name, port);
  return MS_OK;
}
