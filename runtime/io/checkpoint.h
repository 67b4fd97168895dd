/* checkpoint.h - a checkpoint as files: one rank's part of it, and the commit that makes parts a checkpoint.
**
** The folder that is written has for writer N the file rank-N.safetensors and then rank-N.json, the part of the manifest
** that tells of it; that it is there says that the file is complete and on disk. The commit joins these parts, so ranks
** need no other way to tell each other what they wrote.
*/
#ifndef MS_IO_CHECKPOINT_H
#define MS_IO_CHECKPOINT_H

#include <stdatomic.h>

#include "moonshard.h"

#define MS_MANIFEST "manifest.json"

/* Elements [first, first + count) of a piece, counted from the piece's own first, f32: *values is where they are, which may
** be `room`, of so many elements. */
typedef int ms_piece_read(void *context, int piece, int64_t first, int64_t count, float *room, const float **values);

typedef struct ms_part {
  const char *folder;
  int writer, n;
  const ms_save_piece *piece;
  /* Either all pieces as they lie in the file, from the begin of a page of memory, piece i from element at[i] on: they go
  ** past the page cache; */
  const float *copy;
  const int64_t *at;
  /* or, where copy is NULL, what reads them. */
  ms_piece_read *read;
  void *context;
  atomic_int *stop;        /* not 0: give up */
  _Atomic int64_t *writes; /* counts on while there is progress */
} ms_part;

/* Writes this rank's file to disk, and then its part of the manifest. */
int ms_part_write(const ms_part *part);

typedef struct ms_commit {
  const char *folder, *target, *head;
  int writers;
  int retired;
  const char *const *retires;
  double deadline; /* seconds that it waits for a writer while none comes to its end */
  atomic_int *stop;
  _Atomic int64_t *writes;
} ms_commit;

/* Waits for the parts, writes the manifest, and gives the folder its name; then removes what is retired. */
int ms_commit_run(const ms_commit *commit);

#endif
