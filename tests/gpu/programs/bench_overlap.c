/* bench_overlap.c - measures what a collective that runs at the same time costs a matrix product on the device cuda,
 * and what it costs if the product leaves multiprocessors to it (--sm-carveout). In place of the collective a kernel of
 * as many thread blocks copies memory (stand_in.cu), on a stream of higher priority, before the product begins and
 * until after it has ended. Shapes are those of GPT-2 124M (32 x 1024 tokens) and Llama 1B (4 x 4096), in bf16.
 *
 *   bench_overlap [TOKENS [BLOCKS...]]     TOKENS: 0 for the above; else so many, and layers of 1/64 of their size, to
 *                                          check that it works. BLOCKS: 16 and 32
 *
 * Prints a JSON line for each product and number of blocks, then a table: the time of the product alone, and, as times
 * of that, on fewer multiprocessors, and while the kernel runs, on all and on fewer; gain: how much faster the last is.
 * Times are medians of 9 runs of 4 products, in us a product. "covered" false: the kernel ended before the products, so
 * that less was measured. Algorithms are chosen as in training. The library of the kernel is next to this program, or
 * named by MOONSHARD_STAND_IN_LIBRARY.
 */
#include "tests/gpu/programs/device_bench.h"

#include <dlfcn.h>
#include <libgen.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/programs/stand_in.h"

enum { PRODUCTS = 4, SAMPLES = 9, TRIES = 4, MAX_ROWS = 64, MAX_TENSORS = 4 };
enum { ALONE, FEWER, OVERLAPPED, OVERLAPPED_FEWER, WAYS }; /* FEWER: on fewer multiprocessors */
static const int64_t COPIED = 256 << 20;                   /* bytes, more than a cache has */
static const double LONGER = 3; /* than the products, as the stand-in's copies alone would take */

typedef struct layer {
  const char *name;
  int64_t tokens, in, out;
  int gradient; /* 1: of the weight, f32 */
} layer;

static const layer layers[] = {{"gpt2 projection", 32768, 768, 768, 0},
                               {"gpt2 up", 32768, 768, 3072, 0},
                               {"gpt2 up, weight gradient", 32768, 768, 3072, 1},
                               {"gpt2 head", 32768, 768, 50304, 0},
                               {"llama projection", 16384, 2048, 2048, 0},
                               {"llama up", 16384, 2048, 8192, 0},
                               {"llama up, weight gradient", 16384, 2048, 8192, 1}};

typedef int stand_in_function(void *to, const void *from, int64_t bytes, int blocks, int rounds, void *stream);

typedef struct overlap {
  const bench *b;
  stand_in_function *stand_in;
  ms_device_stream *urgent;
  ms_device_event *begin, *end; /* of the stand-in */
  void *from, *to;
  int64_t copied;
} overlap;

typedef struct row {
  const char *product;
  int blocks, covered;
  double us[WAYS];
  double copies[2]; /* GB/s that the stand-in reads and writes, next to the product on all and on fewer */
} row;

/* ---- the stand-in ----------------------------------------------------------------------------------------------- */

static int find_stand_in(stand_in_function **function) {
  char self[4096] = {0}, path[4608];
  const char *named = getenv("MOONSHARD_STAND_IN_LIBRARY");
  if (!named && readlink("/proc/self/exe", self, sizeof self - 1) <= 0)
    return MS_FAIL(MS_EIO,
                   "/proc/self/exe cannot be read: set MOONSHARD_STAND_IN_LIBRARY to the path of libstand_in.so");
  snprintf(path, sizeof path, "%s%s", named ? named : dirname(self), named ? "" : "/libstand_in.so");
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *found = library ? dlsym(library, "ms_stand_in") : NULL;
  memcpy(function, &found, sizeof found);
  if (found) return MS_OK;
  return MS_FAIL(MS_EUNSUPPORTED, "%s: build it where nvcc is (make all gpu-bench), or set MOONSHARD_STAND_IN_LIBRARY",
                 dlerror());
}

