/* cublaslt_choice.c - chooses the algorithm of a product: the one stored on disk for this product, GPU and version;
 * otherwise the fastest of the library's candidates on tensors of the same sizes, which is then stored; otherwise the
 * library's first candidate.
 *
 * Timing stands for training: tensors hold random numbers, on which a GPU draws more power than on equal ones, and
 * repeated runs take turns on copies of the tensors that exceed the cache, which in training holds other tensors.
 *
 * Two runs can measure different winners, and different algorithms give different bits. Candidates are therefore timed
 * only if the winner can be stored: later runs and other ranks of the host read it from disk. A candidate must beat the
 * best earlier one by at least 3 %.
 */
#include "kernels/cuda/matmul/cublaslt_product.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/error.h"
#include "base/numbers/dtype.h"
#include "base/numbers/number.h"
#include "kernels/cuda/matmul/cublaslt_cache.h"

enum { CANDIDATES = 8, ROUNDS = 3, MAX_REPEATS = 50, MAX_COPIES = 16, PATTERN_WORDS = 1 << 16 };
static const double CLEARLY = 0.97, ROUND_MS = 2.0;
static const int64_t BEYOND_CACHE = 128 << 20; /* bytes; the largest GPUs have 50 to 126 MB of second-level cache */

static int check_cuda(cudaError_t error, const char *doing) {
  if (error == cudaSuccess) return MS_OK;
  (void)cudaGetLastError();
  return MS_FAIL(error == cudaErrorMemoryAllocation ? MS_ENOMEM : MS_EDEVICE, "%s: %s (%s)", doing,
                 cudaGetErrorString(error), cudaGetErrorName(error));
}

static void append(ms_lt_key *key, const char *format, ...) {
  const size_t used = strlen(key->text);
  va_list args;
  va_start(args, format);
  ms_format_list(key->text + used, sizeof key->text - used, format, args);
  va_end(args);
}

static int write_key(const ms_lt_product *p, ms_lt_key *key) {
  const ms_lt_problem *of = &p->problem;
  const ms_product *c = &of->product;
  int device = 0;
  struct cudaDeviceProp gpu;
  MS_TRY(check_cuda(cudaGetDevice(&device), "cudaGetDevice"));
  MS_TRY(check_cuda(cudaGetDeviceProperties(&gpu, device), "cudaGetDeviceProperties"));
  snprintf(key->text, sizeof key->text,
           "cublaslt %zu gpu \"%s\" %d.%d %d batch %" PRId64 " m %" PRId64 " n %" PRId64 " k %" PRId64
           " transposed %d%d shared %d types %s %s epilogue %d accumulate %d tf32 %d joins %u alignment %d workspace "
           "%" PRId64,
           p->lt->get_version(), gpu.name, gpu.major, gpu.minor, gpu.multiProcessorCount, c->batch, c->m, c->n, c->k,
           c->trans_a, c->trans_b, c->shared_b, ms_dtype_name(c->dtype), ms_dtype_name(c->c_dtype), of->epilogue,
           of->accumulate, of->tf32, ms_lt_joins(of), of->alignment, of->workspace_bytes);
  if (of->processors) append(key, " processors %d", of->processors);
  if (ms_dtype_size(c->dtype) > 1) return MS_OK;
  append(key, " b %s scaling %d fast sums %d", ms_dtype_name(of->b_dtype), of->scaling, of->fast_sums);
  return MS_OK;
}

/* ---- timing ---- */

/* Memory, a stream and events for timing candidates. */
typedef struct bench {
  char *memory;
  cudaStream_t stream;
  cudaEvent_t begin, end;
  int copies, next;              /* next: the copy whose turn it is */
  ms_lt_operands on[MAX_COPIES]; /* of which all have one workspace */
} bench;

static int64_t align_up(int64_t bytes) { return (bytes + 255) / 256 * 256; }

/* Fills device memory with finite numbers of any dtype of at most about 2: random signs, mantissas and lowest bits of
 * exponents. */
