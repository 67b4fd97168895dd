/* test_checkpoint.c - saving and loading a state through the public header: blocks and their checksums, copies past the
 * page cache, every call that may fail, and no memory or file left when one did. */
#include "base/testing.h"
#include "tests/c/support/check.h"
#include "tests/c/support/networks/mlp.h"

#include "base/error.h"
#include "comm/bootstrap/join.h"
#include "comm/control/control.h"
#include "comm/group/table.h"
#include "comm/group/world.h"
#include "io/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { MAX_PIECES = 64, PATH_BYTES = 256 };

typedef struct rig {
  ms_world *world;
  mlp net;
  ms_state *state;
  ms_save *save;
  ms_save_piece piece[MAX_PIECES];
  char name[MAX_PIECES][80];
  int pieces;
  char folder[PATH_BYTES], unfinished[PATH_BYTES + 8], target[PATH_BYTES + 8];
} rig;

static const char *const kinds[] = {"param", "exp_avg", "exp_avg_sq"};
static const int values[] = {MS_TENSOR_PARAM, MS_TENSOR_EXP_AVG, MS_TENSOR_EXP_AVG_SQ};

/* A job of one rank with a launcher's segment, in which ranks see each other's progress. */
static ms_world *join_job(void) {
  int fd;
  ms_control *control;
  ms_world *world;
  must(ms_job_create(1, 1, 0, &fd));
  must(ms_control_map(fd, &control));
  must(ms_world_attach(control, 0, &world));
  close(fd);
  return world;
}

