/* error.c - the thread-local error record and what the public header says about it; the notes of a process.
 *
 * Names and values in messages come from files and peers, so what is recorded is safe to print: a text in it can
 * neither move the cursor nor begin a line.
 *
 * The record has a fixed size, so raising an error never allocates: it works when memory is what ran out. Text that
 * does not fit ends in "...", cut between characters, never inside a UTF-8 sequence.
 */
#include "base/error.h"

#include "base/numbers/number.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = MS_ERROR_MESSAGE_BYTES, WHERE_BYTES = MS_ERROR_WHERE_BYTES, SHOWN_BYTES = 12 };

static _Thread_local ms_error_record pending;

static int continues_character(char c) { return ((unsigned char)c & 0xc0) == 0x80; }

/* Ends a cut message in "..."; length is what vsnprintf wanted to write. */
static void mark_cut(char *message, int length) {
  if (length < MESSAGE_BYTES) return;
  int end = MESSAGE_BYTES - 4;
  while (end > 0 && continues_character(message[end])) end--;
  memcpy(message + end, "...", 4);
}

/* Writes how the character at `from` is shown; returns its bytes there. A message goes on in lines that begin with two
 * blanks. Control characters are those of ASCII and the C1 controls of UTF-8. */
static int show_character(const char *from, char shown[SHOWN_BYTES]) {
  const unsigned char byte = (unsigned char)from[0], next = byte ? (unsigned char)from[1] : 0;
  if (byte == '\n' && !(next == ' ' && from[2] == ' ')) strcpy(shown, "\\n");
  else if (byte == '\r') strcpy(shown, "\\r");
  else if (byte == 0xc2 && next >= 0x80 && next <= 0x9f) snprintf(shown, SHOWN_BYTES, "\\x%02x\\x%02x", byte, next);
  else if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f) snprintf(shown, SHOWN_BYTES, "\\x%02x", byte);
  else snprintf(shown, SHOWN_BYTES, "%c", byte);
  return byte == 0xc2 && shown[0] == '\\' ? 2 : 1;
}

/* Copies a text as it may be printed; returns the length of all of it, like snprintf. */
static int copy_safe(char *out, int bytes, const char *text) {
  char shown[SHOWN_BYTES];
  int length = 0;
  while (*text) {
    text += show_character(text, shown);
    for (const char *c = shown; *c; c++, length++)
      if (length < bytes - 1) out[length] = *c;
  }
  out[length < bytes ? length : bytes - 1] = '\0';
  return length;
}

static void format_message(char *message, const char *format, va_list args) {
  char raw[MESSAGE_BYTES];
  int length = ms_format_list(raw, MESSAGE_BYTES, format, args);
  if (length < 0) strcpy(raw, "(message could not be formatted)");
  int safe = copy_safe(message, MESSAGE_BYTES, raw);
  mark_cut(message, length > safe ? length : safe);
}

int ms_error_raise(int code, const char *file, int line, const char *format, ...) {
  const char *slash = strrchr(file, '/');
  char message[MESSAGE_BYTES]; /* args may point into the record, where the new message quotes an earlier one */
  va_list args;
  va_start(args, format);
  format_message(message, format, args);
  va_end(args);
  memcpy(pending.message, message, strlen(message) + 1);
  snprintf(pending.where, WHERE_BYTES, "%.*s:%d", WHERE_BYTES - 16, slash ? slash + 1 : file, line);
  pending.code = code;
  return code;
}

int ms_error_prefix(const char *format, ...) {
  if (!pending.code) return MS_OK;
  char context[MESSAGE_BYTES], whole[2 * MESSAGE_BYTES + 2];
  va_list args;
  va_start(args, format);
  format_message(context, format, args);
  va_end(args);
  int length = snprintf(whole, sizeof whole, "%s: %s", context, pending.message);
  memcpy(pending.message, whole, length < MESSAGE_BYTES ? (size_t)length + 1 : MESSAGE_BYTES);
  mark_cut(pending.message, length);
  return pending.code;
}

void ms_error_save(ms_error_record *record) {
  record->code = pending.code;
  if (pending.code) *record = pending;
}

void ms_error_restore(const ms_error_record *record) {
  if (record->code) pending = *record;
  else ms_error_clear();
}

int ms_error_code(void) { return pending.code; }

const char *ms_error_message(void) { return pending.message; }

const char *ms_error_where(void) { return pending.where; }

void ms_error_clear(void) {
  pending.code = MS_OK;
  pending.message[0] = '\0';
  pending.where[0] = '\0';
}

const char *ms_status_name(int status) {
  static const char *const names[] = {
      [MS_OK] = "MS_OK",
      [MS_EINVAL] = "MS_EINVAL",
      [MS_ESHAPE] = "MS_ESHAPE",
      [MS_EDTYPE] = "MS_EDTYPE",
      [MS_ENAME] = "MS_ENAME",
      [MS_ERULE] = "MS_ERULE",
      [MS_ENOMEM] = "MS_ENOMEM",
      [MS_EIO] = "MS_EIO",
      [MS_EUNSUPPORTED] = "MS_EUNSUPPORTED",
      [MS_EPEER] = "MS_EPEER",
      [MS_ETIMEOUT] = "MS_ETIMEOUT",
      [MS_EMISMATCH] = "MS_EMISMATCH",
      [MS_ENONFINITE] = "MS_ENONFINITE",
      [MS_ERACE] = "MS_ERACE",
      [MS_EINTERRUPT] = "MS_EINTERRUPT",
      [MS_EINTERNAL] = "MS_EINTERNAL",
      [MS_EDEVICE] = "MS_EDEVICE",
  };
  int known = status >= 0 && status < (int)(sizeof names / sizeof names[0]);
  return known ? names[status] : "unknown status";
}

int ms_abi_version(void) { return MS_ABI_VERSION; }

const char *ms_version(void) { return "0.1.0"; }

/* ---- notes, in the order in which they came; there are few ---- */

enum { NOTES = 16, NOTE_BYTES = 1024 };

static char note[NOTES][NOTE_BYTES];
static int notes, told;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static ms_note_log told_by;
static void *user_of_log;

static int known(const char *text) {
  for (int i = 0; i < notes; i++)
    if (!strcmp(note[i], text)) return 1;
  return 0;
}

/* Gives the log, if there is one, all notes that it has not seen; not under the lock, as it can call the engine. */
static void tell_log(void) {
  for (;;) {
    pthread_mutex_lock(&lock);
    const ms_note_log log = told_by;
    void *user = user_of_log;
    const char *next = log && told < notes ? note[told++] : NULL;
    pthread_mutex_unlock(&lock);
    if (!next) return;
    log(user, next);
  }
}

void ms_note(const char *format, ...) {
  char raw[NOTE_BYTES], text[NOTE_BYTES];
  va_list args;
  va_start(args, format);
  if (ms_format_list(raw, sizeof raw, format, args) < 0) *raw = '\0';
  va_end(args);
  copy_safe(text, sizeof text, raw);
  pthread_mutex_lock(&lock);
  if (notes < NOTES && !known(text)) memcpy(note[notes++], text, sizeof text);
  pthread_mutex_unlock(&lock);
  tell_log();
}

void ms_set_log(ms_note_log log, void *user) {
  pthread_mutex_lock(&lock);
  told_by = log;
  user_of_log = user;
  pthread_mutex_unlock(&lock);
  tell_log();
}

const char *ms_note_next(void) {
  pthread_mutex_lock(&lock);
  const char *next = told < notes ? note[told++] : NULL;
  pthread_mutex_unlock(&lock);
  return next;
}
