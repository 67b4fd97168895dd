/* hosts_operation.h - one collective between hosts, for test_hosts.c: the tensors of a rank, what the operation gives
 * in the documented order, and the bytes that it sends and receives.
 */
#ifndef MS_TESTS_HOSTS_OPERATION_H
#define MS_TESTS_HOSTS_OPERATION_H

#include "tests/c/support/check.h"
#include "tests/c/support/ranks/fake_hosts.h"

#include <stdlib.h>

#include "base/numbers/bf16.h"
#include "base/numbers/dtype.h"
#include "comm/collectives/hosts/hosts.h"
#include "comm/group/world_state.h"

enum { PARTS = 4 };

/* One kind of operation with one choice of everything else. */
typedef struct hosts_case {
  int kind, src_dtype, dst_dtype, accumulate, in_place, sliced, largest;
  int64_t count[PARTS]; /* of the parts */
} hosts_case;

/* What the threads of a run share. */
typedef struct arena {
  const fake_hosts *hosts;
  int64_t capacity;              /* elements of a buffer, for all parts */
  float *source[MAX_HOST_RANKS]; /* mapped by the ranks of the same host */
  float *result[MAX_HOST_RANKS]; /* by node: the copy of an all-gather */
} arena;

/* A rank of a run. */
typedef struct runner {
  arena *all;
  ms_world *world;
  ms_comm *comm;
  ms_hosts_shape shape;
  int me, n, round;
  float *dst;
  int64_t sent, received; /* expected */
  void *shared[PARTS][MAX_HOST_RANKS];
  ms_coll_part part[PARTS];
} runner;

/* ---- values ---- */

/* Depends on everything; not exact in bf16. */
static float value_of(int rank, int round, int64_t i) {
  uint32_t x = (uint32_t)(i * 2654435761u) ^ (uint32_t)(rank * 40503 + round * 9176 + 77);
  x ^= x >> 15;
  x *= 0x2c1b3c6du;
  x ^= x >> 12;
  return (float)(int32_t)x * (1.0f / (1 << 24));
}

static float rounded(float x, int dtype) { return dtype == MS_BF16 ? ms_bf16_to_f32(ms_f32_to_bf16(x)) : x; }

static float read_element(const void *array, int dtype, int64_t i) {
  return dtype == MS_BF16 ? ms_bf16_to_f32(((const ms_bf16 *)array)[i]) : ((const float *)array)[i];
}

static void fill(void *array, int dtype, int64_t n, int rank, int round) {
  for (int64_t i = 0; i < n; i++) {
    if (dtype == MS_BF16) ((ms_bf16 *)array)[i] = ms_f32_to_bf16(value_of(rank, round, i));
    else ((float *)array)[i] = value_of(rank, round, i);
  }
}

static float joined(const hosts_case *c, float a, float b) { return !c->largest ? a + b : a > b ? a : b; }

/* The documented order: ranks of a host, rounded to the sources' type; then hosts. */
static float reference(const runner *r, const hosts_case *c, int64_t i) {
  const ms_hosts_shape *shape = &r->shape;
  float sum = 0;
  for (int host = 0; host < shape->hosts; host++) {
    float here = rounded(value_of(shape->member[shape->first[host]], r->round, i), c->src_dtype);
    for (int m = shape->first[host] + 1; m < shape->first[host + 1]; m++)
      here = joined(c, here, rounded(value_of(shape->member[m], r->round, i), c->src_dtype));
    here = rounded(here, c->src_dtype);
    sum = host ? joined(c, sum, here) : here;
  }
  return sum;
}

/* ---- one operation ---- */

static int64_t length_of(const runner *r, const hosts_case *c, int part) {
  int chunks = c->kind == MS_COLL_ALL_GATHER || c->kind == MS_COLL_REDUCE_SCATTER || c->kind == MS_COLL_ALL_TO_ALL;
  return c->count[part] * (chunks ? r->n : 1);
}

/* Rank p's slice of a part of `count` elements, when the sum is sliced: uneven, some are empty. */
static void slice_for(int p, int64_t count, int64_t *first, int64_t *n) {
  *first = p % 3 == 2 ? 0 : count / 5;
  *n = p % 3 == 1 ? 0 : (count - *first) * 2 / 3;
}

static void prepare(runner *r, const hosts_case *c) {
  int64_t at = 0;
  float *dst = r->dst;
  for (int i = 0; i < PARTS; i++) {
    ms_coll_part *part = &r->part[i];
    float *mine = r->all->source[r->me] + at;
    const int gathers = c->kind == MS_COLL_ALL_GATHER, node = r->all->hosts->node[r->me];
    *part = (ms_coll_part){.count = c->count[i],
                           .src_dtype = c->src_dtype,
                           .dst_dtype = c->dst_dtype,
                           .accumulate = c->accumulate,
                           .shared = r->shared[i],
                           .dst = c->in_place ? mine : dst};
    for (int p = 0; p < r->n; p++) {
      int near = r->all->hosts->node[p] == node;
      r->shared[i][p] = !near ? NULL : gathers ? r->all->result[node] + at : r->all->source[p] + at;
    }
    /* This rank is on this host, so the copy's address is known even if rank 0 is not. */
    if (gathers) r->shared[i][0] = r->all->result[node] + at;
    if (c->kind == MS_COLL_BROADCAST && r->shared[i][1] == NULL) part->dst = dst;
    if (c->sliced) slice_for(r->me, c->count[i], &part->first, &part->n);
    fill(mine, c->src_dtype, gathers ? c->count[i] : length_of(r, c, i), r->me, r->round);
    if (gathers) part->src = mine;
    if (!c->in_place) fill(dst, c->dst_dtype, c->count[i], 50 + r->me, r->round);
    at += length_of(r, c, i);
    dst += c->kind == MS_COLL_ALL_TO_ALL ? length_of(r, c, i) : c->count[i];
  }
}

