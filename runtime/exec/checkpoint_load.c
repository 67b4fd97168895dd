/* checkpoint_load.c - loads a state from files: reads the ranges of a tensor that this rank owns, and verifies
 * checksums block by block while it reads. */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/xxh3.h"
#include "exec/params.h"

/* ROUND: bytes that are read, hashed and stored at a time; they fit the second-level cache. */
enum { ROUND = 1 << 18, DIGITS = 16 };

typedef struct loading {
  ms_state *state;
  int param;
  int what;
  const ms_safetensors *file;
  ms_safetensors_tensor tensor;
  int index;
  int64_t begin;       /* the parameter's element at the beginning of the tensor */
  int64_t first, last; /* the parameter's elements to load: [first, last) */
  float *owned;        /* address of element `first` if it is f32 in host memory; else NULL */
  void *round;
  XXH3_state_t *hash;
  int64_t *bytes;
} loading;

/* Reads bytes [from, to) of the tensor to *at, and stores the wanted elements in the state; directly, if all of them
 * are wanted and the state is in host memory. */
static int read_round(loading *l, int64_t from, int64_t to, const void **at) {
  int64_t first = l->begin + from / 4, last = l->begin + to / 4;
  int64_t wanted = first > l->first ? first : l->first, end = last < l->last ? last : l->last;
  void *into = l->owned && wanted == first && end == last ? l->owned + (first - l->first) : l->round;
  MS_TRY(ms_safetensors_read(l->file, l->index, from, to - from, into));
  *l->bytes += (to - from);
  *at = into;
  if (into != l->round || end <= wanted) return MS_OK;
  return ms_state_write(l->state, l->param, l->what, wanted, end - wanted, (float *)l->round + (wanted - first));
}

static int read_checked(loading *l, int64_t block, const char *checksums) {
  int64_t from = block * MS_CHECKPOINT_BLOCK, end = from + MS_CHECKPOINT_BLOCK;
  char digits[DIGITS + 1];
  const void *read;
  if (end > l->tensor.bytes) end = l->tensor.bytes;
  XXH3_64bits_reset(l->hash);
  for (int64_t at = from; at < end; at += ROUND) {
    int64_t to = at + ROUND < end ? at + ROUND : end;
    MS_TRY(read_round(l, at, to, &read));
    XXH3_64bits_update(l->hash, read, (size_t)(to - at));
  }
  snprintf(digits, sizeof digits, "%016llx", (unsigned long long)XXH3_64bits_digest(l->hash));
  if (!strncmp(digits, checksums + block * DIGITS, DIGITS)) return MS_OK;
  return MS_FAIL(MS_EIO,
                 "%s: tensor %s: bytes %lld to %lld have the checksum %s, but had %.16s when they were saved: the "
                 "file is damaged",
                 l->tensor.file, l->tensor.name, (long long)from, (long long)end, digits, checksums + block * DIGITS);
}

static int read_all(loading *l, const char *checksums) {
  int64_t from = 4 * (l->first - l->begin), to = 4 * (l->last - l->begin);
  if (checksums) {
    for (int64_t block = from / MS_CHECKPOINT_BLOCK; block * MS_CHECKPOINT_BLOCK < to; block++)
      MS_TRY(read_checked(l, block, checksums));
    return MS_OK;
  }
  const void *read;
  for (int64_t at = from; at < to; at += ROUND) MS_TRY(read_round(l, at, at + ROUND < to ? at + ROUND : to, &read));
  return MS_OK;
}

static int check(const loading *l, const char *checksums) {
  const ms_safetensors_tensor *t = &l->tensor;
  if (strcmp(t->dtype, "F32"))
    return MS_FAIL(MS_EDTYPE, "%s: tensor %s has dtype %s; a state can only be loaded from F32", t->file, t->name,
                   t->dtype);
  if (l->begin < 0 || l->first < l->begin || l->last < l->first || l->last - l->begin > t->elements)
    return MS_FAIL(MS_EINVAL, "%s: tensor %s: cannot load elements %lld to %lld: it holds %lld elements from %lld",
                   t->file, t->name, (long long)l->first, (long long)l->last, (long long)t->elements,
                   (long long)l->begin);
  int64_t blocks = (t->bytes + MS_CHECKPOINT_BLOCK - 1) / MS_CHECKPOINT_BLOCK;
  if (checksums && (int64_t)strlen(checksums) != blocks * DIGITS)
    return MS_FAIL(MS_EINVAL, "%s: tensor %s: its checksums have %zu digits, but its %lld blocks need %lld", t->file,
                   t->name, strlen(checksums), (long long)blocks, (long long)blocks * DIGITS);
  return MS_OK;
}

int ms_state_load(ms_state *state, int param, int what, int64_t first, int64_t count, const ms_safetensors *file, int i,
                  int64_t begin, const char *checksums, int64_t *bytes) {
  MS_HANDLE(state, STATE);
  MS_HANDLE(file, SAFETENSORS);
  MS_GIVEN(bytes);
  float *owned;
  MS_TRY(ms_state_writable(state, param, what, first, count, &owned)); /* so first + count is a number */
  loading l = {.state = state,
               .param = param,
               .what = what,
               .file = file,
               .index = i,
               .begin = begin,
               .first = first,
               .last = first + count,
               .owned = owned,
               .bytes = bytes};
  int rc;
  MS_TRY(ms_safetensors_describe(file, i, &l.tensor));
  MS_TRY(check(&l, checksums));
  l.round = malloc(ROUND); /* not cleared: that would take longer than to load a small tensor */
  l.hash = XXH3_createState();
  if (!l.round || !l.hash) rc = MS_FAIL(MS_ENOMEM, "out of memory: loading %s", l.tensor.name);
  else rc = read_all(&l, checksums);
  XXH3_freeState(l.hash);
  free(l.round);
  return rc;
}
