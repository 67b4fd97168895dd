/* strangers.c - counts connections by their origins. */
#include "comm/transport/strangers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#include "base/clock.h"
#include "base/text/hash.h"

/* 0: this host. */
static uint64_t network_of(const struct sockaddr *address) {
  uint64_t network = 0;
  uint32_t v4 = 0;
  if (address->sa_family == AF_INET) {
    v4 = ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr);
  } else if (address->sa_family == AF_INET6) {
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)address)->sin6_addr;
    if (IN6_IS_ADDR_LOOPBACK(v6)) return 0;
    if (!IN6_IS_ADDR_V4MAPPED(v6)) {
      memcpy(&network, v6, sizeof network);
      return network;
    }
    memcpy(&v4, v6->s6_addr + 12, sizeof v4);
    v4 = ntohl(v4);
  }
  return v4 >> 24 == 127 ? 0 : v4;
}

uint16_t ms_stranger_origin(const struct sockaddr *address) {
  const uint64_t network = network_of(address);
  return (uint16_t)(network ? 1 + ms_hash_int(MS_HASH_INIT, (int64_t)network) % (MS_STRANGER_ORIGINS - 1) : 0);
}

ms_stranger ms_stranger_new(int fd) {
  struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
  socklen_t bytes = sizeof address;
  if (getpeername(fd, (struct sockaddr *)&address, &bytes)) address.ss_family = AF_UNSPEC;
  return (ms_stranger){.since = ms_clock(), .origin = ms_stranger_origin((struct sockaddr *)&address)};
}

int ms_stranger_to_drop(ms_stranger_at *at, const void *context, int n) {
  int count[MS_STRANGER_ORIGINS] = {0}, most = 0, found = -1;
  for (int i = 0; i < n; i++) {
    const ms_stranger *one = at(context, i);
    if (one && ++count[one->origin] > most) most = count[one->origin];
  }
  for (int i = 0; i < n; i++) {
    const ms_stranger *one = at(context, i);
    if (one && count[one->origin] == most && (found < 0 || one->since < at(context, found)->since)) found = i;
  }
  return found;
}
