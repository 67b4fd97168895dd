/* owner_exchange.c - the pieces in which ranks exchange the matrices of a bucket, and where each matrix is in them. */
#include <stdlib.h>
#include <string.h>

#include "plan/lower/lower.h"
#include "plan/lower/optimizers/owners.h"

/* Elements of which places in a piece are multiples: a cache line. */
enum { ALIGN = 16 };

static int64_t align_up(int64_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

/* What the rank at these places sends of a matrix. */
static ms_owned_range sent_at(const ms_plan *plan, const ms_owned *o, int dim, int replica, int shard) {
  if (dim == MS_DIM_REPLICATE) return ms_owned_slice(plan, o, replica, shard);
  return dim == MS_DIM_SHARD ? ms_owned_chunk(plan, o, shard) : (ms_owned_range){.count = o->count};
}

ms_owned_range ms_owner_sent(const ms_plan *plan, const ms_owned *o, int dim, int of) {
  const ms_dim_group *group = plan->model->dim;
  return sent_at(plan, o, dim, dim == MS_DIM_REPLICATE ? of : group[MS_DIM_REPLICATE].place,
                 dim == MS_DIM_SHARD ? of : group[MS_DIM_SHARD].place);
}

/* Matrices with the same number of owner are in the same piece: that of the owner's place in this dimension and those
 * before it, over which they have travelled. */
static int number_of_owner(const ms_plan *plan, const ms_owned *o, int dim) {
  int number = 0;
  for (int d = 0; d <= dim; d++) number = number * plan->model->dim[d].size + ms_owner_place(plan, o, d);
  return number;
}

/* The longest piece that the rank at these places sends. sum: [owners]. */
static int64_t longest_of(const ms_plan *plan, const ms_owner_bucket *b, int dim, int replica, int shard,
                          int64_t *sum) {
  int64_t longest = 0;
  for (int i = 0; i < b->n; i++) sum[number_of_owner(plan, &b->owned[i], dim)] = 0;
  for (int i = 0; i < b->n; i++) {
    int64_t *n = &sum[number_of_owner(plan, &b->owned[i], dim)];
    *n += align_up(sent_at(plan, &b->owned[i], dim, replica, shard).count);
    if (*n > longest) longest = *n;
  }
  return longest;
}

/* Parts over the tensor dimension are equal, and chunks are those of each replica. */
int ms_owner_measure(const ms_plan *plan, ms_owner_bucket *bucket) {
  const ms_dim_group *group = plan->model->dim;
  int owners = 1;
  for (int d = 0; d < MS_GRID_DIMS; d++) owners *= group[d].size;
  int64_t *sum = ms_calloc(owners, sizeof *sum);
  if (!sum) return MS_ENOMEM;
  for (int dim = 0; dim < MS_GRID_DIMS; dim++) {
    const int replicas = dim == MS_DIM_REPLICATE ? group[MS_DIM_REPLICATE].size : 1;
    const int shards = dim == MS_DIM_TENSOR ? 1 : group[MS_DIM_SHARD].size;
    bucket->over[dim] = (ms_owner_exchange){.sent = -1, .received = -1};
    for (int rank = 0; rank < replicas * shards && group[dim].size > 1; rank++) {
      const int64_t longest = longest_of(plan, bucket, dim, rank / shards, rank % shards, sum);
      if (longest > bucket->over[dim].piece) bucket->over[dim].piece = longest;
    }
  }
  free(sum);
  return MS_OK;
}

ms_ref ms_owner_in_piece(const ms_plan *plan, const ms_owner_bucket *bucket, int dim, int buffer, const ms_owned *o,
                         int with, int of) {
  const int owner = number_of_owner(plan, o, dim);
  int64_t before = 0;
  for (const ms_owned *other = bucket->owned; other != o; other++)
    if (number_of_owner(plan, other, dim) == owner) before += align_up(ms_owner_sent(plan, other, dim, of).count);
  return ms_ref_vector(buffer, 4 * (with * bucket->over[dim].piece + before), MS_F32,
                       ms_owner_sent(plan, o, dim, of).count);
}