static int copy(const overlap *o, int blocks, int rounds) {
  const int error = o->stand_in(o->to, o->from, o->copied, blocks, rounds, o->urgent);
  return error ? MS_FAIL(MS_EDEVICE, "the kernel that stands in for a collective cannot run: CUDA's error %d", error)
               : MS_OK;
}

static int wait_for(const overlap *o, ms_device_event *event) {
  int done = 0;
  while (!done) MS_TRY(o->b->api->query(o->b->device, event, &done));
  return MS_OK;
}

/* *rounds: so many copies as take `seconds`. */
static int calibrate(const overlap *o, int blocks, double seconds, int *rounds) {
  const ms_device_api *api = o->b->api;
  double once = 0;
  for (int i = 0; i < 2; i++) { /* the first loads code */
    MS_TRY(api->record(o->b->device, o->begin, o->urgent));
    MS_TRY(copy(o, blocks, 1));
    MS_TRY(api->record(o->b->device, o->end, o->urgent));
    MS_TRY(wait_for(o, o->end));
  }
  MS_TRY(api->elapsed(o->b->device, o->begin, o->end, &once));
  *rounds = once > 0 && seconds < 1000 * once ? 1 + (int)(seconds / once) : 1;
  return MS_OK;
}

/* ---- products --------------------------------------------------------------------------------------------------- */

typedef struct product {
  ms_kernel_call call;
  const ms_kernel *kernel;
  void *data[MAX_TENSORS]; /* a, b, c and the workspace */
  int64_t bytes[MAX_TENSORS];
} product;

static ms_value_info matrix(int dtype, int64_t rows, int64_t columns) {
  return (ms_value_info){.dtype = dtype, .ndim = 2, .dims = {rows, columns}};
}

/* y = x w', or dw = dy' x: x [tokens][in], y [tokens][out], w [out][in]. */
static ms_kernel_call call_of(const layer *l, int spared) {
  const ms_value_info x = matrix(MS_BF16, l->tokens, l->in), y = matrix(MS_BF16, l->tokens, l->out);
  ms_kernel_call call = {.op = MS_OP_matmul, .inputs = 2, .outputs = 1, .threads = 1, .spared = spared};
  call.in[0] = l->gradient ? y : x;
  call.in[1] = l->gradient ? x : matrix(MS_BF16, l->out, l->in);
  call.out[0] = l->gradient ? matrix(MS_F32, l->out, l->in) : y;
  call.attrs.product.trans_a = l->gradient;
  call.attrs.product.trans_b = !l->gradient;
  return call;
}

static void close_product(const bench *b, product *p) {
  for (int i = 0; i < MAX_TENSORS; i++)
    if (p->data[i]) b->api->release(b->device, p->data[i], p->bytes[i], 0);
  if (p->call.prepared) p->kernel->release(p->call.prepared);
}

static int open_product(const bench *b, const layer *l, int spared, product *p) {
  int rc;
  *p = (product){.call = call_of(l, spared), .kernel = b->api->kernel(MS_OP_matmul)};
  ms_kernel_call *call = &p->call;
  MS_TRY(p->kernel->prepare(call));
  for (int i = 0; i < 3; i++) p->bytes[i] = bytes_of(i < 2 ? &call->in[i] : &call->out[0]);
  p->bytes[3] = call->workspace_bytes + 1;
  for (int i = 0; i < MAX_TENSORS; i++) {
    MS_GOTO(b->api->allocate(b->device, p->bytes[i], 0, "a tensor", &p->data[i]));
    if (i < 2) MS_GOTO(fill(b, p->data[i], p->bytes[i]));
  }
  for (int i = 0; i < 2; i++) call->in_data[i] = p->data[i];
  call->out_data[0] = p->data[2];
  call->workspace = p->data[3];
  call->stream = b->stream;
  if (p->kernel->bind) MS_GOTO(p->kernel->bind(call));
  return MS_OK;
fail:
  close_product(b, p);
  return rc;
}

/* ---- measurements ----------------------------------------------------------------------------------------------- */

