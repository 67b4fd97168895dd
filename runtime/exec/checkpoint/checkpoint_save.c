/* checkpoint_save.c - saves this rank's part of a state: synchronously, or from a copy by a separate thread.
 *
 * The thread uses neither the state nor other ranks: it reads the copy and writes files, so training can continue, fail
 * or end at the same time. ms_save_wait (checkpoint_wait.c) reports its error. The copy's memory is kept for the next
 * save.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/config.h"
#include "base/error.h"
#include "comm/recorder/flight_recorder.h"
#include "exec/checkpoint/checkpoint_save.h"
#include "exec/tensors/tensor_table.h"
#include "io/checkpoint/checkpoint.h"
#include "shard/divided.h"

enum { NICENESS = 10 };

/* ---- pieces and the copy ---- */

static int copy_text(const char **to, const char *from) {
  *to = from ? ms_strdup(from) : NULL;
  return from && !*to ? MS_ENOMEM : MS_OK;
}

static int check_shape(const ms_save_piece *piece) {
  int64_t elements = 1;
  if (piece->ndim < 0 || piece->ndim > MS_MAX_DIMS)
    return MS_FAIL(MS_ESHAPE, "tensor %s: ndim is %d; it must be 0 to %d", piece->name, piece->ndim, MS_MAX_DIMS);
  for (int d = 0; d < piece->ndim; d++)
    if (piece->dims[d] < 0 || __builtin_mul_overflow(elements, piece->dims[d], &elements))
      return MS_FAIL(MS_ESHAPE, "tensor %s: dims[%d] is %lld", piece->name, d, (long long)piece->dims[d]);
  if (elements == piece->count) return MS_OK;
  return MS_FAIL(MS_ESHAPE, "tensor %s: its dims multiply to %lld, but its count is %lld", piece->name,
                 (long long)elements, (long long)piece->count);
}

static int copy_piece(const ms_state *state, ms_save_piece *to, const ms_save_piece *from) {
  MS_GIVEN(from->name);
  MS_TRY(check_shape(from));
  *to = *from;
  to->name = to->parameter = to->kind = NULL;
  MS_TRY(copy_text(&to->name, from->name));
  MS_TRY(copy_text(&to->parameter, from->parameter));
  MS_TRY(copy_text(&to->kind, from->kind));
  float *owned;
  return ms_state_owned(state, from->param, from->what, from->first, from->count, &owned);
}

typedef struct place {
  const char *name;
  int words, piece; /* words 1: a stored form, which is I32 in the file */
} place;

/* F32 is before I32 in the file. */
static int in_file(const void *a, const void *b) {
  const place *x = a, *y = b;
  return x->words != y->words ? x->words - y->words : strcmp(x->name, y->name);
}

/* Orders the copy like the file, by dtype and name: see ms_safetensors_create. */
static int place_pieces(ms_save *save) {
  place *order = ms_calloc(save->n, sizeof *order);
  int64_t end = 0;
  if (!order) return MS_ENOMEM;
  for (int i = 0; i < save->n; i++) order[i] = (place){save->piece[i].name, ms_tensor_in_words(save->piece[i].what), i};
  if (save->n) qsort(order, (size_t)save->n, sizeof *order, in_file);
  for (int i = 0; i < save->n; i++) {
    save->at[order[i].piece] = end;
    end += save->piece[order[i].piece].count;
  }
  save->at[save->n] = end;
  free(order);
  return MS_OK;
}

static int64_t copy_bytes(const ms_save *save) { return save->at[save->n] * (int64_t)sizeof(float); }

static int take_copy(ms_save *save) {
  if (!save->copy && copy_bytes(save)) {
    size_t bytes = (size_t)copy_bytes(save);
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
      return MS_FAIL(MS_ENOMEM, "cannot allocate %zu bytes of host memory for the copy of an asynchronous save", bytes);
    madvise(base, bytes, MADV_HUGEPAGE); /* fewer page faults while training waits; advice only */
    save->copy = base;
  }
  for (int i = 0; i < save->n; i++) {
    const ms_save_piece *p = &save->piece[i];
    MS_TRY(ms_state_read(save->state, p->param, p->what, p->first, p->count, save->copy + save->at[i]));
  }
  return MS_OK;
}

