/* checkpoint_part.c - writes one rank's part of a checkpoint: its file, block by block with checksums, and its list
 * of pieces.
 *
 * Data read from a state is written while it is hashed and still in the cache. A copy in memory is hashed first and
 * then written past the page cache: while training continues, processor time matters most, and this takes the least.
 */
#include "io/checkpoint/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text/text.h"
#include "base/text/xxh3.h"
#include "io/file.h"
#include "io/safetensors/safetensors.h"

/* Elements read, hashed and written at a time: 1 MiB, which stays in the second-level cache. */
enum { ROUND = 1 << 18 };
/* Bytes of a copy written at a time. */
enum { STRETCH = 4 << 20 };

_Static_assert(MS_CHECKPOINT_BLOCK % (ROUND * sizeof(float)) == 0, "a block is whole rounds");

typedef struct writing {
  const ms_part *part;
  ms_safetensors_writer *file;
  XXH3_state_t *hash;
  float *round;
  ms_text json;
} writing;

static char *path_in(const char *folder, int writer, const char *ending) {
  size_t room = strlen(folder) + strlen(ending) + 32;
  char *path = ms_calloc((int64_t)room, 1);
  if (path) snprintf(path, room, "%s/rank-%05d%s", folder, writer, ending);
  return path;
}

static int declare(writing *w, const char *path) {
  const ms_part *part = w->part;
  ms_safetensors_config config;
  MS_TRY(ms_config_default("ms_safetensors_config", &config, sizeof config));
  ms_safetensors_tensor *tensor = ms_calloc(part->n, sizeof *tensor);
  if (!tensor) return MS_ENOMEM;
  for (int i = 0; i < part->n; i++) {
    const ms_save_piece *piece = &part->piece[i];
    tensor[i] = (ms_safetensors_tensor){.name = piece->name,
                                        .dtype = part->in_words(piece->what) ? "I32" : "F32",
                                        .ndim = piece->ndim,
                                        .dims = piece->dims};
  }
  config.atomic = 0; /* the folder as a whole is */
  config.sync = 1;
  config.direct = part->copy != NULL;
  int rc = ms_safetensors_create(path, part->n, tensor, sizeof *tensor, &config, &w->file);
  free(tensor);
  return rc;
}

static int go_on(const ms_part *part) {
  if (atomic_load_explicit(part->stop, memory_order_relaxed)) return MS_FAIL(MS_EINTERRUPT, "the save was cancelled");
  atomic_fetch_add_explicit(part->writes, 1, memory_order_relaxed);
  return MS_OK;
}

/* Hashes elements from `at` on, and writes them unless a copy holds them. */
static int hash_round(writing *w, int i, int64_t at, int64_t n) {
  const ms_part *part = w->part;
  const size_t bytes = (size_t)n * sizeof(float);
  const float *values;
  MS_TRY(go_on(part));
  if (part->copy) {
    XXH3_64bits_update(w->hash, part->copy + part->at[i] + at, bytes);
    return MS_OK;
  }
  MS_TRY(part->read(part->context, i, at, n, w->round, &values));
  XXH3_64bits_update(w->hash, values, bytes);
  return ms_safetensors_write(w->file, i, NULL, at * (int64_t)sizeof(float), (int64_t)bytes, values);
}

static int write_piece(writing *w, int i) {
  const ms_part *part = w->part;
  const int64_t count = part->piece[i].count;
  int64_t in_block = 0;
  XXH3_64bits_reset(w->hash);
  for (int64_t at = 0; at < count; at += ROUND) {
    int64_t n = count - at < ROUND ? count - at : ROUND;
    MS_TRY(hash_round(w, i, at, n));
    in_block += n * (int64_t)sizeof(float);
    if (in_block < MS_CHECKPOINT_BLOCK && at + n < count) continue;
    ms_text_append(&w->json, "%016llx", (unsigned long long)XXH3_64bits_digest(w->hash));
    XXH3_64bits_reset(w->hash);
    in_block = 0;
  }
  return MS_OK;
}