/* One product that is not timed, during which the stand-in begins, and then those that are: *seconds of one. */
static int time_products(const overlap *o, const product *p, double *seconds) {
  const bench *b = o->b;
  MS_TRY(p->kernel->run(&p->call));
  MS_TRY(b->api->record(b->device, b->begin, b->stream));
  for (int i = 0; i < PRODUCTS; i++) MS_TRY(p->kernel->run(&p->call));
  MS_TRY(b->api->record(b->device, b->end, b->stream));
  MS_TRY(wait_for(o, b->end));
  MS_TRY(b->api->elapsed(b->device, b->begin, b->end, seconds));
  *seconds /= PRODUCTS;
  return MS_OK;
}

static double median(double *seconds) {
  qsort(seconds, SAMPLES, sizeof *seconds, compare_times);
  return seconds[SAMPLES / 2];
}

static int time_alone(const overlap *o, const product *p, double *us) {
  double seconds[SAMPLES + 1];
  for (int i = 0; i <= SAMPLES; i++) MS_TRY(time_products(o, p, &seconds[i]));
  *us = 1e6 * median(seconds + 1);
  return MS_OK;
}

/* *covered 0: the stand-in ended before the products. */
static int time_once_overlapped(const overlap *o, const product *p, int blocks, int rounds, double *seconds,
                                double *copying, int *covered) {
  const ms_device_api *api = o->b->api;
  double after = 0;
  MS_TRY(api->record(o->b->device, o->begin, o->urgent));
  MS_TRY(copy(o, blocks, rounds));
  MS_TRY(api->record(o->b->device, o->end, o->urgent));
  MS_TRY(time_products(o, p, seconds));
  MS_TRY(wait_for(o, o->end));
  MS_TRY(api->elapsed(o->b->device, o->begin, o->end, copying));
  MS_TRY(api->elapsed(o->b->device, o->b->end, o->end, &after));
  *covered = after > 0;
  return MS_OK;
}

/* All samples, or those up to one that is not covered if that is to be tried again. The first is not counted. */
static int sample_overlapped(const overlap *o, const product *p, int blocks, int rounds, int again, double *seconds,
                             double *copying, int *covered) {
  *covered = 1;
  for (int i = 0; i <= SAMPLES && (*covered || !again); i++) {
    int whole;
    MS_TRY(time_once_overlapped(o, p, blocks, rounds, &seconds[i], &copying[i], &whole));
    *covered &= whole;
  }
  return MS_OK;
}

/* With as many copies as cover the products. */
static int time_overlapped(const overlap *o, const product *p, int blocks, int rounds, double *us, double *gbs,
                           int *covered) {
  double seconds[SAMPLES + 1], copying[SAMPLES + 1];
  for (int tries = 1;; tries++, rounds *= 2) {
    MS_TRY(sample_overlapped(o, p, blocks, rounds, tries < TRIES, seconds, copying, covered));
    if (*covered || tries == TRIES) break;
  }
  const double each = median(copying + 1);
  *us = 1e6 * median(seconds + 1);
  *gbs = each > 0 ? 2e-9 * (double)rounds * (double)o->copied / each : 0;
  return MS_OK;
}

static int measure_pair(const overlap *o, const product *all, const product *fewer, row *r) {
  int rounds = 1, covered[2] = {1, 1};
  MS_TRY(time_alone(o, all, &r->us[ALONE]));
  MS_TRY(time_alone(o, fewer, &r->us[FEWER]));
  MS_TRY(calibrate(o, r->blocks, LONGER * 1e-6 * (PRODUCTS + 1) * r->us[FEWER], &rounds));
  MS_TRY(time_overlapped(o, all, r->blocks, rounds, &r->us[OVERLAPPED], &r->copies[0], &covered[0]));
  MS_TRY(time_overlapped(o, fewer, r->blocks, rounds, &r->us[OVERLAPPED_FEWER], &r->copies[1], &covered[1]));
  r->covered = covered[0] && covered[1];
  return MS_OK;
}

