/* segment.c - divides a unit's parameters into segments, and each segment into one chunk per rank.
 *
 * Parameters are ordered trainable before frozen, masters before what is stored otherwise, then divided by the tensor
 * dimension before whole, those with a gradient norm before what is balanced, then by the form of their moments, Muon's
 * before others, and by optimizer group, then codes after others, then in the order of addition. Gradients and
 * optimizer state therefore cover a prefix of the master buffer, and an optimizer pass over a unit needs one kernel per
 * group.
 */
#include <stdlib.h>

#include "base/numbers/dtype.h"
#include "kernels/formats/moments.h"
#include "kernels/formats/quantised_sum.h"
#include "shard/model.h"
#include "shard/param_group.h"

_Static_assert(MS_UNCUT == (int)MS_MOMENT_BLOCK && MS_UNCUT == (int)MS_PIECE_BLOCK, "one alignment keeps both whole");

static int64_t align_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

static int compare_groups(const ms_param *a, const ms_param *b) {
  return ms_group_compare(&a->config.group, &b->config.group);
}

/* Those that the tensor dimension divides come first, since their squares are summed over it. */
static int same_group(const ms_model *model, const ms_param *a, const ms_param *b) {
  return !ms_param_is_stored(a) && !ms_param_is_stored(b) && !ms_param_is_coded(a) && !ms_param_is_coded(b) &&
         a->config.frozen == b->config.frozen && ms_param_is_divided(model, a) == ms_param_is_divided(model, b) &&
         ms_param_blocks(a) == ms_param_blocks(b) && a->config.packed_moments == b->config.packed_moments &&
         ms_param_chosen(a) == ms_param_chosen(b) && a->config.balance == b->config.balance &&
         a->config.param_dtype == b->config.param_dtype && !compare_groups(a, b);
}

static int goes_before(const ms_model *model, const ms_param *a, const ms_param *b) {
  const int divided = ms_param_is_divided(model, a), groups = compare_groups(a, b);
  if (a->config.frozen != b->config.frozen) return a->config.frozen < b->config.frozen;
  if (ms_param_is_stored(a) != ms_param_is_stored(b)) return ms_param_is_stored(b);
  if (divided != ms_param_is_divided(model, b)) return divided;
  if (ms_param_is_balanced(a) != ms_param_is_balanced(b)) return ms_param_is_balanced(b);
  if (a->config.packed_moments != b->config.packed_moments) return a->config.packed_moments;
  if (ms_param_chosen(a) != ms_param_chosen(b)) return ms_param_chosen(a) > ms_param_chosen(b);
  if (groups) return groups < 0;
  if (ms_param_is_coded(a) != ms_param_is_coded(b)) return ms_param_is_coded(b);
  if (ms_param_blocks(a) != ms_param_blocks(b)) return ms_param_blocks(a) < ms_param_blocks(b);
  return a->config.param_dtype > b->config.param_dtype;
}

/* The dtype in which a parameter is gathered. */
static int wire_of(const ms_param *p) {
  return ms_param_is_stored(p) || ms_param_blocks(p) ? MS_I32
         : ms_param_is_coded(p)                      ? MS_F8E4M3
                                                     : p->config.param_dtype;
}

/* Insertion sort: stable, and a unit has few parameters. */
static void order_params(const ms_model *model, ms_unit *unit) {
  for (int i = 1; i < unit->params; i++) {
    int moving = unit->order[i], at = i;
    while (at > 0 && goes_before(model, &model->param[moving], &model->param[unit->order[at - 1]])) {
      unit->order[at] = unit->order[at - 1];
      at--;
    }
    unit->order[at] = moving;
  }
}

/* Elements of parameters in a chunk. */
static int64_t chunk_elements(const ms_segment *segment) {
  if (!ms_segment_is_stored(segment)) return segment->chunk;
  return segment->chunk / segment->storage.words * segment->storage.elements;
}

/* Sets the owned part of a parameter: its elements that are in chunk `rank` of the segment. */
static void own(ms_param *p, const ms_segment *segment, int rank) {
  int64_t chunk_begin = chunk_elements(segment) * rank, chunk_end = chunk_begin + chunk_elements(segment);
  int64_t begin = p->offset > chunk_begin ? p->offset : chunk_begin;
  int64_t end = p->offset + p->numel < chunk_end ? p->offset + p->numel : chunk_end;
  p->owned = end > begin ? end - begin : 0;
  p->first = p->owned ? begin - p->offset : 0;
  p->local = segment->local + (p->owned ? begin - chunk_begin : 0);
}

static int64_t common_divisor(int64_t a, int64_t b) { return b ? common_divisor(b, a % b) : a; }

/* Rows of a chunk in the layout `rows`: of a parameter of records or blocks, as many as fill them, or all. */
static int64_t chunk_rows(const ms_param *p, int64_t ranks) {
  const int64_t row = p->numel / p->dims[0], share = (p->dims[0] + ranks - 1) / ranks;
  const int64_t whole = align_up(share, MS_UNCUT / common_divisor(row, MS_UNCUT));
  return ms_param_align(p) != MS_UNCUT ? share : whole < p->dims[0] ? whole : p->dims[0];
}

/* Elements of which a segment's offset, and those of its parameters, are multiples. */
static int64_t align_of(const ms_model *model, const ms_unit *unit, int first_param) {
  if (first_param >= unit->params) return MS_SEGMENT_ALIGN;
  return ms_param_align(&model->param[unit->order[first_param]]);
}

