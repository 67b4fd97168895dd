/* tokenize.c - converts text files to one token file, with several threads.
 *
 * A file is split into stretches at lines that begin with something other than a blank, which no piece of the usual
 * patterns crosses; a tokenizer whose pieces may is given the whole file. Threads tokenize several stretches at a time,
 * which are then written in order. Each thread reports the end of its stretch's last piece; if that is not the start of
 * the next stretch, the next one is tokenized again from there. The result is therefore the tokens of the whole file,
 * for any pattern and any number of threads. A file of several documents is split at the ends of documents, each of
 * which one thread tokenizes for itself.
 */
#include "base/config.h"
#include "base/machine/cores.h"
#include "base/error.h"
#include "io/file_read.h"
#include "io/safetensors/safetensors.h"
#include "io/tokens/token_file.h"
#include "io/tokenizer/tokenizer.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { STRETCH = 1 << 20, LOOKED_AHEAD = 1 << 16, STRETCHES_A_THREAD = 4, MAX_THREADS = 256, MESSAGE_BYTES = 512 };
enum { DOCUMENT_END = 0xff }; /* no byte of UTF-8 */

typedef struct stretch {
  int64_t begin, end, stop;
  ms_id_list ids;
  int rc;
  char message[MESSAGE_BYTES];
} stretch;

typedef struct work {
  const ms_tokenizer *tokenizer;
  const ms_tokenize_config *config;
  const char *path;
  ms_span text;
  stretch *stretch; /* [threads * STRETCHES_A_THREAD] */
  int stretches;    /* in the current round */
  atomic_int next;
  int threads;
  ms_encoder **encoder; /* [threads] */
  ms_token_writer *writer;
  int64_t bytes, tokens; /* read and written */
  int width;             /* bytes of a token */
} work;

/* ---- one round: stretches by all threads ---- */

/* Where the document ends that begins at `begin`: its end mark, or the end of the text. */
static int64_t document_end(ms_span text, int64_t begin) {
  const uint8_t *end = memchr(text.at + begin, DOCUMENT_END, (size_t)(text.bytes - begin));
  return end ? end - text.at : text.bytes;
}

static int add_one(ms_id_list *ids, int id) { return id < 0 ? MS_OK : ms_id_add(ids, id); }

/* The tokens of a stretch of whole documents. */
static int encode_documents(const work *w, ms_encoder *encoder, stretch *s) {
  s->ids.count = 0;
  s->stop = s->end;
  for (int64_t at = s->begin, end, stop; at < s->end; at = end + 1) {
    end = document_end(w->text, at);
    const ms_span document = {w->text.at + at, end - at};
    const int64_t valid = ms_utf8_invalid(document);
    if (valid < document.bytes)
      return MS_FAIL(MS_EINVAL, "byte %lld, 0x%02x, is not UTF-8: correct the file", (long long)(at + valid),
                     document.at[valid]);
    MS_TRY(add_one(&s->ids, w->config->begin));
    MS_TRY(ms_encoder_run(encoder, document, 0, document.bytes, &s->ids, &stop));
    MS_TRY(add_one(&s->ids, w->config->end));
  }
  return MS_OK;
}

/* The tokens of a stretch; pieces can extend up to `more` bytes past its end. */
static int encode_stretch(const work *w, ms_encoder *encoder, stretch *s, int64_t more) {
  const int64_t rest = w->text.bytes - s->begin, wanted = s->end - s->begin + more;
  const ms_span part = {w->text.at + s->begin, rest < wanted ? rest : wanted};
  const int64_t valid = s->begin + ms_utf8_invalid(part);
  if (valid < s->end)
    return MS_FAIL(MS_EINVAL,
                   "byte %lld, 0x%02x, is not UTF-8: correct the file, or replace such bytes with U+FFFD "
                   "(--replace-invalid)",
                   (long long)valid, w->text.at[valid]);
  s->ids.count = 0;
  return ms_encoder_run(encoder, (ms_span){w->text.at, valid}, s->begin, s->end, &s->ids, &s->stop);
}

