/* store_wire.h - what goes over a connection to the store: places, sockets, frames. Internal to comm.
**
** A server greets with 40 bytes: magic, version, a nonce. Then both sides send frames: 8 bytes of header (length of the
** body, kind), and the body; all integers are little-endian. A client's first frame is HELLO, with an HMAC over both
** nonces that proves it knows the job's token; the server answers WELCOME, with a proof of its own, or REFUSED. The token
** itself never goes over the wire.
*/
#ifndef MS_COMM_BOOTSTRAP_STORE_WIRE_H
#define MS_COMM_BOOTSTRAP_STORE_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "comm/bootstrap/store.h"

enum {
  MS_WIRE_NONCE = 16,
  MS_WIRE_GREETING = 8 + 4 + 4 + MS_WIRE_NONCE,
  MS_WIRE_HEADER = 8,
  MS_WIRE_NAME = 64,
  MS_WIRE_PROOF = 32
};

enum ms_wire_kind {
  MS_WIRE_HELLO = 1,   /* client: ms_wire_hello */
  MS_WIRE_WELCOME = 2, /* server: proof */
  MS_WIRE_REFUSED = 3, /* server: status, text; the connection is closed after it */
  MS_WIRE_ROUND = 4,   /* client: its bytes of a gather */
  MS_WIRE_ALL = 5,     /* server: every rank's */
  MS_WIRE_GIVE_UP = 6, /* client: seconds it waited, as text; the server tells all who is missing */
  MS_WIRE_FAILED = 7,  /* server: status, text */
  MS_WIRE_ABORT = 8,   /* client: text */
  MS_WIRE_LEAVE = 9    /* both: this side goes, and all is well */
};

typedef struct ms_wire_hello {
  uint32_t version;
  int32_t rank, size, pid;
  uint8_t nonce[MS_WIRE_NONCE];
  uint8_t proof[MS_WIRE_PROOF];
  char job[MS_STORE_JOB], host[MS_WIRE_NAME];
} ms_wire_hello;
enum { MS_WIRE_HELLO_BYTES = 16 + MS_WIRE_NONCE + MS_WIRE_PROOF + MS_STORE_JOB + MS_WIRE_NAME };

/* ---- sockets; all are non-blocking and close on exec ---- */

/* A place to meet, listened at. */
int ms_wire_listen(const ms_store_place *place, int *fd);
/* One attempt to connect, until `deadline` (ms_clock). *fd is -1 when nobody was there, `why` then says so: a reason to
** try again; a failure is none. */
int ms_wire_connect(const ms_store_place *place, double deadline, int *fd, char *why, size_t bytes);
/* MS_OK when the other end of a connection within this host belongs to a process of this user. MS_EMISMATCH: to another's, or it
** cannot be told; MS_EIO: the connection is gone. Over TCP the other side must have accepted, and not closed, its end. */
int ms_wire_check_user(int fd);
/* "10.0.0.7:4242", or "this host". */
void ms_wire_peer_name(int fd, char *text, size_t bytes);
/* Connections that are dead without a word (a host that lost power) end after about half a minute. */
void ms_wire_keep_alive(int fd);
/* Waits for poll events. *ready 0: the deadline passed. Fails with MS_EINTERRUPT. */
int ms_wire_wait(int fd, short events, double deadline, int *ready);
/* Sends or receives all, or fails: MS_ETIMEOUT at the deadline, MS_EIO when the connection closed. */
int ms_wire_send(int fd, const void *data, size_t bytes, double deadline);
int ms_wire_receive(int fd, void *data, size_t bytes, double deadline);

/* ---- frames ---- */

void ms_wire_put32(uint8_t *at, uint32_t value);
uint32_t ms_wire_get32(const uint8_t *at);
void ms_wire_put_greeting(uint8_t greeting[MS_WIRE_GREETING], const uint8_t nonce[MS_WIRE_NONCE]);
/* 0 when these are not the first bytes of a store. */
int ms_wire_get_greeting(const uint8_t greeting[MS_WIRE_GREETING], uint32_t *version, uint8_t nonce[MS_WIRE_NONCE]);
void ms_wire_put_hello(uint8_t body[MS_WIRE_HELLO_BYTES], const ms_wire_hello *hello);
void ms_wire_get_hello(const uint8_t body[MS_WIRE_HELLO_BYTES], ms_wire_hello *hello);
/* What proves the token: the client's over its own and the server's nonce and what it claims, the server's over the two. */
void ms_wire_client_proof(const char *token, const uint8_t server_nonce[MS_WIRE_NONCE], const ms_wire_hello *hello,
                          uint8_t proof[MS_WIRE_PROOF]);
void ms_wire_server_proof(const char *token, const uint8_t server_nonce[MS_WIRE_NONCE],
                          const uint8_t client_nonce[MS_WIRE_NONCE], uint8_t proof[MS_WIRE_PROOF]);
/* A text that a peer sent, made safe to print: bytes that are no printable ASCII become '?'. */
void ms_wire_get_text(const uint8_t *body, size_t bytes, char *text, size_t capacity);
/* 1 when both proofs are the same; takes as long wherever they differ. */
int ms_wire_same_proof(const uint8_t a[MS_WIRE_PROOF], const uint8_t b[MS_WIRE_PROOF]);
int ms_wire_random(void *bytes, size_t n);

#endif
