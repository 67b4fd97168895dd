/* store_frame.c - encodes greetings, hellos and their proofs. */
#include <string.h>

#include "comm/bootstrap/store/store_wire.h"

static const char MAGIC[8] = {'M', 'S', 'S', 'T', 'O', 'R', 'E', '\n'};

void ms_wire_put_greeting(uint8_t greeting[MS_WIRE_GREETING], const uint8_t nonce[MS_WIRE_NONCE]) {
  memcpy(greeting, MAGIC, sizeof MAGIC);
  ms_wire_put32(greeting + 8, MS_STORE_VERSION);
  ms_wire_put32(greeting + 12, 0);
  memcpy(greeting + 16, nonce, MS_WIRE_NONCE);
}

int ms_wire_get_greeting(const uint8_t greeting[MS_WIRE_GREETING], uint32_t *version, uint8_t nonce[MS_WIRE_NONCE]) {
  *version = ms_wire_get32(greeting + 8);
  memcpy(nonce, greeting + 16, MS_WIRE_NONCE);
  return !memcmp(greeting, MAGIC, sizeof MAGIC);
}

enum { RANK_AT = 4, SIZE_AT = 8, PID_AT = 12, NONCE_AT = 16, PROOF_AT = NONCE_AT + MS_WIRE_NONCE };
enum { JOB_AT = PROOF_AT + MS_WIRE_PROOF, HOST_AT = JOB_AT + MS_STORE_JOB };

void ms_wire_put_hello(uint8_t body[MS_WIRE_HELLO_BYTES], const ms_wire_hello *hello) {
  ms_wire_put32(body, hello->version);
  ms_wire_put32(body + RANK_AT, (uint32_t)hello->rank);
  ms_wire_put32(body + SIZE_AT, (uint32_t)hello->size);
  ms_wire_put32(body + PID_AT, (uint32_t)hello->pid);
  memcpy(body + NONCE_AT, hello->nonce, MS_WIRE_NONCE);
  memcpy(body + PROOF_AT, hello->proof, MS_WIRE_PROOF);
  memcpy(body + JOB_AT, hello->job, MS_STORE_JOB);
  memcpy(body + HOST_AT, hello->host, MS_WIRE_NAME);
}

void ms_wire_get_hello(const uint8_t body[MS_WIRE_HELLO_BYTES], ms_wire_hello *hello) {
  hello->version = ms_wire_get32(body);
  hello->rank = (int32_t)ms_wire_get32(body + RANK_AT);
  hello->size = (int32_t)ms_wire_get32(body + SIZE_AT);
  hello->pid = (int32_t)ms_wire_get32(body + PID_AT);
  memcpy(hello->nonce, body + NONCE_AT, MS_WIRE_NONCE);
  memcpy(hello->proof, body + PROOF_AT, MS_WIRE_PROOF);
  ms_wire_get_text(body + JOB_AT, MS_STORE_JOB, hello->job, sizeof hello->job);
  ms_wire_get_text(body + HOST_AT, MS_WIRE_NAME, hello->host, sizeof hello->host);
}

void ms_wire_client_proof(const char *token, const uint8_t server_nonce[MS_WIRE_NONCE], const ms_wire_hello *hello,
                          uint8_t proof[MS_WIRE_PROOF]) {
  uint8_t text[1 + MS_WIRE_NONCE + MS_WIRE_HELLO_BYTES];
  ms_wire_hello claim = *hello;
  memset(claim.proof, 0, sizeof claim.proof);
  text[0] = 'c';
  memcpy(text + 1, server_nonce, MS_WIRE_NONCE);
  ms_wire_put_hello(text + 1 + MS_WIRE_NONCE, &claim);
  ms_wire_prove(token, text, sizeof text, proof);
}

void ms_wire_server_proof(const char *token, const uint8_t server_nonce[MS_WIRE_NONCE],
                          const uint8_t client_nonce[MS_WIRE_NONCE], uint8_t proof[MS_WIRE_PROOF]) {
  uint8_t text[1 + 2 * MS_WIRE_NONCE];
  text[0] = 's';
  memcpy(text + 1, server_nonce, MS_WIRE_NONCE);
  memcpy(text + 1 + MS_WIRE_NONCE, client_nonce, MS_WIRE_NONCE);
  ms_wire_prove(token, text, sizeof text, proof);
}