static int read_state(void *context, int piece, int64_t first, int64_t count, float *room, const float **values) {
  const ms_save *save = context;
  const ms_save_piece *p = &save->piece[piece];
  float *at;
  MS_TRY(ms_state_owned(save->state, p->param, p->what, p->first + first, count, &at));
  *values = at ? at : room;
  return at ? MS_OK : ms_state_read(save->state, p->param, p->what, p->first + first, count, room);
}

/* ---- one save ---- */

static void forget_config(ms_save *save) {
  free((void *)save->config.folder);
  free((void *)save->config.target);
  free((void *)save->config.head);
  free((void *)save->config.part_head);
  for (int i = 0; i < save->config.retired && save->retires; i++) free(save->retires[i]);
  free(save->retires);
  free(save->awaits);
  save->retires = NULL;
  save->awaits = NULL;
  save->config = (ms_save_config){0};
}

static int take_awaits(ms_save *save, const ms_save_config *config) {
  save->config.awaits = NULL;
  if (!config->awaits || config->writers < 1) return MS_OK;
  save->awaits = ms_calloc(config->writers, sizeof *save->awaits);
  if (!save->awaits) return MS_ENOMEM;
  memcpy(save->awaits, config->awaits, (size_t)config->writers * sizeof *save->awaits);
  return MS_OK;
}

static int take_config(ms_save *save, const ms_save_config *config) {
  forget_config(save);
  save->config = *config;
  save->config.folder = save->config.target = save->config.head = save->config.part_head = NULL;
  save->config.retires = NULL;
  MS_TRY(copy_text(&save->config.folder, config->folder));
  MS_TRY(copy_text(&save->config.target, config->target));
  MS_TRY(copy_text(&save->config.head, config->head));
  MS_TRY(copy_text(&save->config.part_head, config->part_head));
  MS_TRY(take_awaits(save, config));
  save->retires = ms_calloc(config->retired, sizeof *save->retires);
  if (!save->retires) return MS_ENOMEM;
  for (int i = 0; i < config->retired; i++)
    if (!(save->retires[i] = ms_strdup(config->retires[i]))) return MS_ENOMEM;
  return MS_OK;
}

/* copy NULL: write from the state. */
static int write_part(ms_save *save, const float *copy) {
  const ms_part part = {
      .folder = save->config.folder,
      .head = save->config.part_head,
      .writer = save->config.writer,
      .n = save->n,
      .piece = save->piece,
      .division = save->division,
      .in_words = ms_tensor_in_words,
      .copy = copy,
      .at = save->at,
      .read = read_state,
      .context = save,
      .stop = &save->stop,
      .writes = &save->writes,
  };
  return ms_part_write(&part);
}

static void *run_thread(void *argument) {
  ms_save *save = argument;
  ms_allocations_set_counted(0);
  setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid),
              NICENESS); /* of this thread only; if it fails, the thread competes for cores */
  int rc = write_part(save, save->copy);
  if (!rc) atomic_store(&save->stage, 1 + MS_SAVE_WRITTEN);
  if (!rc && save->config.target) rc = ms_save_commit(save);
  if (rc) ms_error_save(&save->failure);
  else atomic_store(&save->stage, 1 + MS_SAVE_COMMITTED);
  atomic_store(&save->ended, 1);
  return NULL;
}

/* The thread blocks all signals: the recipe's thread handles them. */
static int start_thread(ms_save *save) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = pthread_create(&save->thread, NULL, run_thread, save);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (failed) return MS_FAIL(MS_EIO, "cannot start the thread that writes checkpoints: %s", strerror(failed));
  save->threaded = 1;
  return MS_OK;
}

