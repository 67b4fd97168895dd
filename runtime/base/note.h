/* note.h - what a run tells its user once: that something works, but not as well as it could, and what would mend it. Errors
** are for what does not work.
*/
#ifndef MS_BASE_NOTE_H
#define MS_BASE_NOTE_H

/* Keeps a note until ms_note_next (moonshard.h) hands it out. The same text is kept once in a process. */
void ms_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
