/* checkpoint_load.c - loads a state from files: reads the ranges of a tensor that this rank owns, and verifies
 * checksums block by block while it reads. */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/error.h"
#include "base/min.h"
#include "base/text/xxh3.h"
#include "exec/tensors/tensor_table.h"
#include "shard/divided.h"

/* ROUND: bytes that are read, hashed and stored at a time; they fit the second-level cache. */
enum { ROUND = 1 << 18, DIGITS = 16 };

typedef struct loading {
  ms_state *state;
  int param;
  int what;
  const ms_saved_piece *piece;
  ms_safetensors_tensor tensor;
  ms_division saved, mine; /* the parts of the parameter that the file and this rank have */
  int same;                /* 1: saved and mine are one part */
  int64_t first, last;     /* elements of this rank's part to load: [first, last) */
  int64_t from, to;        /* the elements of the file's part among which these are */
  float *owned;            /* address of element `first` if it is f32 in host memory; else NULL */
  void *round;
  XXH3_state_t *hash;
  int64_t *bytes;
} loading;

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Stores what this rank owns of `count` elements that lie one after another in the parameter, from `index` on. */
static int store_run(loading *l, int64_t index, int64_t count, const float *values) {
  int64_t at = most(l->first, ms_division_below(&l->mine, index)), n;
  const int64_t end = ms_min(l->last, ms_division_below(&l->mine, index + count));
  for (; at < end; at += n) {
    const float *from = values + (ms_division_index(&l->mine, at, &n) - index);
    n = ms_min(n, end - at);
    MS_TRY(ms_state_write(l->state, l->param, l->what, at, n, from));
  }
  return MS_OK;
}

/* Stores what this rank owns of elements [first, last) of the file's part. */
static int store(loading *l, int64_t first, int64_t last, const float *values) {
  const int64_t end = ms_min(last, l->to);
  int64_t at = most(first, l->from), n;
  for (; at < end; at += n) {
    const int64_t index = ms_division_index(&l->saved, at, &n);
    n = ms_min(n, end - at);
    MS_TRY(store_run(l, index, n, values + (at - first)));
  }
  return MS_OK;
}

/* Reads bytes [from, to) of the tensor to *at, and stores the wanted elements in the state; directly, if all of them
 * are wanted and the state is in host memory. */