/* One rank and AdamW's state. wide: its first parameter is of three blocks, the last one short. */
static rig make_rig(int wide) {
  rig r = {0};
  mlp_config config = mlp_default(1, 1, 0);
  config.blocks = 1;
  if (wide) config.inputs = 2 * MS_CHECKPOINT_BLOCK / 4 / config.width + 100;
  ms_plan_config plan;
  must(ms_config_default("ms_plan_config", &plan, sizeof plan));
  plan.optimizer = MS_OPT_ADAMW;
  r.world = join_job();
  r.net = mlp_make(&config);
  must(ms_state_new(r.world, r.net.model, &plan, 1, &r.state));
  for (int kind = 0; kind < 3; kind++)
    for (int p = 0; p < r.net.model->params; p++) {
      ms_save_piece *piece = &r.piece[r.pieces];
      const int64_t first = r.net.model->param[p].first, count = r.net.model->param[p].owned;
      snprintf(r.name[r.pieces], sizeof r.name[0], "%s.%d", kinds[kind], p);
      *piece = (ms_save_piece){.name = r.name[r.pieces],
                               .parameter = "a \"name\"",
                               .kind = kinds[kind],
                               .param = p,
                               .what = values[kind],
                               .first = first,
                               .count = count,
                               .ndim = 1,
                               .dims = {count}};
      r.pieces++;
    }
  must(ms_save_new(r.state, r.pieces, r.piece, sizeof(ms_save_piece), &r.save));
  snprintf(r.folder, sizeof r.folder, "%s/moonshard-test-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
  assert_non_null(mkdtemp(r.folder));
  snprintf(r.unfinished, sizeof r.unfinished, "%s/.new", r.folder);
  snprintf(r.target, sizeof r.target, "%s/step-1", r.folder);
  return r;
}

static void free_rig(rig *r) {
  ms_free(r->save);
  ms_free(r->state);
  mlp_free(&r->net);
  ms_free(r->world);
  assert_int_equal(rmdir(r->folder), 0);
}

static int save(rig *r, int asynchronous) {
  const ms_save_config config = {.struct_size = sizeof(ms_save_config),
                                 .folder = r->unfinished,
                                 .asynchronous = asynchronous,
                                 .target = r->target,
                                 .writers = 1,
                                 .head = "{\"head\":1}"};
  MS_TRY(ms_checkpoint_make_folder(r->unfinished, 1));
  MS_TRY(ms_save_start(r->save, &config));
  MS_TRY(ms_save_wait(r->save, MS_SAVE_WRITTEN, 0));
  return ms_save_wait(r->save, MS_SAVE_COMMITTED, 0);
}

static int saved_is_there(const rig *r) { return access(r->target, F_OK) == 0; }

/* The digits of checksums of a tensor as the manifest has them. */
static const char *find_checksums(const char *manifest, const char *tensor, char *digits, size_t room) {
  char start[128];
  snprintf(start, sizeof start, "{\"name\":\"%s\"", tensor);
  const char *at = strstr(strstr(manifest, start), "\"xxh3\":\"") + 8;
  snprintf(digits, room, "%.*s", (int)strcspn(at, "\""), at);
  return digits;
}

static ms_safetensors *open_file(const rig *r, int *tensors) {
  char path[2 * PATH_BYTES];
  ms_safetensors *file;
  snprintf(path, sizeof path, "%s/rank-00000.safetensors", r->target);
  must(ms_safetensors_open(path, &file, tensors));
  return file;
}

/* Loads elements [first, first + count) of a parameter from the first parameter's tensor, which begins at `begin`. */
static int load(const rig *r, int param, int64_t first, int64_t count, const ms_safetensors *file, int64_t begin,
                const char *checksums, int64_t *bytes) {
  const ms_saved_piece piece = {
      .file = file, .tensor = ms_safetensors_find(file, "param.0"), .first = begin, .checksums = checksums};
  return ms_state_load(r->state, param, MS_TENSOR_PARAM, first, count, &piece, sizeof(ms_saved_piece), bytes);
}

/* ---- there and back ---- */

static void goes_there_and_back(int asynchronous) {
  rig r = make_rig(1);
  const int64_t count = r.piece[0].count;
  float *before = calloc((size_t)count, sizeof *before), *after = calloc((size_t)count, sizeof *after);
  char *manifest, digits[128];
  int64_t bytes = 0;
  must(ms_state_read(r.state, 0, MS_TENSOR_PARAM, 0, count, before));
  must(save(&r, asynchronous));
  assert_false(ms_save_running(r.save));
  must(ms_checkpoint_read(r.target, -1, &manifest));
  assert_has(manifest, "{\"head\":1,\"files\":[{\"file\":\"rank-00000.safetensors\",\"tensors\":[{\"name\":\"param.0\","
                       "\"parameter\":\"a \\\"name\\\"\",\"kind\":\"param\",\"first\":0,");
  find_checksums(manifest, "param.0", digits, sizeof digits);
  assert_int_equal(strlen(digits), 3 * 16);

  /* All of it; then some elements in the midst, with whole blocks read for their checksums, and without. */
  memset(after, 0, (size_t)count * sizeof *after);
  must(ms_state_write(r.state, 0, MS_TENSOR_PARAM, 0, count, after));
  ms_safetensors *file = open_file(&r, NULL);
  must(load(&r, 0, 0, count, file, 0, digits, &bytes));
  must(ms_state_read(r.state, 0, MS_TENSOR_PARAM, 0, count, after));
  assert_memory_equal(before, after, (size_t)count * sizeof *after);
  assert_true(bytes == 4 * count);
  const int64_t first = MS_CHECKPOINT_BLOCK / 4 - 10, some = 20;
  memset(after, 0, (size_t)count * sizeof *after);
  must(ms_state_write(r.state, 0, MS_TENSOR_PARAM, 0, count, after));
  bytes = 0;
  must(load(&r, 0, first, some, file, 0, digits, &bytes));
  assert_true(bytes == 2 * MS_CHECKPOINT_BLOCK);
  bytes = 0;
  must(load(&r, 0, first, some, file, 0, NULL, &bytes));
  assert_true(bytes == 4 * some);
  must(ms_state_read(r.state, 0, MS_TENSOR_PARAM, 0, count, after));
  assert_memory_equal(before + first, after + first, (size_t)some * sizeof *after);
  assert_true(after[first - 1] == 0 && after[first + some] == 0);

  digits[20] = digits[20] == '0' ? '1' : '0';
  assert_fails(load(&r, 0, 0, count, file, 0, digits, &bytes), MS_EIO, "damaged");
  must(load(&r, 0, 0, some, file, 0, digits, &bytes)); /* of another block */
  digits[40] = '\0';
  assert_fails(load(&r, 0, 0, some, file, 0, digits, &bytes), MS_EINVAL, "3 | 48");
  assert_fails(load(&r, 0, 0, count, file, 5, NULL, &bytes), MS_EINVAL, "holds");
  assert_fails(load(&r, 1, 0, count, file, 0, NULL, &bytes), MS_EINVAL, "owns");
  assert_fails(load(&r, 0, 1, INT64_MAX, file, 0, NULL, &bytes), MS_EINVAL, "9223372036854775807 elements | owns");
  ms_saved_piece part = {.file = file, .tensor = ms_safetensors_find(file, "param.0"), .part = {3, 2, 0}};
  assert_fails(ms_state_load(r.state, 0, MS_TENSOR_PARAM, 0, some, &part, sizeof(ms_saved_piece), &bytes), MS_EINVAL,
               "param.0 | runs of 3 | 2");
  ms_free(file);
  ms_file_text_free(manifest);
  must(ms_checkpoint_remove(r.target));
  free(before);
  free(after);
  free_rig(&r);
}

static void K1_a_state_goes_there_and_back(void **state) {
  (void)state;
  goes_there_and_back(0);
  goes_there_and_back(1);
}

/* ---- past the page cache ---- */

/* Which share of the written file's pages the page cache has. */
static double cached_share(const rig *r) {
  char path[2 * PATH_BYTES];
  struct stat about;
  snprintf(path, sizeof path, "%s/rank-00000.safetensors", r->target);
  int fd = open(path, O_RDONLY);
  assert_true(fd >= 0);
  must(fstat(fd, &about));
  void *map = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_SHARED, fd, 0);
  assert_true(map != MAP_FAILED);
  const size_t pages = ((size_t)about.st_size + MS_FILE_PAGE - 1) / MS_FILE_PAGE;
  unsigned char *there = calloc(pages, 1);
  must(mincore(map, (size_t)about.st_size, there));
  size_t count = 0;
  for (size_t i = 0; i < pages; i++) count += there[i] & 1;
  free(there);
  munmap(map, (size_t)about.st_size);
  close(fd);
  return (double)count / (double)pages;
}