static int expect_element(const runner *r, int part, int64_t i, float got, float want) {
  EXPECT(got == want, "round %d, part %d, element %lld is %.9g, not %.9g", r->round, part, (long long)i, (double)got,
         (double)want);
  return MS_OK;
}

static int check_gathered(runner *r, const hosts_case *c, int part) {
  for (int p = 0; p < r->n; p++)
    for (int64_t i = 0; i < c->count[part]; i++) {
      float want = rounded(rounded(value_of(p, r->round, i), c->src_dtype), c->dst_dtype);
      float got = read_element(r->shared[part][0], c->dst_dtype, p * c->count[part] + i);
      MS_TRY(expect_element(r, part, p * c->count[part] + i, got, want));
    }
  return MS_OK;
}

static int check_exchanged(runner *r, const hosts_case *c, int part) {
  const int64_t count = c->count[part];
  for (int p = 0; p < r->n; p++)
    for (int64_t i = 0; i < count; i++)
      MS_TRY(expect_element(r, part, p * count + i, read_element(r->part[part].dst, c->dst_dtype, p * count + i),
                            rounded(value_of(p, r->round, r->me * count + i), c->src_dtype)));
  return MS_OK;
}

static int check_sums(runner *r, const hosts_case *c, int part) {
  const ms_coll_part *at = &r->part[part];
  const int64_t begin = c->kind == MS_COLL_REDUCE_SCATTER ? r->me * at->count : 0;
  const int64_t first = c->sliced ? at->first : 0, n = c->sliced ? at->n : at->count;
  const int passes_on = c->kind == MS_COLL_ALL_REDUCE && !c->sliced;
  for (int64_t i = 0; i < n; i++) {
    float want = reference(r, c, begin + first + i);
    if (passes_on) want = rounded(want, c->src_dtype);
    if (c->accumulate) want += value_of(50 + r->me, r->round, i);
    MS_TRY(expect_element(r, part, i, read_element(at->dst, c->dst_dtype, i), rounded(want, c->dst_dtype)));
  }
  return MS_OK;
}

enum { ROOT = 1 };

static int check_result(runner *r, const hosts_case *c) {
  for (int i = 0; i < PARTS; i++) {
    if (c->kind == MS_COLL_ALL_GATHER) MS_TRY(check_gathered(r, c, i));
    else if (c->kind == MS_COLL_ALL_TO_ALL) MS_TRY(check_exchanged(r, c, i));
    else if (c->kind != MS_COLL_BROADCAST) MS_TRY(check_sums(r, c, i));
    else if (r->me != ROOT)
      for (int64_t e = 0; e < c->count[i]; e++)
        MS_TRY(expect_element(r, i, e, read_element(r->part[i].dst, c->dst_dtype, e),
                              rounded(rounded(value_of(ROOT, r->round, e), c->src_dtype), c->dst_dtype)));
  }
  return MS_OK;
}

/* What the operation adds to the counters of this rank's endpoint. */
static void expect_bytes(runner *r, const ms_coll *coll) {
  int64_t sent, received, partners = 0;
  ms_hosts_bytes(&r->shape, coll, r->me, &sent, &received);
  for (int p = 0; p < r->n; p++) partners += ms_hosts_are_partners(&r->shape, r->me, p);
  r->sent += sent + partners * (int64_t)sizeof(ms_hosts_signature);
  r->received += received + partners * (int64_t)sizeof(ms_hosts_signature);
}

static int run_case(runner *r, const hosts_case *c) {
  r->round++;
  prepare(r, c);
  ms_coll coll = {.kind = c->kind,
                  .sliced = c->sliced,
                  .largest = c->largest,
                  .parts = PARTS,
                  .part = r->part,
                  .root = ROOT,
                  .label = "layers.0"};
  if (!c->sliced) expect_bytes(r, &coll);
  MS_TRY(ms_comm_start(r->comm, &coll));
  MS_TRY(ms_comm_wait(r->comm));
  int rc = check_result(r, c);
  if (rc)
    ms_error_prefix("%s of %lld, %lld, ... elements, %s to %s%s%s%s", ms_coll_kind_name(c->kind),
                    (long long)c->count[0], (long long)c->count[1], ms_dtype_name(c->src_dtype),
                    ms_dtype_name(c->dst_dtype), c->accumulate ? ", accumulating" : "", c->in_place ? ", in place" : "",
                    c->sliced ? ", sliced" : "");
  return rc;
}

#endif
