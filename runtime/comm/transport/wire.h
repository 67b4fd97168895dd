/* wire.h - what the protocols between ranks have in common: integers, secrets, proofs of the job's token, texts of
 * peers, and the user of the process at the other end.
 *
 * All integers are little-endian. Each protocol begins its proofs with bytes that no other one uses, so a proof made
 * for one is worth nothing in another. The token itself is never sent.
 */
#ifndef MS_COMM_TRANSPORT_WIRE_H
#define MS_COMM_TRANSPORT_WIRE_H

#include <stddef.h>
#include <stdint.h>

enum { MS_WIRE_NONCE = 16, MS_WIRE_PROOF = 32 };

void ms_wire_put32(uint8_t *at, uint32_t value);
uint32_t ms_wire_get32(const uint8_t *at);
void ms_wire_put64(uint8_t *at, uint64_t value);
uint64_t ms_wire_get64(const uint8_t *at);

/* A copy in libsodium's memory: excluded from core dumps, locked against swapping if the system allows it, and wiped
 * when freed, by ms_secret_free. NULL: MS_ENOMEM. */
char *ms_secret_copy(const char *text);
/* Wipes the text and frees it; safe on NULL. */
void ms_secret_free(char *secret);
int ms_secret_random(void *bytes, size_t n);

/* HMAC-SHA-256 of a text, keyed by a token of any length. */
void ms_wire_prove(const char *token, const uint8_t *text, size_t bytes, uint8_t proof[MS_WIRE_PROOF]);
/* 1 when both proofs are equal; takes constant time. */
int ms_wire_same_proof(const uint8_t a[MS_WIRE_PROOF], const uint8_t b[MS_WIRE_PROOF]);

/* Copies a text that a peer sent, safe to print: replaces bytes that are not printable ASCII with '?'. */
void ms_wire_get_text(const uint8_t *body, size_t bytes, char *text, size_t capacity);
/* "10.0.0.7:4242", or "this host". */
void ms_wire_peer_name(int fd, char *text, size_t bytes);
/* MS_OK when the other end of a connection within this host belongs to a process of this user; MS_EMISMATCH when it
 * belongs to another user or the owner is unknown; MS_EIO when the connection is closed. Over TCP the other side must
 * have accepted its end and not closed it. */
int ms_wire_check_user(int fd);

#endif