/* Whether files of the folder can be written past the page cache and are not memory themselves. */
static int has_direct(const rig *r) {
  enum { TMPFS = 0x01021994 };
  struct statfs about;
  int fd = open(r->folder, O_TMPFILE | O_WRONLY | O_DIRECT, 0600);
  must(statfs(r->folder, &about));
  if (fd < 0) return 0;
  close(fd);
  return about.f_type != TMPFS;
}

/* The state as it is in memory, from the file. */
static void check_saved(const rig *r) {
  ms_safetensors *file = open_file(r, NULL);
  for (int i = 0; i < r->pieces; i++) {
    const ms_save_piece *p = &r->piece[i];
    const size_t bytes = (size_t)p->count * sizeof(float);
    float *saved = malloc(bytes + 1), *held = malloc(bytes + 1);
    must(ms_safetensors_read(file, ms_safetensors_find(file, r->name[i]), NULL, 0, (int64_t)bytes, saved, NULL));
    must(ms_state_read(r->state, p->param, p->what, p->first, p->count, held));
    assert_memory_equal(saved, held, bytes);
    free(saved);
    free(held);
  }
  ms_free(file);
}

static void K3_a_copy_is_written_past_the_page_cache(void **state) {
  (void)state;
  rig r = make_rig(1);
  ms_safetensors_tensor tensor;
  for (int asynchronous = 0; asynchronous < 2; asynchronous++) {
    must(save(&r, asynchronous));
    double share = cached_share(&r);
    if (has_direct(&r)) assert_true(asynchronous ? share < 0.1 : share > 0.9);
    check_saved(&r);
    must(ms_checkpoint_remove(r.target));
  }
  /* A file system that wants larger multiples than a page, and one that writes half a page of the last one. */
  const char *const orders[] = {"write:2:EINVAL", "write:3:EINVAL", "write:2+:short"};
  for (size_t i = 0; i < sizeof orders / sizeof *orders && has_direct(&r); i++) {
    must(ms_inject_io(orders[i]));
    must(save(&r, 1));
    must(ms_inject_io(NULL));
    check_saved(&r);
    must(ms_checkpoint_remove(r.target));
  }
  /* All data begin at a page, so that they can be written so. */
  must(save(&r, 1));
  int tensors;
  ms_safetensors *file = open_file(&r, &tensors);
  int64_t begin = INT64_MAX;
  for (int i = 0; i < tensors; i++) {
    must(ms_safetensors_describe(file, i, &tensor, sizeof tensor));
    if (tensor.offset < begin) begin = tensor.offset;
  }
  assert_int_equal(begin % MS_FILE_PAGE, 0);
  ms_free(file);
  must(ms_checkpoint_remove(r.target));
  free_rig(&r);
}

/* ---- what fails ---- */

static void K2_every_call_may_fail(void **state) {
  (void)state;
  static const char *const calls[] = {"open", "write", "sync", "rename", "mkdir", "unlink"};
  rig r = make_rig(0);
  for (int asynchronous = 0; asynchronous < 2; asynchronous++)
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
      for (int number = 1, rc = 1; rc; number++) {
        char spec[40];
        snprintf(spec, sizeof spec, "%s:%d:ENOSPC", calls[c], number);
        must(ms_inject_io(spec));
        rc = save(&r, asynchronous);
        assert_int_equal(ms_inject_io(NULL), MS_OK);
        assert_true(rc ? number < 100 : number > 1);
        if (rc) {
          assert_int_equal(rc, MS_EIO);
          assert_has(ms_error_message(), r.folder);
          assert_has(ms_error_message(), "No space left");
          assert_null(strstr(ms_error_where(), "save.c")); /* of the thread that wrote, with the message */
          ms_error_clear();
        }
        assert_int_equal(saved_is_there(&r), !rc);
        if (!access(r.unfinished, F_OK)) must(ms_checkpoint_remove(r.unfinished));
        if (!rc) must(ms_checkpoint_remove(r.target));
      }
  free_rig(&r);
}