/* The file's status is that of the first failed stretch whose tokens are needed. */
static void run_stretch(const work *w, ms_encoder *encoder, stretch *s) {
  ms_error_record before;
  ms_error_save(&before);
  s->rc = w->config->documents ? encode_documents(w, encoder, s) : encode_stretch(w, encoder, s, LOOKED_AHEAD);
  if (!s->rc && s->stop != s->end) s->rc = encode_stretch(w, encoder, s, w->text.bytes);
  if (s->rc) strncpy(s->message, ms_error_message(), MESSAGE_BYTES - 1);
  ms_error_restore(&before);
}

typedef struct worker {
  work *work;
  ms_encoder *encoder;
} worker;

static void *run_worker(void *context) {
  worker *of = context;
  work *w = of->work;
  for (int i; (i = atomic_fetch_add(&w->next, 1)) < w->stretches;) run_stretch(w, of->encoder, &w->stretch[i]);
  return NULL;
}

static int run_round(work *w) {
  pthread_t thread[MAX_THREADS];
  worker workers[MAX_THREADS];
  sigset_t all, before;
  int started = 0, failed = 0;
  atomic_store(&w->next, 0);
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before); /* signals are for the thread that runs the program */
  for (int i = 0; i < w->threads; i++) workers[i] = (worker){w, w->encoder[i]};
  while (started < w->threads - 1 && started < w->stretches - 1 && !failed)
    if (!(failed = pthread_create(&thread[started], NULL, run_worker, &workers[started + 1]))) started++;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  run_worker(&workers[0]);
  for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
  return failed ? MS_FAIL(MS_EIO, "starting a thread: %s", strerror(failed)) : MS_OK;
}

/* ---- one file ---- */

static int is_blank(uint8_t byte) { return byte <= ' ' || byte >= 0x80; } /* what may be one */

/* Where a stretch that begins at `begin` can end. */
static int64_t cut_after_document(ms_span text, int64_t begin) {
  int64_t end = begin;
  while (end < text.bytes && end - begin < STRETCH) {
    end = document_end(text, end);
    if (end < text.bytes) end++;
  }
  return end;
}

static int64_t cut_after_line(const ms_tokenizer *tokenizer, ms_span text, int64_t begin) {
  for (int64_t at = tokenizer->by_lines ? begin + STRETCH : text.bytes; at < text.bytes; at++) {
    const uint8_t *newline = memchr(text.at + at, '\n', (size_t)(text.bytes - at));
    if (!newline) return text.bytes;
    at = newline - text.at;
    if (at + 1 < text.bytes && !is_blank(text.at[at + 1])) return at + 1;
  }
  return text.bytes;
}

static int write_round(work *w, int64_t *at) {
  for (int i = 0; i < w->stretches; i++) {
    stretch *s = &w->stretch[i];
    if (*at >= s->end) continue; /* pieces of the previous stretch extend past this one */
    if (*at != s->begin) {
      s->begin = *at;
      run_stretch(w, w->encoder[0], s);
    }
    if (s->rc) return MS_FAIL(s->rc, "%s: %s", w->path, s->message);
    *at = s->stop;
    MS_TRY(ms_token_writer_put(w->writer, s->ids.id, s->ids.count));
    w->tokens += s->ids.count;
  }
  return MS_OK;
}

static int tokenize_text(work *w) {
  int64_t at = 0, begin = 0;
  while (begin < w->text.bytes) {
    if (ms_interrupted()) return MS_FAIL(MS_EINTERRUPT, "interrupted");
    for (w->stretches = 0; w->stretches < w->threads * STRETCHES_A_THREAD && begin < w->text.bytes; w->stretches++) {
      stretch *s = &w->stretch[w->stretches];
      s->begin = begin;
      s->end = begin =
          w->config->documents ? cut_after_document(w->text, begin) : cut_after_line(w->tokenizer, w->text, begin);
    }
    MS_TRY(run_round(w));
    MS_TRY(write_round(w, &at));
  }
  return MS_OK;
}

static int put_one(work *w, int id) {
  if (id < 0) return MS_OK;
  w->tokens++;
  return ms_token_writer_put(w->writer, &id, 1);
}

static int tokenize_mapped(work *w) {
  const ms_tokenize_config *config = w->config;
  uint8_t *clean = NULL;
  if (config->documents) return tokenize_text(w);
  if (config->replace && ms_utf8_invalid(w->text) < w->text.bytes) {
    MS_TRY(ms_utf8_replace(w->text, &clean, &w->text.bytes));
    w->text.at = clean;
  }
  int rc = put_one(w, config->begin);
  if (!rc) rc = tokenize_text(w);
  if (!rc) rc = put_one(w, config->end);
  free(clean);
  return rc;
}