static int fill(char *memory, int64_t bytes) {
  uint32_t *pattern = ms_calloc(PATTERN_WORDS, sizeof *pattern), word = 1;
  if (!pattern) return MS_ENOMEM;
  for (int i = 0; i < PATTERN_WORDS; i++) {
    word = word * 1664525u + 1013904223u;
    pattern[i] = 0x3c003c00u | ((word ^ word >> 15) & 0x83bf83bfu);
  }
  int64_t done = (int64_t)sizeof *pattern * PATTERN_WORDS;
  if (done > bytes) done = bytes;
  int rc = check_cuda(cudaMemcpy(memory, pattern, (size_t)done, cudaMemcpyHostToDevice), "cudaMemcpy");
  for (; !rc && done < bytes; done *= 2) {
    const int64_t more = done < bytes - done ? done : bytes - done;
    rc = check_cuda(cudaMemcpy(memory + done, memory, (size_t)more, cudaMemcpyDeviceToDevice), "cudaMemcpy");
  }
  free(pattern);
  return rc;
}

static int copies_of(int64_t bytes) {
  const int64_t copies = (BEYOND_CACHE + bytes - 1) / bytes;
  return (int)(copies < MAX_COPIES ? copies : MAX_COPIES);
}

/* Of f32 a row, or of e8m0 for each 32 elements, in tiles of 128 rows and 4 blocks. */
static int64_t factor_bytes(int64_t rows, int64_t k) { return rows * 4 + (rows + 127) * (k / 32 + 3); }

/* Allocates the copies of the tensors and the workspace in one block, all tensors misaligned if the product's are. Sets
 * *room to 0 if there is not enough memory. */
