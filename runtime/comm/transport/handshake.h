/* handshake.h - how two ranks prove to each other that they know the job's token: what tcp and ucx have in common
 * (handshake.c). Internal to transport.
 */
#ifndef MS_COMM_TRANSPORT_HANDSHAKE_H
#define MS_COMM_TRANSPORT_HANDSHAKE_H

#include "comm/transport/frame.h"
#include "comm/transport/transport.h"

enum { MS_PEER_VERSION = 1, MS_PEER_JOB = 128 };

enum {
  MS_PEER_GREETING = 8 + 4 + 4 + MS_WIRE_NONCE,
  MS_PEER_HELLO = 16 + MS_WIRE_NONCE + MS_WIRE_PROOF + MS_PEER_JOB,
  MS_PEER_ANSWER = 4 + 4 + MS_PEER_REASON
};

/* The job whose ranks an endpoint talks to. */
typedef struct ms_peer_job {
  char *token;          /* a secret copy */
  char id[MS_PEER_JOB]; /* printable */
} ms_peer_job;

/* Fails with MS_EINVAL: an id that is too long. ms_peer_job_close is safe afterwards, and on zeros. */
int ms_peer_job_open(ms_peer_job *job, const ms_transport_config *config);
void ms_peer_job_close(ms_peer_job *job);

/* What the connecting rank claims. */
typedef struct ms_peer_hello {
  uint32_t version;
  int32_t rank, to, size; /* to: the rank that it wants to reach */
  uint8_t nonce[MS_WIRE_NONCE], proof[MS_WIRE_PROOF];
  char job[MS_PEER_JOB];
} ms_peer_hello;

/* What this rank claims to rank `to`; without nonce and proof. */
ms_peer_hello ms_peer_own_hello(const ms_transport_config *config, const ms_peer_job *job, int to);
void ms_peer_put_greeting(uint8_t greeting[MS_PEER_GREETING], const uint8_t nonce[MS_WIRE_NONCE]);
/* 0: these bytes are no greeting. */
int ms_peer_get_greeting(const uint8_t greeting[MS_PEER_GREETING], uint32_t *version, uint8_t nonce[MS_WIRE_NONCE]);
void ms_peer_put_hello(uint8_t bytes[MS_PEER_HELLO], const ms_peer_hello *hello);
void ms_peer_get_hello(const uint8_t bytes[MS_PEER_HELLO], ms_peer_hello *hello);
/* side: 'C' for the proof of the connecting side, 'A' for that of the accepting side. Both cover both nonces, the
 * version, the ranks and the job. */
void ms_peer_prove(const char *token, char side, const uint8_t nonce[MS_WIRE_NONCE], const ms_peer_hello *hello,
                   uint8_t proof[MS_WIRE_PROOF]);
void ms_peer_put_welcome(uint8_t answer[MS_PEER_ANSWER], const uint8_t proof[MS_WIRE_PROOF]);
void ms_peer_put_refusal(uint8_t answer[MS_PEER_ANSWER], const char *why);
/* 1: welcome, with the proof in `proof`; 0: refused, with the reason in `why`. */
int ms_peer_get_answer(const uint8_t answer[MS_PEER_ANSWER], uint8_t proof[MS_WIRE_PROOF], char why[MS_PEER_REASON]);

#endif
