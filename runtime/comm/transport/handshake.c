/* handshake.c - encodes greetings, hellos, answers and their proofs. */
#include <string.h>

#include "comm/transport/handshake.h"

#include "base/error.h"

static const char MAGIC[8] = {'M', 'S', 'M', 'O', 'V', 'E', 'S', '\n'};

enum { VERSION_AT = 8, GREETING_NONCE_AT = 16 };
enum { RANK_AT = 4, TO_AT = 8, SIZE_AT = 12, NONCE_AT = 16, PROOF_AT = NONCE_AT + MS_WIRE_NONCE };
enum { JOB_AT = PROOF_AT + MS_WIRE_PROOF };
enum { WELCOME = 1, REFUSED = 2, BODY_AT = 8 };

int ms_peer_job_open(ms_peer_job *job, const ms_transport_config *config) {
  *job = (ms_peer_job){0};
  if (strlen(config->job) >= MS_PEER_JOB)
    return MS_FAIL(MS_EINVAL, "transport: the job's id has %zu characters; it can have %d", strlen(config->job),
                   MS_PEER_JOB - 1);
  ms_wire_get_text((const uint8_t *)config->job, strlen(config->job), job->id, sizeof job->id);
  job->token = ms_secret_copy(config->token);
  return job->token ? MS_OK : MS_ENOMEM;
}

void ms_peer_job_close(ms_peer_job *job) { ms_secret_free(job->token); }

ms_peer_hello ms_peer_own_hello(const ms_transport_config *config, const ms_peer_job *job, int to) {
  ms_peer_hello hello = {.version = MS_PEER_VERSION, .rank = config->rank, .to = to, .size = config->size};
  memcpy(hello.job, job->id, sizeof hello.job);
  return hello;
}

void ms_peer_put_greeting(uint8_t greeting[MS_PEER_GREETING], const uint8_t nonce[MS_WIRE_NONCE]) {
  memset(greeting, 0, MS_PEER_GREETING);
  memcpy(greeting, MAGIC, sizeof MAGIC);
  ms_wire_put32(greeting + VERSION_AT, MS_PEER_VERSION);
  memcpy(greeting + GREETING_NONCE_AT, nonce, MS_WIRE_NONCE);
}

int ms_peer_get_greeting(const uint8_t greeting[MS_PEER_GREETING], uint32_t *version, uint8_t nonce[MS_WIRE_NONCE]) {
  *version = ms_wire_get32(greeting + VERSION_AT);
  memcpy(nonce, greeting + GREETING_NONCE_AT, MS_WIRE_NONCE);
  return !memcmp(greeting, MAGIC, sizeof MAGIC);
}

void ms_peer_put_hello(uint8_t bytes[MS_PEER_HELLO], const ms_peer_hello *hello) {
  ms_wire_put32(bytes, hello->version);
  ms_wire_put32(bytes + RANK_AT, (uint32_t)hello->rank);
  ms_wire_put32(bytes + TO_AT, (uint32_t)hello->to);
  ms_wire_put32(bytes + SIZE_AT, (uint32_t)hello->size);
  memcpy(bytes + NONCE_AT, hello->nonce, MS_WIRE_NONCE);
  memcpy(bytes + PROOF_AT, hello->proof, MS_WIRE_PROOF);
  memcpy(bytes + JOB_AT, hello->job, MS_PEER_JOB);
}

void ms_peer_get_hello(const uint8_t bytes[MS_PEER_HELLO], ms_peer_hello *hello) {
  hello->version = ms_wire_get32(bytes);
  hello->rank = (int32_t)ms_wire_get32(bytes + RANK_AT);
  hello->to = (int32_t)ms_wire_get32(bytes + TO_AT);
  hello->size = (int32_t)ms_wire_get32(bytes + SIZE_AT);
  memcpy(hello->nonce, bytes + NONCE_AT, MS_WIRE_NONCE);
  memcpy(hello->proof, bytes + PROOF_AT, MS_WIRE_PROOF);
  ms_wire_get_text(bytes + JOB_AT, MS_PEER_JOB, hello->job, sizeof hello->job);
}

void ms_peer_prove(const char *token, char side, const uint8_t nonce[MS_WIRE_NONCE], const ms_peer_hello *hello,
                   uint8_t proof[MS_WIRE_PROOF]) {
  uint8_t text[1 + sizeof MAGIC + MS_WIRE_NONCE + MS_PEER_HELLO], *at = text;
  ms_peer_hello claim = *hello;
  memset(claim.proof, 0, sizeof claim.proof);
  *at++ = (uint8_t)side;
  memcpy(at, MAGIC, sizeof MAGIC);
  at += sizeof MAGIC;
  memcpy(at, nonce, MS_WIRE_NONCE);
  ms_peer_put_hello(at + MS_WIRE_NONCE, &claim);
  ms_wire_prove(token, text, sizeof text, proof);
}

void ms_peer_put_welcome(uint8_t answer[MS_PEER_ANSWER], const uint8_t proof[MS_WIRE_PROOF]) {
  memset(answer, 0, MS_PEER_ANSWER);
  ms_wire_put32(answer, WELCOME);
  memcpy(answer + BODY_AT, proof, MS_WIRE_PROOF);
}

void ms_peer_put_refusal(uint8_t answer[MS_PEER_ANSWER], const char *why) {
  size_t n = strnlen(why, MS_PEER_REASON - 1);
  memset(answer, 0, MS_PEER_ANSWER);
  ms_wire_put32(answer, REFUSED);
  memcpy(answer + BODY_AT, why, n);
}

int ms_peer_get_answer(const uint8_t answer[MS_PEER_ANSWER], uint8_t proof[MS_WIRE_PROOF], char why[MS_PEER_REASON]) {
  memcpy(proof, answer + BODY_AT, MS_WIRE_PROOF);
  ms_wire_get_text(answer + BODY_AT, MS_PEER_REASON, why, MS_PEER_REASON);
  return ms_wire_get32(answer) == WELCOME;
}
