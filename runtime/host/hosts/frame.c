/* frame.c - queues, reads and takes apart the frames of --hosts. Memory that held frames is wiped, since one of them
 * holds the job's token. */
#include "host/hosts/frame.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/numbers/number.h"

enum { HEADER = 5, READ_BYTES = 65536, MAX_READ = 4 * READ_BYTES, SMALL = 2 * MAX_READ };

void ms_frame_wipe(ms_text *text) {
  if (text->data) sodium_memzero(text->data, text->capacity);
  ms_text_free(text);
  *text = (ms_text){0};
}

static void close_end(int *fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

/* Moves what is left to the front, so that a text from which frames are taken does not grow. */
static void move_to_front(ms_text *text, size_t *begin) {
  if (*begin) memmove(text->data, text->data + *begin, text->length - *begin);
  text->length -= *begin;
  *begin = 0;
}

/* ---- writing ---- */

size_t ms_frame_waiting(const ms_frame_queue *queue) { return queue->text.length - queue->begin; }

void ms_frame_close_queue(ms_frame_queue *queue) {
  close_end(&queue->fd);
  ms_frame_wipe(&queue->text);
  queue->begin = 0;
}

void ms_frame_flush(ms_frame_queue *queue) {
  while (queue->fd >= 0 && ms_frame_waiting(queue)) {
    ssize_t n = write(queue->fd, queue->text.data + queue->begin, ms_frame_waiting(queue));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) ms_frame_close_queue(queue);
    else queue->begin += (size_t)n;
  }
  ms_frame_wipe(&queue->text);
  queue->begin = 0;
}

void ms_frame_put(ms_frame_queue *queue, int kind, const char *bytes, size_t n) {
  const char header[HEADER] = {(char)kind, (char)n, (char)(n >> 8), (char)(n >> 16), (char)(n >> 24)};
  if (queue->fd < 0) return;
  move_to_front(&queue->text, &queue->begin);
  ms_text_raw(&queue->text, header, sizeof header);
  ms_text_raw(&queue->text, bytes, n);
  if (queue->text.failed) ms_frame_close_queue(queue);
  ms_frame_flush(queue);
}

/* What waits to be written already says as much. */
void ms_frame_put_alive(ms_frame_queue *queue, double seconds) {
  char text[32];
  int n = ms_format(text, sizeof text, "%g", seconds);
  double now = ms_clock();
  if (ms_frame_waiting(queue) || now < queue->alive_at + MS_FRAME_ALIVE_SECONDS) return;
  queue->alive_at = now;
  ms_frame_put(queue, MS_FRAME_ALIVE, text, (size_t)n);
}

/* ---- reading ---- */

void ms_frame_close_reader(ms_frame_reader *reader) {
  close_end(&reader->fd);
  ms_frame_wipe(&reader->text);
  reader->begin = 0;
}

void ms_frame_read(ms_frame_reader *reader) {
  char bytes[READ_BYTES];
  size_t all = 0;
  move_to_front(&reader->text, &reader->begin);
  while (reader->fd >= 0 && all < MAX_READ) {
    ssize_t n = read(reader->fd, bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n > 0) ms_text_raw(&reader->text, bytes, (size_t)n);
    if (n <= 0 || reader->text.failed) close_end(&reader->fd);
    else all += (size_t)n;
  }
  if (all) reader->heard_at = ms_clock();
  sodium_memzero(bytes, all < sizeof bytes ? all : sizeof bytes);
}

int ms_frame_reader_is_small(const ms_frame_reader *reader) {
  return reader->fd >= 0 && reader->text.length - reader->begin < SMALL;
}

int ms_frame_next(ms_frame_reader *reader, int *kind, char **bytes, size_t *n) {
  const uint8_t *header = (const uint8_t *)reader->text.data + reader->begin;
  size_t there = reader->text.length - reader->begin;
  if (!there) ms_frame_wipe(&reader->text), reader->begin = 0;
  if (there < HEADER) return 0;
  *kind = header[0];
  *n = header[1] | (size_t)header[2] << 8 | (size_t)header[3] << 16 | (size_t)header[4] << 24;
  if (*kind < MS_FRAME_SETUP || *kind > MS_FRAME_ALIVE || *n > MS_FRAME_LARGEST) return -1;
  if (there < HEADER + *n) return 0;
  /* Moved over the header, so that a NUL fits after it without touching the next frame. */
  *bytes = reader->text.data + reader->begin;
  memmove(*bytes, *bytes + HEADER, *n);
  (*bytes)[*n] = '\0';
  reader->begin += HEADER + *n;
  return 1;
}

const char *ms_frame_field(const char **at, const char *end) {
  const char *field = *at;
  if (field >= end) return "";
  *at += strlen(field) + 1;
  return field;
}
