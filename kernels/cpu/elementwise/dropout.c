/* dropout.c - y = x mask / (1 - p), x and y [n]. An element is kept if its uniform random number is at least p. Philox
 * computes that number from (step seed, stream, position in the global batch), so backward, the same kernel applied to
 * dy, draws the same mask again, and no mask is stored. */
#include "kernels/cpu/block.h"

#include "base/numbers/philox.h"
#include "kernels/cpu/elementwise/draw.h"
#include "kernels/cpu/parallel.h"
#include "kernels/batch_place.h"

/* For shorter runs, drawing a whole block costs more than drawing four words at a time. */
enum { FEW = 64 };

typedef struct mask {
  uint64_t seed, stream;
  ms_draw_fn *draw;
  ms_batch_place place;
} mask;

/* The words of keys [key, key + n), n <= FEW. */
static void draw_few(const mask *m, uint64_t key, int64_t n, uint32_t *words) {
  uint32_t four[4];
  for (int64_t i = 0; i < n; i++) {
    const uint64_t at = (key + (uint64_t)i) % 4;
    if (i == 0 || at == 0) ms_philox4x32(m->seed, m->stream, (key + (uint64_t)i) / 4, four);
    words[i] = four[at];
  }
}

/* The words of elements [first, first + n), n <= MS_BLOCK; words has room for MS_BLOCK. */
static void draw_words(const mask *m, int64_t first, int64_t n, uint32_t *words) {
  uint32_t block[MS_BLOCK] __attribute__((aligned(64)));
  for (int64_t done = 0; done < n;) {
    const uint64_t key = ms_batch_place_key(&m->place, first + done);
    const int64_t at = (int64_t)(key % 4), run = ms_batch_place_run(&m->place, first + done);
    int64_t piece = run < n - done ? run : n - done;
    if (piece == n && at == 0) {
      m->draw(m->seed, m->stream, key / 4, words);
    } else if (piece <= FEW) {
      draw_few(m, key, piece, words + done);
    } else {
      if (piece > MS_BLOCK - at) piece = MS_BLOCK - at;
      m->draw(m->seed, m->stream, key / 4, block);
      memcpy(words + done, block + at, (size_t)piece * sizeof *words);
    }
    done += piece;
  }
}

/* y = x scale where the word is at least limit, else 0; all [n] */
MS_INLINE void mask_block(const float *x, const uint32_t *words, uint32_t limit, float scale, float *y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = words[i] < limit ? 0.0f : x[i] * scale;
}

MS_CLONES static void dropout_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const float p = (float)call->attrs.mask.p, scale = (float)(1.0 / (1.0 - call->attrs.mask.p));
  const uint32_t limit = (uint32_t)__builtin_ceilf(p * 16777216.0f) << 8;
  const mask m = {call->scalars->seed, (uint64_t)call->attrs.mask.stream, ms_pick_draw(),
                  ms_batch_place_at(ms_batch_place_of(&call->attrs, ms_numel(&call->out[0])), &call->scalars->rows)};
  MS_BLOCK_BUFFER(x_buffer);
  MS_BLOCK_BUFFER(y_buffer);
  uint32_t words[MS_BLOCK] __attribute__((aligned(64)));
  for (int64_t first = begin; first < end; first += MS_BLOCK) {
    int64_t n = ms_block_length(first, end);
    const float *x = ms_block_in(call->in_data[0], call->in[0].dtype, first, n, x_buffer);
    float *y = ms_block_out(call->out_data[0], call->out[0].dtype, first, y_buffer);
    draw_words(&m, first, n, words);
    mask_block(x, words, limit, scale, y, n);
    ms_block_done(call->out_data[0], call->out[0].dtype, first, n, y_buffer);
  }
}

static int run(const ms_kernel_call *call) { return ms_run_elements(call, ms_numel(&call->out[0]), dropout_part); }

const ms_kernel ms_cpu_dropout = {.run = run, .in_place = MS_OVER(0, 0)};
