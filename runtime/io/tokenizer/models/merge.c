/* merge.c - the table of merges, and the merging of one piece.
 *
 * The neighbouring pair with the lowest rank merges first, the leftmost among equals. Most pieces are a
 * few bytes: these are searched again after every merge. Long pieces keep their pairs in a heap, so that a piece of n
 * bytes costs n log n; outdated pairs are skipped when they reach the top.
 */
#include "base/error.h"
#include "io/tokenizer/tokenizer.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT = 40 };

/* ---- the table of pairs ---- */

static uint32_t place_of(int32_t left, int32_t right) {
  uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
  key *= 0x9e3779b97f4a7c15u; /* Fibonacci hashing (Knuth, vol. 3, 6.4) */
  return (uint32_t)(key >> 32) ^ (uint32_t)(key >> 47);
}

int ms_merges_new(ms_merges *merges, int64_t count) {
  uint32_t slots = 16;
  while (slots < 2 * (uint64_t)count) slots *= 2;
  if (!(merges->slot = ms_calloc(slots, sizeof *merges->slot))) return MS_ENOMEM;
  merges->mask = slots - 1;
  for (uint32_t i = 0; i < slots; i++) merges->slot[i].left = -1;
  return MS_OK;
}

int ms_merges_add(ms_merges *merges, ms_merge merge) {
  uint32_t at = place_of(merge.left, merge.right) & merges->mask;
  for (; merges->slot[at].left >= 0; at = (at + 1) & merges->mask)
    if (merges->slot[at].left == merge.left && merges->slot[at].right == merge.right) return 1;
  merges->slot[at] = merge;
  return 0;
}

const ms_merge *ms_merges_find(const ms_merges *merges, int32_t left, int32_t right) {
  uint32_t at = place_of(left, right) & merges->mask;
  for (; merges->slot[at].left >= 0; at = (at + 1) & merges->mask)
    if (merges->slot[at].left == left && merges->slot[at].right == right) return &merges->slot[at];
  return NULL;
}

/* ---- short pieces ---- */

static int64_t merge_short(const ms_merges *merges, int32_t *ids, int64_t count) {
  const ms_merge *pair[SHORT];
  for (int64_t i = 0; i + 1 < count; i++) pair[i] = ms_merges_find(merges, ids[i], ids[i + 1]);
  for (;;) {
    int64_t best = -1;
    int32_t rank = INT32_MAX;
    for (int64_t i = 0; i + 1 < count; i++)
      if (pair[i] && pair[i]->rank < rank) {
        rank = pair[i]->rank;
        best = i;
      }
    if (best < 0) return count;
    ids[best] = pair[best]->id;
    count--;
    memmove(ids + best + 1, ids + best + 2, (size_t)(count - best - 1) * sizeof *ids);
    if (best + 1 < count) {
      memmove(pair + best + 1, pair + best + 2, (size_t)(count - best - 2) * sizeof *pair);
      pair[best] = ms_merges_find(merges, ids[best], ids[best + 1]);
    }
    if (best > 0) pair[best - 1] = ms_merges_find(merges, ids[best - 1], ids[best]);
  }
}

/* ---- long pieces ---- */

typedef struct ms_bpe_node {
  int32_t id; /* -1: merged into the previous node */
  int before, after;
} node;

typedef struct ms_bpe_pair {
  int32_t rank, id; /* id: the merged token */
  int left;
  int32_t left_id, right_id; /* when the pair was found */
} pair;

static int comes_first(const pair *a, const pair *b) {
  return a->rank != b->rank ? a->rank < b->rank : a->left < b->left;
}

static void push(pair *heap, int *size, pair item) {
  int at = (*size)++;
  while (at > 0 && comes_first(&item, &heap[(at - 1) / 2])) {
    heap[at] = heap[(at - 1) / 2];
    at = (at - 1) / 2;
  }
  heap[at] = item;
}

static pair pop(pair *heap, int *size) {
  const pair first = heap[0], item = heap[--(*size)];
  int at = 0;
  for (int child = 1; child < *size; child = 2 * at + 1) {
    if (child + 1 < *size && comes_first(&heap[child + 1], &heap[child])) child++;
    if (!comes_first(&heap[child], &item)) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = item;
  return first;
}

static void push_pair(const ms_merges *merges, ms_bpe_memory *m, int *size, int left) {
  const int right = left < 0 ? -1 : m->node[left].after;
  if (right < 0) return;
  const int32_t a = m->node[left].id, b = m->node[right].id;
  const ms_merge *merge = ms_merges_find(merges, a, b);
  if (merge) push(m->heap, size, (pair){merge->rank, merge->id, left, a, b});
}

static int64_t merge_long(const ms_merges *merges, ms_bpe_memory *m, int32_t *ids, int64_t count) {
  int size = 0;
  if (count > INT_MAX / 4) {
    MS_FAIL(MS_EINVAL, "a piece of %lld bytes without a blank is more than can be tokenized", (long long)count);
    return -1;
  }
  /* every merge removes a node and adds at most two pairs */
  if (ms_grow((void **)&m->node, &m->nodes, (int)count, sizeof *m->node) ||
      ms_grow((void **)&m->heap, &m->pairs, (int)count * 3, sizeof *m->heap))
    return -1;
  for (int i = 0; i < count; i++) m->node[i] = (node){ids[i], i - 1, i + 1 < count ? i + 1 : -1};
  for (int i = 0; i + 1 < count; i++) push_pair(merges, m, &size, i);
  while (size) {
    const pair p = pop(m->heap, &size);
    node *left = &m->node[p.left];
    if (left->id != p.left_id || left->after < 0 || m->node[left->after].id != p.right_id) continue;
    node *right = &m->node[left->after];
    left->id = p.id;
    right->id = -1;
    left->after = right->after;
    if (left->after >= 0) m->node[left->after].before = p.left;
    push_pair(merges, m, &size, left->before);
    push_pair(merges, m, &size, p.left);
  }
  int64_t n = 0;
  for (int i = 0; i >= 0; i = m->node[i].after) ids[n++] = m->node[i].id;
  return n;
}

int64_t ms_bpe_merge(const ms_merges *merges, ms_bpe_memory *memory, int32_t *ids, int64_t count) {
  if (count <= SHORT) return merge_short(merges, ids, count);
  return merge_long(merges, memory, ids, count);
}