static int read_round(loading *l, int64_t from, int64_t to, const void **at) {
  const int64_t first = l->piece->first + from / 4, last = l->piece->first + to / 4;
  const int direct = l->owned && l->same && first >= l->first && last <= l->last;
  void *into = direct ? l->owned + (first - l->first) : l->round;
  MS_TRY(ms_safetensors_read(l->piece->file, l->piece->tensor, NULL, from, to - from, into, NULL));
  *l->bytes += (to - from);
  *at = into;
  return direct ? MS_OK : store(l, first, last, into);
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

static int read_all(loading *l) {
  const int64_t from = 4 * (l->from - l->piece->first), to = 4 * (l->to - l->piece->first);
  if (l->piece->checksums) {
    for (int64_t block = from / MS_CHECKPOINT_BLOCK; block * MS_CHECKPOINT_BLOCK < to; block++)
      MS_TRY(read_checked(l, block, l->piece->checksums));
    return MS_OK;
  }
  const void *read;
  for (int64_t at = from; at < to; at += ROUND) MS_TRY(read_round(l, at, ms_min(at + ROUND, to), &read));
  return MS_OK;
}

static int check(const loading *l) {
  const ms_safetensors_tensor *t = &l->tensor;
  const char *checksums = l->piece->checksums;
  const char *wanted = ms_tensor_in_words(l->what) ? "I32" : "F32";
  if (strcmp(t->dtype, wanted))
    return MS_FAIL(MS_EDTYPE, "%s: tensor %s has dtype %s; a state can only be loaded from %s", t->file, t->name,
                   t->dtype, wanted);
  int64_t blocks = (t->bytes + MS_CHECKPOINT_BLOCK - 1) / MS_CHECKPOINT_BLOCK;
  if (checksums && (int64_t)strlen(checksums) != blocks * DIGITS)
    return MS_FAIL(MS_EINVAL, "%s: tensor %s: its checksums have %zu digits, but its %lld blocks need %lld", t->file,
                   t->name, strlen(checksums), (long long)blocks, (long long)blocks * DIGITS);
  return MS_OK;
}

/* Counts both parts in words of records, of which stored forms consist. */
static int count_words(loading *l, const ms_param *p) {
  ms_storage saved;
  const ms_storage *mine = &p->storage;
  const int divided = l->saved.run != l->saved.stride;
  MS_TRY(ms_storage_of_runs(mine->dtype, divided ? l->saved.run : 0, &saved));
  if (saved.elements != mine->elements)
    return MS_FAIL(MS_EINVAL,
                   "%s: tensor %s has records of %lld elements, here the parameter has records of %lld: convert them "
                   "(ms_storage_copy) and write them (ms_state_write)",
                   l->tensor.file, l->tensor.name, (long long)saved.elements, (long long)mine->elements);
  ms_division *parts[] = {&l->saved, &l->mine};
  for (int i = 0; i < 2; i++) {
    parts[i]->run = ms_storage_words(mine, parts[i]->run);
    parts[i]->stride = ms_storage_words(mine, parts[i]->stride);
    parts[i]->origin = ms_storage_words(mine, parts[i]->origin);
  }
  return MS_OK;
}

/* Which elements of the file to read. */
static int find_elements(loading *l, const ms_param *p) {
  const ms_safetensors_tensor *t = &l->tensor;
  const int64_t begin = l->piece->first;
  const ms_model *model = l->state->model;
  int64_t whole = ms_tensor_elements(model, l->param, l->what), run;
  const int divided = l->piece->part.stride && !ms_tensor_is_whole(l->what);
  l->mine = ms_tensor_part(model, l->param, l->what, model->dim[MS_DIM_TENSOR].place);
  l->saved = divided ? l->piece->part : (ms_division){.run = whole, .stride = whole};
  if (ms_tensor_in_words(l->what)) {
    MS_TRY(count_words(l, p));
    whole = ms_storage_words(&p->storage, whole);
  }
  if (l->saved.run < 1 || l->saved.origin < 0 || l->saved.stride > whole || whole % l->saved.stride ||
      l->saved.origin > l->saved.stride - l->saved.run)
    return MS_FAIL(MS_EINVAL, "%s: tensor %s: runs of %lld elements, from %lld on, one every %lld, are no part of %lld",
                   t->file, t->name, (long long)l->saved.run, (long long)l->saved.origin, (long long)l->saved.stride,
                   (long long)whole);
  l->same = !memcmp(&l->saved, &l->mine, sizeof l->mine);
  l->from = l->first;
  l->to = l->last;
  if (!l->same && l->last > l->first) {
    l->from = most(begin, ms_division_below(&l->saved, ms_division_index(&l->mine, l->first, &run)));
    l->to = ms_division_below(&l->saved, ms_division_index(&l->mine, l->last - 1, &run) + 1);
    l->to = most(l->from, ms_min(l->to, begin + t->elements));
  }
  if (begin >= 0 && l->from >= begin && l->to - begin <= t->elements) return MS_OK;
  return MS_FAIL(MS_EINVAL, "%s: tensor %s: cannot load elements %lld to %lld: it holds %lld elements from %lld",
                 t->file, t->name, (long long)l->from, (long long)l->to, (long long)t->elements, (long long)begin);
}

int ms_state_load(ms_state *state, int param, int what, int64_t first, int64_t count, const ms_saved_piece *piece,
                  int size, int64_t *bytes) {
  MS_HANDLE(state, STATE);
  MS_GIVEN(bytes);
  MS_TAKE_INFO(ms_saved_piece, own, piece, size);
  piece = &own;
  MS_HANDLE(piece->file, SAFETENSORS);
  loading l = {
      .state = state,
      .param = param,
      .what = what,
      .piece = piece,
      .first = first,
      .bytes = bytes,
  };
  int rc;
  MS_TRY(ms_state_writable(state, param, what, first, count, &l.owned));
  l.last = first + count; /* a number: the rank owns them */
  MS_TRY(ms_safetensors_describe(piece->file, piece->tensor, &l.tensor, sizeof l.tensor));
  MS_TRY(check(&l));
  MS_TRY(find_elements(&l, &state->model->param[param]));
  l.round = malloc(ROUND); /* not cleared: that would take longer than to load a small tensor */
  l.hash = XXH3_createState();
  if (!l.round || !l.hash) rc = MS_FAIL(MS_ENOMEM, "out of memory: loading %s", l.tensor.name);
  else rc = read_all(&l);
  XXH3_freeState(l.hash);
  free(l.round);
  return rc;
}
