/* address.c - where a rank can be reached: its host's addresses and a port, as MOONSHARD_INTERFACE and
 * MOONSHARD_PORTS choose them, in the bytes that ranks gather.
 *
 * Without a choice a rank listens on all addresses and offers those of all interfaces that are up, loopback apart. A
 * peer on the same machine uses the loopback. A peer on another machine tries the offers in order, without those that
 * it has itself: hosts often have bridges with the same private address.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/env.h"
#include "base/error.h"
#include "comm/transport/tcp/tcp.h"

enum { PORT_AT = 4, EVERYWHERE_AT = 6, COUNT_AT = 7, MACHINE_AT = 8, MACHINE = 16, FIRST_AT = MACHINE_AT + MACHINE };
enum { MARK = 0x3154534d, BACKLOG = 1024, LAST_PORT = 65535, V4 = 4, V6 = 16 };

/* An address without a port: bytes is V4 or V6. */
typedef struct place {
  int bytes;
  uint8_t at[V6];
} place;

/* ---- the encoded form: for each place its length and its bytes ---- */

static int place_at(const uint8_t *address, int index, place *found) {
  int at = FIRST_AT;
  for (int i = 0; i < address[COUNT_AT]; i++) {
    int bytes = at < MS_TRANSPORT_ADDRESS ? address[at] : 0;
    if ((bytes != V4 && bytes != V6) || at + 1 + bytes > MS_TRANSPORT_ADDRESS) return 0;
    if (i == index) {
      found->bytes = bytes;
      memcpy(found->at, address + at + 1, (size_t)bytes);
      return 1;
    }
    at += 1 + bytes;
  }
  return 0;
}

/* Leaves out a place that does not fit, or is there already. */
static void add_place(uint8_t *address, const place *more) {
  place other;
  int at = FIRST_AT;
  for (int i = 0; place_at(address, i, &other); i++) {
    at += 1 + other.bytes;
    if (other.bytes == more->bytes && !memcmp(other.at, more->at, (size_t)more->bytes)) return;
  }
  if (at + 1 + more->bytes > MS_TRANSPORT_ADDRESS) return;
  address[at] = (uint8_t)more->bytes;
  memcpy(address + at + 1, more->at, (size_t)more->bytes);
  address[COUNT_AT]++;
}

static int has_place(const uint8_t *address, const place *wanted) {
  place other;
  for (int i = 0; place_at(address, i, &other); i++)
    if (other.bytes == wanted->bytes && !memcmp(other.at, wanted->at, (size_t)wanted->bytes)) return 1;
  return 0;
}

static int is_loopback(const place *p) {
  return p->bytes == V4 ? p->at[0] == 127 : IN6_IS_ADDR_LOOPBACK((const struct in6_addr *)p->at);
}

static int is_link_local(const place *p) {
  return p->bytes == V4 ? p->at[0] == 169 && p->at[1] == 254 : p->at[0] == 0xfe && (p->at[1] & 0xc0) == 0x80;
}

static socklen_t to_socket_address(const place *p, int port, struct sockaddr_storage *out) {
  struct sockaddr_in *v4 = (struct sockaddr_in *)out;
  struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
  memset(out, 0, sizeof *out);
  if (p->bytes == V4) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons((uint16_t)port);
    memcpy(&v4->sin_addr, p->at, V4);
    return sizeof *v4;
  }
  v6->sin6_family = AF_INET6;
  v6->sin6_port = htons((uint16_t)port);
  memcpy(&v6->sin6_addr, p->at, V6);
  return sizeof *v6;
}

static int port_of(const uint8_t *address) { return address[PORT_AT] | address[PORT_AT + 1] << 8; }

void ms_tcp_place_text(const struct sockaddr_storage *place, socklen_t bytes, char *text, size_t capacity) {
  char host[INET6_ADDRSTRLEN] = "?";
  const struct sockaddr_in *v4 = (const struct sockaddr_in *)place;
  const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)place;
  int is_v4 = bytes == sizeof *v4;
  inet_ntop(is_v4 ? AF_INET : AF_INET6, is_v4 ? (const void *)&v4->sin_addr : &v6->sin6_addr, host, sizeof host);
  snprintf(text, capacity, is_v4 ? "%s:%d" : "[%s]:%d", host, ntohs(is_v4 ? v4->sin_port : v6->sin6_port));
}