static int open_bench(const ms_lt_problem *of, bench *b, int *room) {
  const ms_product *c = &of->product;
  const int64_t in = ms_dtype_size(c->dtype), out = ms_dtype_size(c->c_dtype), widest = 4;
  const int64_t shift = of->alignment ? 0 : widest;
  const int64_t bytes[] = {align_up(c->batch * c->m * c->k * in + shift),
                           align_up((c->shared_b ? 1 : c->batch) * c->k * c->n * in + shift),
                           align_up(c->batch * c->m * c->n * out + shift),
                           align_up(c->n * widest + shift),
                           align_up(c->batch * c->m * c->n * out + shift),
                           align_up(factor_bytes(c->m, c->k)),
                           align_up(factor_bytes(c->n, c->k))};
  enum { TENSORS = sizeof bytes / sizeof *bytes };
  int64_t at[TENSORS + 1] = {0};
  for (int i = 0; i < TENSORS; i++) at[i + 1] = at[i] + bytes[i];
  b->copies = copies_of(at[TENSORS]);
  const int64_t all = b->copies * at[TENSORS];
  const cudaError_t error = cudaMalloc((void **)&b->memory, (size_t)(all + of->workspace_bytes));
  *room = error == cudaSuccess;
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return MS_OK;
  }
  MS_TRY(check_cuda(error, "cudaMalloc"));
  MS_TRY(fill(b->memory, all));
  for (int i = 0; i < b->copies; i++) {
    char *copy = b->memory + i * at[TENSORS];
    b->on[i] = (ms_lt_operands){.a = copy + shift,
                                .b = copy + at[1] + shift,
                                .c = copy + at[2] + shift,
                                .d = copy + at[2] + shift,
                                .bias = copy + at[3] + shift,
                                .aux = copy + at[4] + shift,
                                .a_factor = copy + at[5],
                                .b_factor = copy + at[6],
                                .workspace = b->memory + all};
  }
  MS_TRY(check_cuda(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
  MS_TRY(check_cuda(cudaEventCreateWithFlags(&b->begin, cudaEventDefault), "cudaEventCreateWithFlags"));
  MS_TRY(check_cuda(cudaEventCreateWithFlags(&b->end, cudaEventDefault), "cudaEventCreateWithFlags"));
  return check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

static void close_bench(bench *b) {
  if (b->end) (void)cudaEventDestroy(b->end);
  if (b->begin) (void)cudaEventDestroy(b->begin);
  if (b->stream) (void)cudaStreamDestroy(b->stream);
  if (b->memory) (void)cudaFree(b->memory);
}

/* Sets *ms to the milliseconds that `runs` runs take in total. */
static int time_runs(const ms_lt_product *p, const ms_lt_algo *algo, bench *b, int runs, double *ms) {
  float elapsed = 0;
  MS_TRY(check_cuda(cudaEventRecord(b->begin, b->stream), "cudaEventRecord"));
  for (int i = 0; i < runs; i++, b->next = (b->next + 1) % b->copies)
    MS_TRY(ms_lt_run(p, algo, &b->on[b->next], b->stream));
  MS_TRY(check_cuda(cudaEventRecord(b->end, b->stream), "cudaEventRecord"));
  MS_TRY(check_cuda(cudaEventSynchronize(b->end), "cudaEventSynchronize"));
  MS_TRY(check_cuda(cudaEventElapsedTime(&elapsed, b->begin, b->end), "cudaEventElapsedTime"));
  *ms = (double)elapsed;
  return MS_OK;
}

/* Sets *ms to the fastest milliseconds per run. A round has as many runs as fit in about ROUND_MS; the first run, which
 * loads code, is not counted. */
static int time_candidate(const ms_lt_product *p, const ms_lt_algo *algo, bench *b, double *ms) {
  double once, round;
  MS_TRY(time_runs(p, algo, b, 1, &once));
  MS_TRY(time_runs(p, algo, b, 1, &once));
  int runs = MAX_REPEATS;
  if (once * runs > ROUND_MS) runs = once >= ROUND_MS ? 1 : (int)(ROUND_MS / once);
  *ms = once;
  for (int i = 0; i < ROUNDS; i++) {
    MS_TRY(time_runs(p, algo, b, runs, &round));
    if (round / runs < *ms) *ms = round / runs;
  }
  return MS_OK;
}

static int time_candidates(const ms_lt_product *p, bench *b, int count, const ms_lt_result *result, int *best) {
  double least = 0, ms;
  *best = 0;
  for (int i = 0; i < count; i++) {
    MS_TRY(time_candidate(p, &result[i].algo, b, &ms));
    if (i && ms >= CLEARLY * least) continue;
    least = ms;
    *best = i;
  }
  return MS_OK;
}

/* ---- the choice ---- */

/* Uses the fastest candidate if it can be stored, otherwise the library's first. */
static int choose_fastest(ms_lt_product *p, const ms_lt_key *key, int count, const ms_lt_result *result) {
  ms_lt_draft draft;
  bench b = {0};
  int best = 0, room = 0;
  p->algo = result[0].algo;
  if (!ms_lt_draft_open(key, &draft)) return MS_OK;
  int rc = open_bench(&p->problem, &b, &room);
  if (!rc && room) rc = time_candidates(p, &b, count, result, &best);
  close_bench(&b);
  ms_lt_algo chosen = result[best].algo;
  if (rc || !room) ms_lt_discard(&draft);
  else if (ms_lt_keep(key, &draft, &chosen) && ms_lt_usable(p, &chosen)) p->algo = chosen;
  return rc;
}

static int choose(ms_lt_product *p, int *found) {
  ms_lt_result result[CANDIDATES];
  ms_lt_key key;
  int tune, count;
  *found = 1;
  MS_TRY(ms_env_int("MOONSHARD_CUDA_MATMUL_TUNE", 1, 0, 1, &tune));
  if (tune) {
    MS_TRY(write_key(p, &key));
    if (ms_lt_recall(&key, &p->algo) && ms_lt_usable(p, &p->algo)) return MS_OK;
  }
  MS_TRY(ms_lt_candidates(p, CANDIDATES, result, &count));
  *found = count > 0;
  if (!count) return MS_OK;
  p->algo = result[0].algo;
  return tune && count > 1 ? choose_fastest(p, &key, count, result) : MS_OK;
}

int ms_lt_choose(ms_lt_product *p, int *found) {
  const int processors = p->problem.processors;
  MS_TRY(choose(p, found));
  if (*found || !processors) return MS_OK;
  MS_TRY(ms_lt_use_all(p));
  MS_TRY(choose(p, found));
  if (*found)
    ms_note("cuBLASLt %zu has no algorithm for some products on %d multiprocessors: they use all of them, also while a "
            "collective runs",
            p->lt->get_version(), processors);
  return MS_OK;
}
