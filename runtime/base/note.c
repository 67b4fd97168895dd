/* note.c - the notes of a process, in the order in which they came. There are few: each text is kept once. */
#include "base/note.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "moonshard.h"

enum { NOTES = 16, NOTE_BYTES = 1024 };

static char note[NOTES][NOTE_BYTES];
static int notes, told;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int known(const char *text) {
  for (int i = 0; i < notes; i++)
    if (!strcmp(note[i], text)) return 1;
  return 0;
}

void ms_note(const char *format, ...) {
  char text[NOTE_BYTES];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  pthread_mutex_lock(&lock);
  if (notes < NOTES && !known(text)) memcpy(note[notes++], text, sizeof text);
  pthread_mutex_unlock(&lock);
}

const char *ms_note_next(void) {
  pthread_mutex_lock(&lock);
  const char *next = told < notes ? note[told++] : NULL;
  pthread_mutex_unlock(&lock);
  return next;
}