/* A background save whose other writer never comes. */
static ms_save_config of_two_writers(const rig *r) {
  return (ms_save_config){.struct_size = sizeof(ms_save_config),
                          .folder = r->unfinished,
                          .asynchronous = 1,
                          .target = r->target,
                          .writers = 2,
                          .head = "{\"head\":1}"};
}

static void K2_a_save_that_is_given_up_leaves_no_checkpoint(void **state) {
  (void)state;
  rig r = make_rig(1);
  const ms_save_config config = of_two_writers(&r);
  must(ms_checkpoint_make_folder(r.unfinished, 1));
  must(ms_save_start(r.save, &config));
  must(ms_save_wait(r.save, MS_SAVE_WRITTEN, 0));
  assert_true(ms_save_running(r.save));
  assert_fails(ms_save_start(r.save, &config), MS_EINVAL, "written");
  ms_save_stop(r.save);
  assert_fails(ms_save_wait(r.save, MS_SAVE_COMMITTED, 0), MS_EINTERRUPT, "cancelled");
  assert_false(saved_is_there(&r));
  must(ms_checkpoint_remove(r.unfinished));
  ms_world_set_timeout(r.world, 0.5);
  must(ms_checkpoint_make_folder(r.unfinished, 1));
  must(ms_save_start(r.save, &config));
  assert_fails(ms_save_wait(r.save, MS_SAVE_COMMITTED, 0), MS_ETIMEOUT, r.unfinished);
  ms_save_stop(r.save);
  must(ms_checkpoint_remove(r.unfinished));
  free_rig(&r);
}

/* Ranks that wait, too, count only as far as their saves progress: one may have been killed, or hang like this one. */
static void K2_a_save_is_given_up_although_other_ranks_wait_for_theirs(void **state) {
  (void)state;
  rig r = make_rig(0);
  const ms_save_config config = of_two_writers(&r);
  ms_world_count_finishing(r.world, 1);
  must(ms_checkpoint_make_folder(r.unfinished, 1));
  must(ms_save_start(r.save, &config));
  assert_fails(ms_save_wait(r.save, MS_SAVE_ENDED, 0.2), MS_ETIMEOUT, "no progress for");
  ms_save_stop(r.save);
  must(ms_checkpoint_remove(r.unfinished));
  free_rig(&r);
}

static void damage(const char *path) {
  FILE *file = fopen(path, "r+");
  assert_non_null(file);
  assert_int_equal(fseek(file, 3, SEEK_SET), 0);
  assert_int_equal(fputc('x', file), 'x');
  assert_int_equal(fclose(file), 0);
}

static void H10_parts_stay_files_with_checksums_where_hosts_have_folders_of_their_own(void **state) {
  (void)state;
  for (int asynchronous = 0; asynchronous < 2; asynchronous++) {
    rig r = make_rig(0);
    const int awaits[] = {3};
    const ms_save_config config = {.struct_size = sizeof config,
                                   .folder = r.unfinished,
                                   .writer = 3,
                                   .asynchronous = asynchronous,
                                   .target = r.target,
                                   .writers = 1,
                                   .awaits = awaits,
                                   .part_head = "\"host\":\"b\"",
                                   .head = "{\"head\":1}"};
    char *text, path[2 * PATH_BYTES];
    must(ms_checkpoint_make_folder(r.unfinished, 1));
    must(ms_save_start(r.save, &config));
    must(ms_save_wait(r.save, MS_SAVE_COMMITTED, 0));
    must(ms_checkpoint_read(r.target, -1, &text));
    assert_has(text, "{\"head\":1,\"xxh3\":\"");
    ms_file_text_free(text);
    must(ms_checkpoint_read(r.target, 3, &text));
    assert_has(text, "{\"host\":\"b\",\"file\":\"rank-00003.safetensors\",\"tensors\":[{\"name\":\"param.0\",");
    ms_file_text_free(text);
    assert_fails(ms_checkpoint_read(r.target, 0, &text), MS_EINVAL, "rank-00000.json");
    assert_fails(ms_checkpoint_read(r.target, -2, &text), MS_EINVAL, "-2");
    snprintf(path, sizeof path, "%s/rank-00003.json", r.target);
    damage(path);
    assert_fails(ms_checkpoint_read(r.target, 3, &text), MS_EIO, "rank-00003.json");
    must(ms_checkpoint_remove(r.target));
    free_rig(&r);
  }
}