static int tokenize_file(work *w) {
  int fd, rc;
  int64_t bytes;
  MS_TRY(ms_file_open_regular(w->path, &fd, &bytes));
  void *map = bytes ? mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
  rc = map == MAP_FAILED ? MS_FAIL(MS_EIO, "%s: mapping %lld bytes: %s", w->path, (long long)bytes, strerror(errno))
                         : MS_OK;
  close(fd);
  MS_TRY(rc);
  w->text = (ms_span){map, bytes};
  w->bytes += bytes;
  rc = tokenize_mapped(w);
  if (map) munmap(map, (size_t)bytes);
  return rc;
}

/* ---- the public calls ---- */

static int all_cores(void) {
  ms_cores *cores = ms_calloc(1, sizeof *cores);
  if (!cores) return 1;
  ms_cores_read("", cores);
  const int usable = ms_cores_usable(cores);
  free(cores);
  return usable < MAX_THREADS ? usable : MAX_THREADS;
}

static int check_config(const ms_tokenizer *t, const ms_tokenize_config *config) {
  if (config->threads < 0 || config->threads > MAX_THREADS)
    return MS_FAIL(MS_EINVAL, "%d threads: it must be 1 to %d, or 0 for all cores", config->threads, MAX_THREADS);
  if (config->documents && config->replace)
    return MS_FAIL(MS_EINVAL,
                   "ms_tokenize_config: replace is not for files of several documents, whose end marks are no "
                   "UTF-8: replace what is wrong before they are joined");
  if (config->begin >= t->vocab || config->end >= t->vocab)
    return MS_FAIL(MS_EINVAL, "tokens %d and %d around a text: ids are below %d", config->begin, config->end, t->vocab);
  return MS_OK;
}

static int prepare(work *w, const char *out) {
  w->stretch = ms_calloc(w->threads * STRETCHES_A_THREAD, sizeof *w->stretch);
  w->encoder = ms_calloc(w->threads, sizeof *w->encoder);
  if (!w->stretch || !w->encoder) return MS_ENOMEM;
  for (int i = 0; i < w->threads; i++) MS_TRY(ms_encoder_new(w->tokenizer, &w->encoder[i]));
  return ms_token_writer_new(out, w->width, &w->writer);
}

static void release(work *w) {
  for (int i = 0; w->stretch && i < w->threads * STRETCHES_A_THREAD; i++) free(w->stretch[i].ids.id);
  for (int i = 0; w->encoder && i < w->threads; i++) ms_encoder_free(w->encoder[i]);
  free(w->stretch);
  free(w->encoder);
  ms_token_writer_abort(w->writer);
}

int ms_tokenize_files(const ms_tokenizer *tokenizer, int files, const char *const *paths, const char *out,
                      const ms_tokenize_config *given, int64_t *bytes, int64_t *tokens, int *width) {
  MS_HANDLE(tokenizer, TOKENIZER);
  MS_GIVEN(paths);
  MS_GIVEN(out);
  MS_NOT_NEGATIVE(files);
  ms_tokenize_config own;
  const ms_tokenize_config *config = &own;
  int rc;
  MS_TRY(ms_config_default("ms_tokenize_config", &own, sizeof own));
  if (given) MS_TRY(ms_config_take(&own, sizeof own, given, "ms_tokenize_config"));
  MS_TRY(check_config(tokenizer, config));
  for (int i = 0; i < files; i++) MS_GIVEN(paths[i]);
  work w = {.tokenizer = tokenizer,
            .config = config,
            .threads = config->threads ? config->threads : all_cores(),
            .width = tokenizer->vocab <= 1 << 16 ? 2 : 4};
  MS_GOTO(prepare(&w, out));
  for (int i = 0; i < files; i++) {
    w.path = paths[i];
    MS_GOTO(tokenize_file(&w));
  }
  rc = ms_token_writer_finish(w.writer);
  w.writer = NULL;
  if (bytes) *bytes = w.bytes;
  if (tokens) *tokens = w.tokens;
  if (width) *width = w.width;
fail:
  release(&w);
  return rc;
}