int ms_tcp_check_address(const uint8_t *address) {
  place last;
  if (ms_wire_get32(address) == MARK && port_of(address) && address[COUNT_AT] &&
      place_at(address, address[COUNT_AT] - 1, &last))
    return MS_OK;
  return MS_FAIL(MS_EINVAL, "it is not an address of the transport tcp: all ranks must run the same build, with the "
                            "same transport");
}

int ms_tcp_same_machine(const uint8_t *a, const uint8_t *b) { return !memcmp(a + MACHINE_AT, b + MACHINE_AT, MACHINE); }

int ms_tcp_place(const uint8_t *own, const uint8_t *address, int i, struct sockaddr_storage *out, socklen_t *bytes) {
  static const place LOOPBACK = {V4, {127, 0, 0, 1}};
  place found;
  int same = ms_tcp_same_machine(own, address), left = i;
  if (same && address[EVERYWHERE_AT] && left-- == 0) {
    *bytes = to_socket_address(&LOOPBACK, port_of(address), out);
    return 1;
  }
  for (int at = 0; place_at(address, at, &found); at++) {
    if (!same && (is_loopback(&found) || has_place(own, &found))) continue;
    if (left-- > 0) continue;
    *bytes = to_socket_address(&found, port_of(address), out);
    return 1;
  }
  return 0;
}

int ms_tcp_source(const uint8_t *own, struct sockaddr_storage *source, socklen_t *bytes) {
  place only;
  if (own[EVERYWHERE_AT] || !place_at(own, 0, &only)) return 0;
  *bytes = to_socket_address(&only, 0, source);
  return 1;
}

/* ---- this host ---- */

/* Processes of one machine and network namespace: the loopback connects them. */
static int identify_machine(uint8_t id[MACHINE]) {
  static const char path[] = "/proc/sys/kernel/random/boot_id";
  char boot[64] = "", text[128];
  uint8_t digest[crypto_hash_sha256_BYTES];
  struct stat network;
  FILE *file = fopen(path, "re");
  int known = file && fgets(boot, sizeof boot, file) && !stat("/proc/self/ns/net", &network);
  if (file) fclose(file);
  if (!known) return MS_FAIL(MS_EIO, "transport: cannot identify this machine by %s and /proc/self/ns/net", path);
  int n = snprintf(text, sizeof text, "%s %llu", boot, (unsigned long long)network.st_ino);
  crypto_hash_sha256(digest, (const uint8_t *)text, (size_t)n);
  memcpy(id, digest, MACHINE);
  return MS_OK;
}

static int parse_place(const char *text, place *p) {
  p->bytes = inet_pton(AF_INET, text, p->at) == 1 ? V4 : inet_pton(AF_INET6, text, p->at) == 1 ? V6 : 0;
  return p->bytes;
}

/* 1 when text is an address, or a prefix such as 10.0.0.0/8, that contains p. */
static int contains(const char *text, const place *p) {
  char host[INET6_ADDRSTRLEN];
  const char *slash = strchr(text, '/');
  size_t n = slash ? (size_t)(slash - text) : strlen(text);
  place net;
  if (n >= sizeof host) return 0;
  memcpy(host, text, n);
  host[n] = '\0';
  if (!parse_place(host, &net) || net.bytes != p->bytes) return 0;
  int bits = 8 * net.bytes;
  if (slash) {
    char *end;
    long given = strtol(slash + 1, &end, 10);
    if (end == slash + 1 || *end || given < 0 || given > bits) return 0;
    bits = (int)given;
  }
  int whole = bits / 8, rest = bits % 8;
  if (memcmp(net.at, p->at, (size_t)whole)) return 0;
  return !rest || (net.at[whole] ^ p->at[whole]) >> (8 - rest) == 0;
}

