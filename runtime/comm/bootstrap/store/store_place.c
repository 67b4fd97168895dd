/* store_place.c - parses the addresses under which ranks meet. */
#include <arpa/inet.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/bootstrap/store/store.h"

static const char EXPECTED[] = "it must be tcp://host:port, file:///path or env://";

static int starts_with(const char *text, const char *start) { return !strncmp(text, start, strlen(start)); }

/* Returns -1 unless all of the text is a number in range: strtol alone accepts " 1", "+1" and "1x". */
static int read_port(const char *text) {
  size_t digits = strspn(text, "0123456789");
  if (!digits || digits > 5 || text[digits]) return -1;
  int port = atoi(text);
  return port >= 1 && port <= 65535 ? port : -1;
}

int ms_store_place_tcp(const char *host, int port, ms_store_place *place) {
  if (!*host || strlen(host) >= sizeof place->host)
    return MS_FAIL(MS_EINVAL, "rendezvous: \"%s\" is not a host name or address", host);
  if (port < 1 || port > 65535) return MS_FAIL(MS_EINVAL, "rendezvous: port %d: ports must be 1 to 65535", port);
  *place = (ms_store_place){.kind = MS_STORE_TCP, .port = port};
  memcpy(place->host, host, strlen(host) + 1);
  const char *format = strchr(host, ':') ? "tcp://[%s]:%d" : "tcp://%s:%d";
  snprintf(place->text, sizeof place->text, format, host, port);
  return MS_OK;
}

static int parse_tcp(const char *url, ms_store_place *place) {
  char host[sizeof place->host];
  const char *begin = url + strlen("tcp://"), *colon = strrchr(begin, ':'), *end = colon;
  if (!colon) return MS_FAIL(MS_EINVAL, "rendezvous %s: it has no port: tcp://host:port", url);
  if (*begin == '[' && end > begin && end[-1] == ']') begin++, end--;
  int port = read_port(colon + 1);
  if (port < 0) return MS_FAIL(MS_EINVAL, "rendezvous %s: the port must be 1 to 65535", url);
  if (end <= begin || (size_t)(end - begin) >= sizeof host || (strcspn(begin, "/?#@") < (size_t)(end - begin)))
    return MS_FAIL(MS_EINVAL, "rendezvous %s: it has no host name or address: tcp://host:port", url);
  memcpy(host, begin, (size_t)(end - begin));
  host[end - begin] = '\0';
  return ms_store_place_tcp(host, port, place);
}

static int parse_file(const char *url, ms_store_place *place) {
  const char *path = url + strlen("file://");
  if (*path != '/' || !path[1])
    return MS_FAIL(MS_EINVAL, "rendezvous %s: the path must be absolute: file:///path", url);
  if (strlen(path) >= sizeof place->name)
    return MS_FAIL(MS_EINVAL, "rendezvous %s: the path is too long: at most %zu bytes", url, sizeof place->name - 1);
  *place = (ms_store_place){.kind = MS_STORE_FILE};
  memcpy(place->name, path, strlen(path) + 1);
  snprintf(place->text, sizeof place->text, "%s", url);
  return MS_OK;
}

int ms_store_place_parse(const char *url, ms_store_place *place) {
  if (starts_with(url, "tcp://")) return parse_tcp(url, place);
  if (starts_with(url, "file://")) return parse_file(url, place);
  return MS_FAIL(MS_EINVAL, "rendezvous %s: %s", url, EXPECTED);
}

void ms_store_place_local(const char *key, const char *text, ms_store_place *place) {
  char whole[1024];
  uint8_t digest[crypto_hash_sha256_BYTES];
  int n = snprintf(whole, sizeof whole, "%u %s", (unsigned)geteuid(), key);
  crypto_hash_sha256(digest, (const uint8_t *)whole, n < (int)sizeof whole ? (size_t)n : sizeof whole - 1);
  *place = (ms_store_place){.kind = MS_STORE_LOCAL};
  int used = snprintf(place->name, sizeof place->name, "moonshard-");
  for (int i = 0; i < 16; i++)
    used += snprintf(place->name + used, sizeof place->name - (size_t)used, "%02x", digest[i]);
  snprintf(place->text, sizeof place->text, "%s", text);
}

int ms_store_place_is_local(const ms_store_place *place) {
  struct in_addr v4;
  struct in6_addr v6;
  if (place->kind != MS_STORE_TCP) return 1;
  if (!strcmp(place->host, "localhost")) return 1;
  if (inet_pton(AF_INET, place->host, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  return inet_pton(AF_INET6, place->host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

int ms_is_address(const char *host) {
  struct in6_addr address;
  return inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;
}
