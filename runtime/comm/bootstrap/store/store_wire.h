/* store_wire.h - the protocol of a connection to the store: places, sockets, frames. Internal to comm.
 *
 * A server greets with 40 bytes: magic, version, a nonce. Then both sides send frames: an 8-byte header (length of the
 * body, kind) and the body; all integers are little-endian. A client's first frame is HELLO, with an HMAC over both
 * nonces that proves that it knows the job's token; the server answers WELCOME, with its own proof, or REFUSED. The
 * token itself is never sent.
 */
#ifndef MS_COMM_BOOTSTRAP_STORE_WIRE_H
#define MS_COMM_BOOTSTRAP_STORE_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "comm/bootstrap/store/store.h"
#include "comm/transport/wire.h"

enum { MS_WIRE_GREETING = 8 + 4 + 4 + MS_WIRE_NONCE, MS_WIRE_HEADER = 8, MS_WIRE_NAME = 64 };

enum ms_wire_kind {
  MS_WIRE_HELLO = 1,   /* client: ms_wire_hello */
  MS_WIRE_WELCOME = 2, /* server: proof */
  MS_WIRE_REFUSED = 3, /* server: status, text; the server then closes the connection */
  MS_WIRE_ROUND = 4,   /* client: its contribution to a gather */
  MS_WIRE_ALL = 5,     /* server: the contributions of all ranks */
  MS_WIRE_GIVE_UP = 6, /* client: seconds it waited, as text; the server reports the missing ranks to all */
  MS_WIRE_FAILED = 7,  /* server: status, text */
  MS_WIRE_ABORT = 8,   /* client: text */
  MS_WIRE_LEAVE = 9,   /* both: this side leaves without an error */
  MS_WIRE_NODE = 10,   /* client: the number of its host, in a world of several */
  MS_WIRE_POST = 11,   /* client: kind (enum ms_post_kind), payload */
  MS_WIRE_POSTED = 12  /* server: the rank that posted, kind, payload */
};

typedef struct ms_wire_hello {
  uint32_t version;
  int32_t rank, size, pid;
  uint8_t nonce[MS_WIRE_NONCE];
  uint8_t proof[MS_WIRE_PROOF];
  char job[MS_STORE_JOB], host[MS_WIRE_NAME];
} ms_wire_hello;
enum { MS_WIRE_HELLO_BYTES = 16 + MS_WIRE_NONCE + MS_WIRE_PROOF + MS_STORE_JOB + MS_WIRE_NAME };

/* ---- sockets; all are non-blocking and close-on-exec ---- */

/* Listens at a place. */
int ms_wire_listen(const ms_store_place *place, int *fd);
/* Tries once to connect, until `deadline` (ms_clock). When nothing answers, *fd is -1 and `why` has the reason: the
 * caller can try again. An error is final. */
int ms_wire_connect(const ms_store_place *place, double deadline, int *fd, char *why, size_t bytes);
/* Makes connections that die silently (a host that lost power, a link that is down) fail after about this long. */
void ms_wire_keep_alive(int fd, double seconds);
/* Raises this process's limit of open files to `need` if it is lower: rank 0 needs a descriptor for each of `ranks`
 * ranks, and one more for a stranger while the ranks connect. */
int ms_wire_allow_files(int ranks, int need);
/* Send or receive everything, or fail: MS_ETIMEOUT at the deadline, MS_EIO when the connection closed. */
int ms_wire_send(int fd, const void *data, size_t bytes, double deadline);
int ms_wire_receive(int fd, void *data, size_t bytes, double deadline);

/* ---- frames ---- */

void ms_wire_put_greeting(uint8_t greeting[MS_WIRE_GREETING], const uint8_t nonce[MS_WIRE_NONCE]);
/* Returns 0 when the bytes are not a store's greeting. */
int ms_wire_get_greeting(const uint8_t greeting[MS_WIRE_GREETING], uint32_t *version, uint8_t nonce[MS_WIRE_NONCE]);
void ms_wire_put_hello(uint8_t body[MS_WIRE_HELLO_BYTES], const ms_wire_hello *hello);
void ms_wire_get_hello(const uint8_t body[MS_WIRE_HELLO_BYTES], ms_wire_hello *hello);
/* Proofs of the token: the client's covers the server's nonce and its whole HELLO (which has its own nonce), the
 * server's covers both nonces. */
void ms_wire_client_proof(const char *token, const uint8_t server_nonce[MS_WIRE_NONCE], const ms_wire_hello *hello,
                          uint8_t proof[MS_WIRE_PROOF]);
void ms_wire_server_proof(const char *token, const uint8_t server_nonce[MS_WIRE_NONCE],
                          const uint8_t client_nonce[MS_WIRE_NONCE], uint8_t proof[MS_WIRE_PROOF]);

#endif