static void K4_folders_without_a_checkpoint_are_refused(void **state) {
  (void)state;
  rig r = make_rig(0);
  char *manifest;
  assert_fails(ms_checkpoint_read(r.folder, -1, &manifest), MS_EINVAL, "manifest.json");
  assert_fails(ms_checkpoint_remove(r.folder), MS_EINVAL, "checkpoint");
  must(save(&r, 0));
  assert_fails(ms_checkpoint_make_folder(r.target, 1), MS_EIO, "File exists");
  must(ms_checkpoint_make_folder(r.target, 0));
  assert_fails(save(&r, 0), MS_EIO, r.target); /* never over another one */
  must(ms_checkpoint_remove(r.unfinished));
  must(ms_checkpoint_remove(r.target));
  ms_save_piece piece = r.piece[0];
  ms_save *save;
  piece.first = piece.count;
  assert_fails(ms_save_new(r.state, 1, &piece, sizeof(ms_save_piece), &save), MS_EINVAL, "owns");
  free_rig(&r);
}

/* "FOLDER/NAME" */
static const char *in(char *room, const char *folder, const char *name) {
  snprintf(room, 2 * PATH_BYTES, "%s/%s", folder, name);
  return room;
}

static void make_file(const char *path) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_int_equal(fclose(file), 0);
}

/* A link in the place of a checkpoint, of an unfinished one, of a file and of a folder in one: what they point to stays
 * as it is, and the links go. */
static void K2_removing_a_checkpoint_follows_no_link(void **state) {
  (void)state;
  rig r = make_rig(0);
  char data[2 * PATH_BYTES], kept[2 * PATH_BYTES], path[2 * PATH_BYTES], inner[2 * PATH_BYTES];
  must(ms_checkpoint_make_folder(in(data, r.folder, "data"), 1));
  make_file(in(kept, data, "kept"));
  make_file(in(path, data, "manifest.json"));

  assert_int_equal(symlink(data, in(path, r.folder, ".step-00000001.5.tmp")), 0);
  must(ms_checkpoint_remove(path));
  assert_int_equal(access(path, F_OK), -1);
  assert_int_equal(symlink(data, in(path, r.folder, "step-2")), 0);
  must(ms_checkpoint_remove(path));
  assert_int_equal(access(path, F_OK), -1);
  assert_int_equal(symlink("nowhere", in(path, r.folder, ".step-3.removed")), 0);
  must(ms_checkpoint_remove(path));
  struct stat about;
  assert_int_equal(lstat(path, &about), -1);

  must(save(&r, 0));
  assert_int_equal(symlink(data, in(path, r.target, "folder")), 0);
  assert_int_equal(symlink(kept, in(path, r.target, "file")), 0);
  must(ms_checkpoint_make_folder(in(inner, r.target, "notes/deep"), 0));
  make_file(in(path, inner, "text"));
  assert_int_equal(symlink(data, in(path, inner, "up")), 0);
  must(ms_checkpoint_remove(r.target));
  assert_int_equal(access(r.target, F_OK), -1);
  assert_int_equal(access(kept, F_OK), 0);

  /* What does not end in a name is no folder of ours. */
  assert_fails(ms_checkpoint_remove(in(path, r.folder, "data/.")), MS_EINVAL, "data/.");
  assert_fails(ms_checkpoint_remove(in(path, r.folder, "data/..")), MS_EINVAL, "data/..");
  assert_fails(ms_checkpoint_remove(in(path, r.folder, "data/")), MS_EINVAL, "data/");
  assert_int_equal(access(kept, F_OK), 0);
  assert_int_equal(unlink(kept), 0);
  assert_int_equal(unlink(in(path, data, "manifest.json")), 0);
  assert_int_equal(rmdir(data), 0);
  free_rig(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(K1_a_state_goes_there_and_back),
      TEST(K3_a_copy_is_written_past_the_page_cache),
      TEST(K2_every_call_may_fail),
      TEST(K2_a_save_is_given_up_although_other_ranks_wait_for_theirs),
      TEST(K2_a_save_that_is_given_up_leaves_no_checkpoint),
      TEST(H10_parts_stay_files_with_checksums_where_hosts_have_folders_of_their_own),
      TEST(K4_folders_without_a_checkpoint_are_refused),
      TEST(K2_removing_a_checkpoint_follows_no_link),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