static int begin(ms_save *save, const ms_save_config *config) {
  if (!config->folder) return MS_FAIL(MS_EINVAL, "ms_save_start: folder is NULL");
  if (config->retired < 0 || (config->retired && !config->retires))
    return MS_FAIL(MS_EINVAL, "ms_save_start: retired is %d, retires %s", config->retired,
                   config->retires ? "set" : "NULL");
  if (config->target && !config->head) return MS_FAIL(MS_EINVAL, "ms_save_start: head is NULL, with a target");
  if (config->writer < 0) return MS_FAIL(MS_EINVAL, "ms_save_start: writer is %d", config->writer);
  if (config->target && config->writers < 1)
    return MS_FAIL(MS_EINVAL, "ms_save_start: writers is %d; it must be 1 or more, as this rank writes",
                   config->writers);
  MS_TRY(take_config(save, config));
  save->failure.code = MS_OK;
  save->deadline = ms_world_timeout(save->state->world);
  atomic_store(&save->stop, 0);
  atomic_store(&save->ended, 0);
  atomic_store(&save->stage, 0);
  if (config->asynchronous) {
    MS_TRY(take_copy(save));
    return start_thread(save);
  }
  MS_TRY(write_part(save, NULL));
  atomic_store(&save->stage, 1 + MS_SAVE_WRITTEN);
  return MS_OK;
}

int ms_save_start(ms_save *save, const ms_save_config *given) {
  MS_HANDLE(save, SAVE);
  MS_TAKE_CONFIG(ms_save_config, own, given);
  const ms_save_config *config = &own;
  MS_TRY(ms_progress_check_masters(save->state, "be saved"));
  if (ms_save_running(save))
    return MS_FAIL(MS_EINVAL, "the save into %s is still being written: wait for it first", save->config.folder);
  ms_save_join(save);
  ms_recorder *recorder = ms_world_recorder(save->state->world);
  ms_recorder_enter(recorder, ms_recorder_number(recorder, "saving a checkpoint"));
  int rc = begin(save, config);
  ms_recorder_leave(recorder, rc);
  return rc;
}

/* ---- the handle ---- */

static void destroy_save(void *object) {
  ms_save *save = object;
  ms_save_cancel(save);
  forget_config(save);
  if (save->copy) munmap(save->copy, (size_t)copy_bytes(save));
  for (int i = 0; i < save->n; i++) {
    free((void *)save->piece[i].name);
    free((void *)save->piece[i].parameter);
    free((void *)save->piece[i].kind);
  }
  free(save->piece);
  free(save->division);
  free(save->at);
}

int ms_save_new(ms_state *state, int n, const ms_save_piece *pieces, int size, ms_save **out) {
  MS_HANDLE(state, STATE);
  MS_GIVEN(out);
  if (n > 0) MS_GIVEN(pieces);
  int rc = MS_OK;
  if (n < 0) return MS_FAIL(MS_EINVAL, "ms_save_new: n is %d; it must be 0 or more", n);
  ms_save *save = ms_handle_new(MS_HANDLE_SAVE, sizeof *save, destroy_save);
  if (!save) return MS_ENOMEM;
  save->state = state;
  ms_handle_set_on(save, state);
  save->piece = ms_calloc(n, sizeof *save->piece);
  save->division = ms_calloc(n, sizeof *save->division);
  save->at = ms_calloc(n + 1, sizeof *save->at);
  if (!save->piece || !save->division || !save->at) MS_GOTO(MS_ENOMEM);
  for (int i = 0; i < n; i++) {
    ms_save_piece piece = {0};
    save->n = i + 1;
    MS_GOTO(ms_info_take(&piece, sizeof piece, (const char *)pieces + (int64_t)i * size, size, __func__));
    MS_GOTO(copy_piece(state, &save->piece[i], &piece));
    save->division[i] = ms_tensor_part(state->model, piece.param, piece.what, state->model->dim[MS_DIM_TENSOR].place);
  }
  MS_GOTO(place_pieces(save));
  *out = save;
  return MS_OK;
fail:
  ms_free(save);
  return rc;
}