static int place_of(const struct ifaddrs *one, place *p) {
  if (!one->ifa_addr || !(one->ifa_flags & IFF_UP)) return 0;
  if (one->ifa_addr->sa_family == AF_INET) {
    p->bytes = V4;
    memcpy(p->at, &((const struct sockaddr_in *)one->ifa_addr)->sin_addr, V4);
  } else if (one->ifa_addr->sa_family == AF_INET6) {
    p->bytes = V6;
    memcpy(p->at, &((const struct sockaddr_in6 *)one->ifa_addr)->sin6_addr, V6);
  } else return 0;
  return 1;
}

/* "lo (127.0.0.1), eth0 (10.0.0.7)" */
static void list_interfaces(const struct ifaddrs *all, char *text, size_t bytes) {
  size_t used = 0;
  place p;
  *text = '\0';
  for (const struct ifaddrs *one = all; one && used < bytes; one = one->ifa_next) {
    char host[INET6_ADDRSTRLEN];
    if (!place_of(one, &p) || is_link_local(&p)) continue;
    inet_ntop(p.bytes == V4 ? AF_INET : AF_INET6, p.at, host, sizeof host);
    used += (size_t)snprintf(text + used, bytes - used, "%s%s (%s)", used ? ", " : "", one->ifa_name, host);
  }
}

/* Adds the places of one family that fit. chosen NULL: all that other hosts can reach. */
static void add_family(const struct ifaddrs *all, int bytes, const char *chosen, uint8_t *address) {
  place p;
  for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
    if (!place_of(one, &p) || p.bytes != bytes) continue;
    int fits = chosen ? !strcmp(chosen, one->ifa_name) || contains(chosen, &p) : !is_loopback(&p);
    /* A link-local IPv6 address means nothing without the interface of the host that uses it. */
    if (fits && (!is_link_local(&p) || (chosen && bytes == V4))) add_place(address, &p);
    if (chosen && address[COUNT_AT]) return; /* one is listened on */
  }
}

static int no_interface(const char *chosen, const char *has) {
  return MS_FAIL(MS_EIO,
                 "environment variable MOONSHARD_INTERFACE=\"%s\": this host has no such interface or address that is "
                 "up; give the name of an interface, an address, or a prefix such as 10.0.0.0/8; it has %s",
                 chosen, has);
}

/* chosen NULL: all places; none is no error then. */
static int list_places(const char *chosen, uint8_t *address) {
  struct ifaddrs *all;
  char has[512];
  if (getifaddrs(&all)) return MS_FAIL(MS_EIO, "transport: cannot list this host's interfaces: %s", strerror(errno));
  add_family(all, V4, chosen, address);
  if (!chosen || !address[COUNT_AT]) add_family(all, V6, chosen, address);
  list_interfaces(all, has, sizeof has);
  freeifaddrs(all);
  return chosen && !address[COUNT_AT] ? no_interface(chosen, has) : MS_OK;
}

static int choose_places(const char *token, uint8_t *address) {
  static const place LOOPBACK = {V4, {127, 0, 0, 1}};
  const char *chosen = ms_env_string("MOONSHARD_INTERFACE", NULL);
  if (chosen || *token) {
    MS_TRY(list_places(chosen, address));
    address[EVERYWHERE_AT] = !chosen;
  }
  if (!address[COUNT_AT]) add_place(address, &LOOPBACK);
  return MS_OK;
}

int ms_tcp_chosen_address(char *text, size_t bytes) {
  uint8_t address[MS_TRANSPORT_ADDRESS] = {0};
  place only;
  MS_TRY(list_places(ms_env_string("MOONSHARD_INTERFACE", ""), address));
  if (!place_at(address, 0, &only) ||
      !inet_ntop(only.bytes == V4 ? AF_INET : AF_INET6, only.at, text, (socklen_t)bytes))
    return MS_FAIL(MS_EINTERNAL, "an address of this host has no text");
  return MS_OK;
}

int ms_tcp_chosen_interface(char name[MS_TCP_INTERFACE]) {
  const char *chosen = ms_env_string("MOONSHARD_INTERFACE", NULL);
  struct ifaddrs *all;
  char has[512];
  place p;
  *name = '\0';
  if (!chosen) return MS_OK;
  if (getifaddrs(&all)) return MS_FAIL(MS_EIO, "transport: cannot list this host's interfaces: %s", strerror(errno));
  for (const struct ifaddrs *one = all; one && !*name; one = one->ifa_next)
    if (place_of(one, &p) && (!strcmp(chosen, one->ifa_name) || contains(chosen, &p)))
      snprintf(name, MS_TCP_INTERFACE, "%s", one->ifa_name);
  list_interfaces(all, has, sizeof has);
  freeifaddrs(all);
  return *name ? MS_OK : no_interface(chosen, has);
}

