/* checkpoint.h - a checkpoint as files: one rank's part, and the commit that turns all parts into a checkpoint.
 *
 * Writer N creates rank-N.safetensors in the folder and then rank-N.json, its part of the manifest. The existence of
 * the .json file means that the data file is complete and on disk. The commit joins these parts, so ranks need no
 * other channel to report what they wrote.
 *
 * Where each host has a folder of its own, one rank a folder commits. The parts then stay files, each with its
 * checksum, and every folder gets the same manifest, without them: folders can be copied together.
 */
#ifndef MS_IO_CHECKPOINT_H
#define MS_IO_CHECKPOINT_H

#include <stdatomic.h>

#include "base/text/text.h"
#include "moonshard.h"

#define MS_MANIFEST "manifest.json"

/* Returns elements [first, first + count) as f32; `first` counts from the start of the piece. *values points to them;
 * `room` has space for count elements, and *values can point to it. */
typedef int ms_piece_read(void *context, int piece, int64_t first, int64_t count, float *room, const float **values);

typedef struct ms_part {
  const char *folder;
  const char *head; /* NULL, or members of a JSON object: see part_head of ms_save_config */
  int writer, n;
  const ms_save_piece *piece;
  const ms_division *division; /* [n] of each piece: the part of the parameter in which its elements are counted */
  int (*in_words)(int what);   /* 1 when a piece of such a tensor has words, I32 in the file; else f32 */
  /* Either the data of all pieces as stored in the file, at a page boundary of memory; piece i begins at element
   * at[i]. It is written past the page cache. */
  const float *copy;
  const int64_t *at;
  /* Or, if copy is NULL, a function that reads the pieces. */
  ms_piece_read *read;
  void *context;
  atomic_int *stop;        /* nonzero: cancel */
  _Atomic int64_t *writes; /* increases while there is progress */
} ms_part;

/* Ends a JSON object, which must not be empty, with the checksum of all bytes before it: its last member. */
int ms_checkpoint_end(ms_text *json);

/* Writes this rank's data file to disk, and then its part of the manifest. */
int ms_part_write(const ms_part *part);

typedef struct ms_commit {
  const char *folder, *target, *head;
  int writers;
  const int *awaits; /* [writers] whose parts; NULL: 0 to writers - 1 */
  int apart;         /* 1: the parts stay files */
  int retired;
  const char *const *retires;
  double deadline; /* seconds without any writer finishing before the commit fails */
  atomic_int *stop;
  _Atomic int64_t *writes;
} ms_commit;

/* Waits for all parts, writes the manifest, renames the folder to its final name, and removes the retired
 * checkpoints. */
int ms_commit_run(const ms_commit *commit);

#endif