/* A piece of the whole parameter has no division: files from before there were any have none. */
static void describe(ms_text *json, const ms_save_piece *piece, const ms_division *part) {
  ms_text_append(json, "{\"name\":");
  ms_text_json_string(json, piece->name);
  ms_text_append(json, ",\"parameter\":");
  ms_text_json_string(json, piece->parameter);
  ms_text_append(json, ",\"kind\":");
  ms_text_json_string(json, piece->kind);
  ms_text_append(json, ",\"first\":%lld,\"count\":%lld,", (long long)piece->first, (long long)piece->count);
  if (part->run != part->stride)
    ms_text_append(json, "\"run\":%lld,\"stride\":%lld,\"origin\":%lld,", (long long)part->run, (long long)part->stride,
                   (long long)part->origin);
  ms_text_append(json, "\"xxh3\":\"");
}

static int write_pieces(writing *w) {
  const char *head = w->part->head;
  ms_text_append(&w->json, "{%s%s\"file\":\"rank-%05d.safetensors\",\"tensors\":[", head ? head : "", head ? "," : "",
                 w->part->writer);
  for (int i = 0; i < w->part->n; i++) {
    if (i) ms_text_append(&w->json, ",");
    describe(&w->json, &w->part->piece[i], &w->part->division[i]);
    MS_TRY(write_piece(w, i));
    ms_text_append(&w->json, "\"}");
  }
  ms_text_append(&w->json, head ? "]" : "]}");
  return head ? ms_checkpoint_end(&w->json) : ms_text_status(&w->json);
}

static int write_copy(writing *w) {
  const ms_part *part = w->part;
  const int64_t unit = sizeof(float), bytes = part->at[part->n] * unit;
  for (int i = 0; i < part->n; i++)
    if (part->piece[i].count && ms_st_offset(w->file, i) != part->at[i] * unit)
      return MS_FAIL(MS_EINTERNAL, "tensor %s: it is at byte %lld of the copy but at byte %lld of the file",
                     part->piece[i].name, (long long)(part->at[i] * unit), (long long)ms_st_offset(w->file, i));
  for (int64_t at = 0; at < bytes; at += STRETCH) {
    MS_TRY(go_on(part));
    MS_TRY(ms_st_put_data(w->file, at, bytes - at < STRETCH ? bytes - at : STRETCH, part->copy + at / unit));
  }
  return MS_OK;
}

/* A part appears complete: the commit waits for its name. */
static int publish(const writing *w) {
  char *path = path_in(w->part->folder, w->part->writer, ".json");
  char *temporary = path_in(w->part->folder, w->part->writer, ".json.tmp");
  int rc = path && temporary ? MS_OK : MS_ENOMEM;
  if (!rc) rc = ms_file_write_text(temporary, w->json.data, (int64_t)w->json.length, w->part->head != NULL);
  if (!rc && ms_file_rename(temporary, path)) {
    rc = MS_FAIL(MS_EIO, "%s: renaming it to %s: %s", temporary, path, strerror(errno));
    unlink(temporary);
  }
  free(path);
  free(temporary);
  return rc;
}

int ms_part_write(const ms_part *part) {
  writing w = {.part = part, .hash = XXH3_createState(), .round = ms_calloc(ROUND, sizeof(float))};
  char *path = path_in(part->folder, part->writer, ".safetensors");
  int rc = MS_OK;
  if (!w.hash) MS_GOTO(MS_FAIL(MS_ENOMEM, "out of memory: a checksum"));
  if (!w.round || !path) MS_GOTO(MS_ENOMEM);
  MS_GOTO(declare(&w, path));
  MS_GOTO(write_pieces(&w));
  if (part->copy) MS_GOTO(write_copy(&w));
  rc = ms_safetensors_finish(w.file);
  w.file = NULL;
  if (!rc) rc = publish(&w);
fail:
  ms_free(w.file);
  ms_text_free(&w.json);
  XXH3_freeState(w.hash);
  free(w.round);
  free(path);
  return rc;
}