/* ---- listening ---- */

static int parse_ports(int *first, int *last) {
  const char *text = ms_env_string("MOONSHARD_PORTS", NULL);
  char more;
  *first = *last = 0;
  if (!text) return MS_OK;
  if (strspn(text, "0123456789-") == strlen(text) && sscanf(text, "%d-%d%c", first, last, &more) == 2 && *first >= 1 &&
      *last <= LAST_PORT && *first <= *last)
    return MS_OK;
  return MS_FAIL(MS_EINVAL,
                 "environment variable MOONSHARD_PORTS=\"%s\": it must be first-last, e.g. 30000-30063, within 1-%d",
                 text, LAST_PORT);
}

/* 0 and a socket that listens, or errno. */
static int listen_at(const struct sockaddr_storage *at, socklen_t bytes, int *fd) {
  int yes = 1, no = 0;
  *fd = socket(at->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (*fd < 0) return errno;
  setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (at->ss_family == AF_INET6) setsockopt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  if (!bind(*fd, (const struct sockaddr *)at, bytes) && !listen(*fd, BACKLOG)) return 0;
  int why = errno;
  close(*fd);
  *fd = -1;
  return why;
}

/* At the only place, or everywhere: the IPv6 wildcard accepts IPv4 too, where the kernel has IPv6. */
static int listen_on_port(const uint8_t *address, int port, int *fd) {
  static const place ALL_V6 = {V6, {0}}, ALL_V4 = {V4, {0}};
  struct sockaddr_storage at;
  place only;
  socklen_t bytes;
  if (!address[EVERYWHERE_AT] && place_at(address, 0, &only)) {
    bytes = to_socket_address(&only, port, &at);
    return listen_at(&at, bytes, fd);
  }
  bytes = to_socket_address(&ALL_V6, port, &at);
  int why = listen_at(&at, bytes, fd);
  if (why != EAFNOSUPPORT && why != EADDRNOTAVAIL) return why;
  bytes = to_socket_address(&ALL_V4, port, &at);
  return listen_at(&at, bytes, fd);
}

static int store_port(uint8_t *address, int fd) {
  struct sockaddr_storage at;
  socklen_t bytes = sizeof at;
  if (getsockname(fd, (struct sockaddr *)&at, &bytes))
    return MS_FAIL(MS_EIO, "transport: cannot find the port that it listens on: %s", strerror(errno));
  int port =
      ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port : ((struct sockaddr_in *)&at)->sin_port);
  address[PORT_AT] = (uint8_t)port;
  address[PORT_AT + 1] = (uint8_t)(port >> 8);
  return MS_OK;
}

int ms_tcp_check_ports(void) {
  int first, last;
  return parse_ports(&first, &last);
}

int ms_tcp_listen(const char *token, uint8_t address[MS_TRANSPORT_ADDRESS], int *fd) {
  int first, last, why = 0;
  *fd = -1;
  memset(address, 0, MS_TRANSPORT_ADDRESS);
  ms_wire_put32(address, MARK);
  MS_TRY(parse_ports(&first, &last));
  MS_TRY(identify_machine(address + MACHINE_AT));
  MS_TRY(choose_places(token, address));
  for (int port = first; port <= last && *fd < 0; port++) {
    why = listen_on_port(address, port, fd);
    if (why && why != EADDRINUSE) break;
  }
  if (*fd >= 0) return store_port(address, *fd);
  if (why == EADDRINUSE && first)
    return MS_FAIL(MS_EIO,
                   "environment variable MOONSHARD_PORTS=\"%d-%d\": all of these ports are in use on this host; every "
                   "rank of a host needs one: give a longer range, or another one",
                   first, last);
  return MS_FAIL(MS_EIO, "transport: cannot listen%s: %s", first ? " on a port of MOONSHARD_PORTS" : "", strerror(why));
}
