/* note.h - notes to the user: something works, but not as well as it could, and how to improve it. Each note appears
 * once. Failures are errors, not notes. */
#ifndef MS_BASE_NOTE_H
#define MS_BASE_NOTE_H

/* Queues a note until ms_note_next (moonshard.h) returns it. Each text is queued once per process. */
void ms_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
