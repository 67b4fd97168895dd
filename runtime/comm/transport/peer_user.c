/* peer_user.c - finds the user of the process at the other end of a connection within this host. A local socket knows
 * it; for TCP the kernel's table of connections has a row with the user of the other end. An unknown user is refused.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/transport/wire.h"

enum { END_BYTES = 48 }; /* "0000000000000000FFFF00000100007F:1F90" */
/* The table is read in pieces: a row can be missed while others in its bucket appear and disappear. */
enum { LOOKS = 3 };

typedef union end {
  struct sockaddr any;
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
} end;

/* Both ends of a connection, in the table's notation. */
typedef struct ends {
  int family;
  char here[END_BYTES], there[END_BYTES];
} ends;

/* The address's words as native integers, and the port. */
static void write_end(const end *e, char text[END_BYTES]) {
  if (e->any.sa_family == AF_INET) {
    snprintf(text, END_BYTES, "%08X:%04X", (unsigned)e->v4.sin_addr.s_addr, ntohs(e->v4.sin_port));
    return;
  }
  uint32_t word[4];
  memcpy(word, &e->v6.sin6_addr, sizeof word);
  snprintf(text, END_BYTES, "%08X%08X%08X%08X:%04X", word[0], word[1], word[2], word[3], ntohs(e->v6.sin6_port));
}

static int get_ends(int fd, ends *found) {
  end here, there;
  socklen_t bytes = sizeof here;
  if (getsockname(fd, &here.any, &bytes)) return MS_FAIL(MS_EIO, "the connection failed: %s", strerror(errno));
  bytes = sizeof there;
  if (getpeername(fd, &there.any, &bytes)) return MS_FAIL(MS_EIO, "the connection failed: %s", strerror(errno));
  found->family = here.any.sa_family;
  write_end(&here, found->here);
  write_end(&there, found->there);
  return MS_OK;
}

/* 1: the row of the other end names its user. 0: there is no row, or no process holds that socket: it was closed, or
 * not yet accepted, in which case the kernel names root. */
static int find_user(const ends *of, unsigned *user) {
  char line[512], local[END_BYTES], remote[END_BYTES];
  unsigned state;
  unsigned long inode;
  int found = 0;
  FILE *table = fopen(of->family == AF_INET ? "/proc/thread-self/net/tcp" : "/proc/thread-self/net/tcp6", "re");
  if (!table) return 0;
  while (!found && fgets(line, sizeof line, table))
    found = sscanf(line, " %*d: %47s %47s %x %*s %*s %*s %u %*s %lu", local, remote, &state, user, &inode) == 5 &&
            !strcmp(local, of->there) && !strcmp(remote, of->here);
  fclose(table);
  return found && state == TCP_ESTABLISHED && inode;
}

/* All users without a number in this user namespace share one number, so a user with that number cannot be
 * distinguished from them. Also returns 1 when the system does not say. */
static int is_of_several_users(unsigned user) {
  unsigned of_several = user, first = 0, outside, count = 0;
  FILE *number = fopen("/proc/sys/kernel/overflowuid", "re"), *map = fopen("/proc/self/uid_map", "re");
  int known = number && fscanf(number, "%u", &of_several) == 1;
  int all_have_one = map && fscanf(map, "%u %u %u", &first, &outside, &count) == 3 && !first && count == UINT32_MAX;
  if (number) fclose(number);
  if (map) fclose(map);
  return !all_have_one && (!known || user == of_several);
}

static int check_tcp(int fd) {
  ends before, after;
  unsigned user;
  int known = 0;
  MS_TRY(get_ends(fd, &before));
  for (int look = 0; look < LOOKS && !known; look++) known = find_user(&before, &user);
  /* Still connected, so no other socket can have had that row in the meantime. */
  MS_TRY(get_ends(fd, &after));
  if (!known || is_of_several_users(user))
    return MS_FAIL(MS_EMISMATCH, "cannot find the owner of the process at the other end: /proc/net does not name its "
                                 "user; give all ranks a token in "
                                 "MOONSHARD_TOKEN");
  if (user == geteuid()) return MS_OK;
  return MS_FAIL(
      MS_EMISMATCH,
      "the process at the other end belongs to user %u, not to user %u; ranks of different users need a token "
      "in MOONSHARD_TOKEN",
      user, (unsigned)geteuid());
}

int ms_wire_check_user(int fd) {
  int family = AF_UNSPEC;
  struct ucred other;
  socklen_t bytes = sizeof family;
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &bytes))
    return MS_FAIL(MS_EIO, "the connection failed: %s", strerror(errno));
  if (family != AF_UNIX) return check_tcp(fd);
  bytes = sizeof other;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &bytes))
    return MS_FAIL(MS_EIO, "cannot find the owner of the process at the other end: %s", strerror(errno));
  if (other.uid == geteuid()) return MS_OK;
  return MS_FAIL(MS_EMISMATCH, "process %d at the other end belongs to user %u, not to user %u", (int)other.pid,
                 (unsigned)other.uid, (unsigned)geteuid());
}