/* Makes a segment of unit->order[first, first + count): offsets of its parameters, and the size of its chunk. */
static void cut(ms_model *model, ms_unit *unit, ms_segment *segment, int first, int count) {
  const ms_param *head = &model->param[unit->order[first]];
  int64_t ranks = ms_unit_shards(unit);
  *segment = (ms_segment){.frozen = head->config.frozen,
                          .param_dtype = head->config.param_dtype,
                          .packed_moments = head->config.packed_moments,
                          .blocks = ms_param_blocks(head),
                          .optimizer = ms_param_chosen(head),
                          .storage = head->storage,
                          .wire = wire_of(head),
                          .reduce_dtype = unit->config.reduce_dtype,
                          .first_param = first,
                          .params = count};
  const int64_t align = align_of(model, unit, first);
  int64_t end = 0;
  for (int i = first; i < first + count; i++) {
    ms_param *p = &model->param[unit->order[i]];
    p->offset = align_up(end, align);
    end = p->offset + p->numel;
  }
  const int64_t words = segment->storage.words;
  if (ms_segment_is_stored(segment))
    segment->chunk = (ms_storage_words(&segment->storage, end) / words + ranks - 1) / ranks * words;
  else if (unit->config.layout == MS_LAYOUT_ROWS)
    segment->chunk = chunk_rows(head, ranks) * (head->numel / head->dims[0]);
  else segment->chunk = align_up((end + ranks - 1) / ranks, align);
  segment->wire_chunk = segment->blocks ? ms_weight_words(segment->blocks, segment->chunk) : segment->chunk;
}

/* Elements between a segment, with its padding, and the next one, which begins with a record if it has records of
 * moments. After the trainable ones of a unit with records there are as many as it takes for the slices of replicas to
 * be whole records (base/slice.h divides evenly what can be). */
static int64_t gap_behind(const ms_model *model, const ms_unit *unit, const ms_segment *segment) {
  const int next = segment->first_param + segment->params;
  const int last = !segment->frozen && (next == unit->params || model->param[unit->order[next]].config.frozen);
  const int64_t end = segment->local + align_up(segment->chunk, MS_SEGMENT_ALIGN);
  const int64_t of_slices = (int64_t)MS_UNCUT * ms_model_replicas(model);
  return align_up(end, last && unit->align == MS_UNCUT ? of_slices : align_of(model, unit, next)) - end;
}

/* 1 when a rank keeps its chunk in the dtype that is gathered, besides the f32 masters. */
static int has_copy(const ms_unit *unit, const ms_segment *segment) {
  return ms_unit_keeps_copies(unit) && !ms_segment_is_as_gathered(segment) && segment->wire == segment->param_dtype;
}

/* Places a segment after the previous ones in all buffers, and sets what this rank owns of its parameters. With one
 * rank, all buffers have equal element offsets. */
static void place(ms_model *model, ms_unit *unit, ms_segment *segment, int index) {
  segment->local = unit->master_count;
  const int64_t gap = gap_behind(model, unit, segment);
  const int64_t whole = align_up(segment->chunk * ms_unit_shards(unit), MS_SEGMENT_ALIGN) + gap;
  const int64_t words = align_up(segment->wire_chunk * ms_unit_shards(unit), MS_SEGMENT_ALIGN);
  const int64_t wire = segment->blocks ? words : whole;
  unit->master_count = segment->local + align_up(segment->chunk, MS_SEGMENT_ALIGN) + gap;
  segment->gathered = unit->gathered_bytes;
  /* With one shard, what is as gathered is read where it is kept. */
  if (ms_unit_shards(unit) > 1 || !ms_segment_is_stored(segment))
    unit->gathered_bytes = segment->gathered + wire * ms_dtype_size(segment->wire);
  segment->copy = -1;
  if (has_copy(unit, segment)) {
    segment->copy = unit->copy_bytes;
    unit->copy_bytes += align_up(segment->chunk, MS_SEGMENT_ALIGN) * ms_dtype_size(segment->wire);
  }
  segment->reduce = -1;
  if (!segment->frozen) {
    segment->reduce = unit->reduce_bytes;
    unit->reduce_bytes = segment->reduce + whole * ms_dtype_size(segment->reduce_dtype);
    unit->trainable_count = unit->master_count;
    if (!ms_param_is_balanced(&model->param[unit->order[segment->first_param]]))
      unit->normed_count = unit->master_count;
    if (ms_param_is_divided(model, &model->param[unit->order[segment->first_param]]))
      unit->divided_count = unit->master_count;
  }
  for (int i = segment->first_param; i < segment->first_param + segment->params; i++) {
    ms_param *p = &model->param[unit->order[i]];
    p->segment = index;
    own(p, segment, unit->shard->place);
  }
}

int ms_model_segment(ms_model *model) {
  for (int u = 0; u < model->units; u++) {
    ms_unit *unit = &model->unit[u];
    if (!unit->params)
      return MS_FAIL(MS_EINVAL, "unit '%s' has no parameters; remove the unit, or add parameters to it", unit->name);
    order_params(model, unit);
    unit->align = MS_SEGMENT_ALIGN;
    for (int i = 0; i < unit->params; i++)
      if (model->param[unit->order[i]].config.packed_moments) unit->align = MS_UNCUT;
    unit->segment = ms_calloc(unit->params, sizeof *unit->segment);
    if (!unit->segment) return MS_ENOMEM;
    for (int first = 0; first < unit->params;) {
      int count = 1;
      if (unit->config.layout == MS_LAYOUT_RAGGED)
        while (first + count < unit->params &&
               same_group(model, &model->param[unit->order[first]], &model->param[unit->order[first + count]]))
          count++;
      ms_segment *segment = &unit->segment[unit->segments];
      cut(model, unit, segment, first, count);
      place(model, unit, segment, unit->segments++);
      first += count;
    }
  }
  return MS_OK;
}