static int measure(const overlap *o, const layer *l, int blocks, row *r) {
  product all, fewer;
  *r = (row){.product = l->name, .blocks = blocks};
  MS_TRY(open_product(o->b, l, 0, &all));
  int rc = open_product(o->b, l, blocks, &fewer);
  if (!rc) {
    rc = measure_pair(o, &all, &fewer, r);
    close_product(o->b, &fewer);
  }
  close_product(o->b, &all);
  return rc;
}

static void print_line(const row *r) {
  printf("{\"product\":\"%s\",\"blocks\":%d,\"alone_us\":%.2f,\"alone_fewer_us\":%.2f,\"overlapped_us\":%.2f,"
         "\"overlapped_fewer_us\":%.2f,\"copied_gbs\":%.1f,\"copied_fewer_gbs\":%.1f,\"covered\":%s}\n",
         r->product, r->blocks, r->us[ALONE], r->us[FEWER], r->us[OVERLAPPED], r->us[OVERLAPPED_FEWER], r->copies[0],
         r->copies[1], r->covered ? "true" : "false");
  fflush(stdout);
}

static void print_table(const row *r, int rows) {
  printf("\n%-28s %6s %10s %8s %12s %8s %8s\n", "us", "blocks", "alone", "fewer", "overlapped", "fewer", "gain");
  for (int i = 0; i < rows; i++, r++)
    printf("%-28s %6d %10.2f %7.2fx %11.2fx %7.2fx %7.2fx%s\n", r->product, r->blocks, r->us[ALONE],
           r->us[FEWER] / r->us[ALONE], r->us[OVERLAPPED] / r->us[ALONE], r->us[OVERLAPPED_FEWER] / r->us[ALONE],
           r->us[OVERLAPPED] / r->us[OVERLAPPED_FEWER], r->covered ? "" : "  not covered");
}

static int open_overlap(overlap *o, const bench *b, int64_t tokens) {
  *o = (overlap){.b = b, .copied = tokens ? 1 << 16 : COPIED};
  MS_TRY(find_stand_in(&o->stand_in));
  MS_TRY(b->api->stream_open(b->device, 1, &o->urgent));
  MS_TRY(b->api->event_open(b->device, 1, &o->begin));
  MS_TRY(b->api->event_open(b->device, 1, &o->end));
  MS_TRY(b->api->allocate(b->device, o->copied, 0, "what is copied", &o->from));
  MS_TRY(b->api->allocate(b->device, o->copied, 0, "a copy", &o->to));
  return fill(b, o->from, o->copied);
}

static int check_blocks(int sizes, const int *blocks) {
  for (int s = 0; s < sizes; s++)
    if (blocks[s] < 1) return MS_FAIL(MS_EINVAL, "%d blocks: a collective has at least one", blocks[s]);
  return MS_OK;
}

static int measure_all(const overlap *o, int64_t tokens, int sizes, const int *blocks) {
  static row rows[MAX_ROWS];
  int n = 0;
  for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
    for (int s = 0; s < sizes && n < MAX_ROWS; s++, n++) {
      layer l = layers[i];
      if (tokens) l.tokens = tokens, l.in /= 64, l.out /= 64;
      MS_TRY(measure(o, &l, blocks[s], &rows[n]));
      print_line(&rows[n]);
    }
  print_table(rows, n);
  return MS_OK;
}

int main(int argc, char **argv) {
  enum { MAX_SIZES = 8 };
  int blocks[MAX_SIZES] = {16, 32}, sizes = argc > 2 ? 0 : 2;
  for (int i = 2; i < argc && sizes < MAX_SIZES; i++) blocks[sizes++] = atoi(argv[i]);
  const int64_t tokens = argc > 1 ? atoll(argv[1]) : 0;
  bench b = {0};
  overlap o;
  int rc = check_blocks(sizes, blocks);
  if (!rc) rc = open_bench(&b);
  if (!rc) rc = open_overlap(&o, &b, tokens);
  if (!rc) rc = measure_all(&o, tokens, sizes, blocks);
  return end_bench("bench_overlap", rc);
}
