/* files.h - data on disk: safetensors files, token files, tokenizers and checkpoints.
 *
 * A part of moonshard.h, which explains the conventions. The Lua layer parses the text between the two ffi marks: it
 * contains no preprocessor directives, and no function returns a 64-bit value.
 */
#ifndef MOONSHARD_FILES_H
#define MOONSHARD_FILES_H

#include <moonshard/base.h>
#include <moonshard/exec.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ffi:begin */

/* ---- text files ------------------------------------------------------------------------------------------------- */

/* Reads a whole regular file, and appends a zero byte. MS_EINVAL if it does not exist or is a folder, a pipe or a
 * device; the call never waits for one. Release the text with ms_file_text_free. */
MS_API int ms_file_read_text(const char *path, char **text, int64_t *bytes);
MS_API void ms_file_text_free(char *text);

/* ---- safetensors ------------------------------------------------------------------------------------------------ */

typedef struct ms_safetensors ms_safetensors;
/* ms_free of a writer that was not finished removes what was written. */
typedef struct ms_safetensors_writer ms_safetensors_writer;

/* A tensor of a file. The handle owns texts and dims. ms_safetensors_create reads name, dtype, ndim and dims. */
typedef struct ms_safetensors_tensor {
  const char *name;
  const char *dtype; /* in the format's spelling: BOOL U8 I8 I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64 F8_E4M3 ... */
  int bits;          /* of one element: 4, 6, 8, 16, 32 or 64 */
  int ndim;
  const int64_t *dims; /* [ndim]; ndim and each size can be 0 */
  int64_t elements;
  int64_t offset, bytes; /* the position of its data in the file, and its size */
  const char *file;      /* the path of the file that contains it */
  /* Its data in the mapped file, little-endian and row-major, aligned as in the file; only pages that are touched are
   * read. The file must not be truncated while it is open. */
  const void *data;
} ms_safetensors_tensor;

/* Opens one file, an index (a path that ends in ".index.json"), or a folder: its model.safetensors, the files listed in
 * its model.safetensors.index.json, or its only safetensors file. Reads only headers, and checks every rule of the
 * format. *tensors (can be NULL): how many there are. MS_EINVAL names file, tensor and field; MS_EIO is an error of the
 * system. */
MS_API int ms_safetensors_open(const char *path, ms_safetensors **file, int *tensors);
/* Tensors are sorted by name (bytes of UTF-8, ascending). */
MS_API int ms_safetensors_describe(const ms_safetensors *file, int i, ms_safetensors_tensor *tensor, int size);
MS_API int ms_safetensors_find(const ms_safetensors *file, const char *name); /* the tensor's index, or -1 */
/* A tensor as the f32 matrix that a program has in memory: its element [r, c] is element
 * first + r * row_stride + c * column_stride of the tensor. One stride must be 1; row_stride 1 is a transposed view. */
typedef struct ms_safetensors_view {
  int struct_size; /* set by ms_config_default */
  /* 0 (default): all elements, as they are stored. What follows then keeps its defaults, too: 0, 0 and 1. */
  int64_t rows, columns;
  int64_t first, row_stride, column_stride;
} ms_safetensors_view;

/* Reads part of a tensor. view NULL: its bytes [first, first + count) as they are. Otherwise elements
 * [first, first + count) of the view, row by row, as f32; the tensor must be F32, BF16, F16, F64, F8_E4M3, F8_E5M2 or
 * F8_E8M0 (MS_EDTYPE). *bytes (can be NULL): how many bytes of the file it read. MS_EIO, not a signal, if the file was
 * truncated or the disk fails. */
MS_API int ms_safetensors_read(const ms_safetensors *file, int i, const ms_safetensors_view *view, int64_t first,
                               int64_t count, void *out, int64_t *bytes);
/* XXH3 (64 bits) of bytes [first, first + bytes) of a tensor; bytes -1: of all from `first` on. hex is [17]: 16
 * hexadecimal digits and a zero byte. */
MS_API int ms_safetensors_checksum(const ms_safetensors *file, int i, int64_t first, int64_t bytes, char *hex);
/* The i-th entry of __metadata__: those of the index, whose values can be any JSON, then those of each file. *key is
 * NULL after the last one. */
MS_API int ms_safetensors_metadata(const ms_safetensors *file, int i, const char **key, const char **value,
                                   const char **path);

typedef struct ms_safetensors_config {
  int struct_size;                  /* set by ms_config_default */
  int metadata;                     /* number of entries of __metadata__; 0 (default): none */
  const char *const *metadata_text; /* [2 * metadata]: key, value, key, value, ... */
  int atomic; /* 1 (default): the path changes only when the file is complete; 0: writes to the path itself */
  int sync;   /* 1: finish returns when the file (and its folder if atomic) is on disk (fsync); default 0 */
  int direct; /* 1: data start at a multiple of 4096 bytes, to bypass the page cache; 0 (default): of 8 bytes */
} ms_safetensors_config;

/* Creates a file of n tensors, each declared in `size` bytes, and writes its header. config can be NULL. Data are in
 * the order of the reference library, by alignment and then by name, so each tensor is aligned to its elements. */
MS_API int ms_safetensors_create(const char *path, int n, const ms_safetensors_tensor *tensors, int size,
                                 const ms_safetensors_config *config, ms_safetensors_writer **writer);
/* Writes what ms_safetensors_read reads to the i-th declared tensor, rounding f32 to its type; in any order, but each
 * byte once. */
MS_API int ms_safetensors_write(ms_safetensors_writer *writer, int i, const ms_safetensors_view *view, int64_t first,
                                int64_t count, const void *data);
/* Completes the file and releases the writer. On an error it removes the file and releases the writer, too; MS_EINVAL
 * names a tensor with missing bytes. */
MS_API int ms_safetensors_finish(ms_safetensors_writer *writer);

/* ---- token data ------------------------------------------------------------------------------------------------- */

typedef struct ms_tokens ms_tokens;
typedef struct ms_token_reader ms_token_reader;

/* FILES: token files in the format of llm.c: a header of 256 int32 (magic 20240520 and version 1: 16-bit tokens; magic
 * 20240801 and version 7: 32-bit tokens; then the number of tokens, or from 2^31 on, -1 and the number as an int64),
 * followed by the tokens. Or pairs of Megatron's, by either name: NAME.bin, integers without a header, and NAME.idx,
 * which begins with MMIDIDX; NAME.bin is one of a pair where NAME.idx exists and it has no header of its own.
 * BYTES: any files; each byte is a token. */
enum ms_token_kind { MS_TOKEN_FILES = 0, MS_TOKEN_BYTES = 1 };

/* Maps files as one stream of tokens, in this order, of which there are *count (can be NULL). MS_EINVAL names a file
 * that does not exist, or the field that is wrong (too short, too long, another format); MS_EIO is an error of the
 * system. */
MS_API int ms_tokens_open(int files, const char *const *paths, int kind, ms_tokens **tokens, int64_t *count);
/* Copies tokens [first, first + count). MS_EIO if a file was truncated after it was opened; MS_EINVAL names a value
 * that is below 0 or above INT32_MAX. */
MS_API int ms_tokens_read(const ms_tokens *tokens, int64_t first, int64_t count, int32_t *out);

/* Starts a thread that reads batches ahead, each of `rows` samples of `columns` tokens. At most `slots` batches can be
 * requested and not yet taken. */
MS_API int ms_token_reader_new(ms_tokens *tokens, int rows, int columns, int slots, ms_token_reader **reader);
/* Requests a batch and returns at once. first is [rows]: where each sample begins. MS_EINVAL if no slot is free. */
MS_API int ms_token_reader_request(ms_token_reader *reader, const int64_t *first);
/* Takes the oldest requested batch: tokens is [rows][columns], and targets are the same shifted by one. Waits at most
 * `seconds` (MS_ETIMEOUT). If reading failed, returns that error. MS_EINTERRUPT after Ctrl-C; the batch can still be
 * taken. */
MS_API int ms_token_reader_take(ms_token_reader *reader, double seconds, int32_t *tokens, int32_t *targets);
/* Discards all batches that were requested and not taken. Waits for them as take does. */
MS_API int ms_token_reader_discard(ms_token_reader *reader, double seconds);

/* ---- tokenizers ------------------------------------------------------------------------------------------------- */

typedef struct ms_tokenizer ms_tokenizer;

/* Reads a tokenizer.json, or the one in a folder: BPE, of bytes or of characters, Unigram, WordPiece or WordLevel.
 * MS_EUNSUPPORTED and MS_EINVAL name the field that is not supported, unknown or wrong. Added tokens have the ids that
 * the reference library gives them: that of the vocabulary, or the next number after it; those in the list have no
 * effect. */
MS_API int ms_tokenizer_open(const char *path, ms_tokenizer **tokenizer);
/* The tokenizer owns the lists. */
typedef struct ms_tokenizer_info {
  int vocab; /* the largest id + 1 */
  /* The tokens that the post_processor of tokenizer.json puts before and after one text. */
  const int32_t *before, *behind;
  int64_t n_before, n_behind;
  /* The ids of added tokens: those that are found in a text before it is cut into pieces. */
  const int32_t *added;
  int64_t n_added;
  const int32_t *added_flags; /* of each, how: enum ms_added_flag */
  const char *model;          /* "byte-level BPE", "BPE", "Unigram", "WordPiece" or "WordLevel" */
} ms_tokenizer_info;
/* MS_ADDED_LSTRIP, MS_ADDED_RSTRIP: the blanks before it, after it, are its own. MS_ADDED_SINGLE_WORD: not next to a
 * letter, a digit or a mark. */
enum ms_added_flag { MS_ADDED_LSTRIP = 1, MS_ADDED_RSTRIP = 2, MS_ADDED_SINGLE_WORD = 4 };
MS_API int ms_tokenizer_describe(const ms_tokenizer *tokenizer, ms_tokenizer_info *info, int size);
/* The id of a token in the spelling of tokenizer.json; -1 if there is none. */
MS_API int ms_tokenizer_find(const ms_tokenizer *tokenizer, const char *token);
/* The tokens of a text. Added (special) tokens that occur in the text become their ids; none are put around it. The
 * tokenizer owns ids, which are valid until its next call. MS_EINVAL for text that is not UTF-8. */
MS_API int ms_tokenizer_encode(ms_tokenizer *tokenizer, const char *text, int64_t bytes, const int32_t **ids,
                               int64_t *count);
/* The text of tokens, including special ones; it can end within a character. The tokenizer owns the text, which is
 * valid until its next call. */
MS_API int ms_tokenizer_decode(ms_tokenizer *tokenizer, const int32_t *ids, int64_t count, const char **text,
                               int64_t *bytes);

typedef struct ms_tokenize_config {
  int struct_size; /* set by ms_config_default */
  int begin, end;  /* ids put before and after each document; -1 (default): none */
  int threads;     /* 0 (default): all cores that this process may use */
  int replace;     /* 1: invalid UTF-8 becomes U+FFFD; 0 (default): it is MS_EINVAL, which names the place */
  int documents;   /* 1: a file has several, each ended by a byte 0xff, which UTF-8 never has; 0 (default): it is one */
} ms_tokenize_config;

/* Writes the tokens of text files to the token file `out`, which appears when it is complete. The result does not
 * depend on the number of threads. config can be NULL. *bytes: how many were read; *tokens: how many were written;
 * *width: in how many bytes each, 2 if the vocabulary fits, else 4; all three can be NULL. MS_EINTERRUPT after Ctrl-C.
 */
MS_API int ms_tokenize_files(const ms_tokenizer *tokenizer, int files, const char *const *paths, const char *out,
                             const ms_tokenize_config *config, int64_t *bytes, int64_t *tokens, int *width);

/* ---- checkpoints ------------------------------------------------------------------------------------------------ */

/* A checkpoint is a folder: a safetensors file from each rank that writes, and manifest.json, which lists the tensors
 * and has a checksum for every block of MS_CHECKPOINT_BLOCK bytes of each. It is written to a temporary folder and
 * synced to disk, manifest last, and then renamed to its final name. */
enum { MS_CHECKPOINT_BLOCK = 4194304 };

/* Elements of a tensor of the state that this rank saves as a tensor of its file. */
typedef struct ms_save_piece {
  const char *name;      /* of the tensor in the file */
  const char *parameter; /* for the manifest: the parameter's name, and the kind of tensor ("param", "exp_avg") */
  const char *kind;
  int param; /* as in ms_state_read, and enum ms_tensor_kind */
  int what;
  int64_t first, count; /* elements of the flattened parameter; count > 0 */
  int ndim;
  int64_t dims[MS_MAX_DIMS]; /* of the tensor in the file; their product is count */
} ms_save_piece;

typedef struct ms_save_config {
  int struct_size;    /* set by ms_config_default */
  const char *folder; /* the temporary folder, which must exist and be empty */
  int writer;         /* the index of this rank among those that write: 3 writes rank-00003.safetensors */
  int asynchronous;   /* 1: copies the state, and a thread writes the copy while training continues */
  /* For the rank that commits; NULL or 0 on the others: */
  const char *target;         /* the final name, which must not exist */
  int writers;                /* how many ranks write into this folder */
  const char *head;           /* the manifest without its list of files: a JSON object that is not empty */
  int retired;                /* how many checkpoints to remove after the commit */
  const char *const *retires; /* [retired] their paths */
  /* For ranks whose folders are not one: each host keeps the parts that were written on it, and one rank a folder
   * commits. NULL where all ranks share the folder. */
  const char *part_head; /* members of a JSON object, "host":"a"; every part of the manifest then begins with them and
                            stays a file of its own, rank-00003.json, with a checksum, and the manifest lists
                            no files */
  const int *awaits;     /* [writers] the indices of the ranks whose parts the commit waits for; NULL: all from 0 */
} ms_save_config;

typedef struct ms_save ms_save;
enum ms_save_stage { MS_SAVE_WRITTEN = 0, MS_SAVE_COMMITTED = 1, MS_SAVE_ENDED = 2 };

/* Prepares saving: the pieces that this rank writes in every checkpoint of a state, of `size` bytes each. */
MS_API int ms_save_new(ms_state *state, int n, const ms_save_piece *pieces, int size, ms_save **save);
/* Starts a save; the previous one must have ended. Synchronous: returns when this rank's file is on disk. Asynchronous:
 * returns when the state is copied; the rank that commits does so in the background once all files exist. Not
 * collective. */
MS_API int ms_save_start(ms_save *save, const ms_save_config *config);
/* Waits until this rank's file is on disk (WRITTEN), or, on the rank that commits, until the checkpoint has its final
 * name (COMMITTED). Synchronous saves commit in this call, so all ranks must have told each other that they have
 * written. Returns the error if writing failed, or MS_ETIMEOUT after `patience` seconds without progress; 0: the
 * timeout of the world. Not collective.
 *
 * ENDED: until a save in the background has ended on this rank, whatever has become of others, before the process ends
 * with an error. Progress is then that of this rank, or of others of its host that wait so, too, and patience at most
 * 2 s once a rank has failed. A launcher lets ranks that wait so go on for up to 30 s. */
MS_API int ms_save_wait(ms_save *save, int stage, double patience);
/* 1 while a save runs in the background. */
MS_API int ms_save_running(const ms_save *save);
/* Stops a save that is running; there will be no checkpoint. */
MS_API void ms_save_stop(ms_save *save);
/* Makes a folder and its missing parents. fresh 1: the folder must not exist yet; 0: it may, and it is synced to disk.
 */
MS_API int ms_checkpoint_make_folder(const char *path, int fresh);
/* Removes a checkpoint's folder. Renames it first, so that a partly removed folder is never taken for a checkpoint.
 * Does not touch a folder without a manifest, unless its name begins with a dot. Follows no symbolic link: removes the
 * link itself, also one in the folder's place, and nothing of another file system. */
MS_API int ms_checkpoint_remove(const char *path);
/* Reads the manifest (writer -1) and verifies the checksum at its end; or the part of a writer, which is a file only if
 * it was saved with part_head. Release the text with ms_file_text_free. */
MS_API int ms_checkpoint_read(const char *folder, int writer, char **text);

/* Elements of a parameter, or of a part of it, that a tensor of a file contains. */
typedef struct ms_saved_piece {
  const ms_safetensors *file;
  int tensor;            /* its index in the file; its dtype must be F32, of a stored form I32 */
  int64_t first;         /* its first element, counted in the flattened part */
  ms_division part;      /* which part of the parameter; all 0: the whole */
  const char *checksums; /* 16 hexadecimal digits for each block of the tensor (see MS_CHECKPOINT_BLOCK): every block
                            that is needed is read whole and verified; NULL: no verification */
} ms_saved_piece;

/* Restores elements [first, first + count) of a tensor of the state, which this rank must own, from a piece. A piece of
 * the part that this rank has must contain all of them; of a piece of another part, those are restored that it has.
 * Adds the bytes read to *bytes. MS_EIO if a checksum differs; the state can be partly overwritten by then. No other
 * rank may be reading: see ms_state_write. */
MS_API int ms_state_load(ms_state *state, int param, int what, int64_t first, int64_t count,
                         const ms_saved_piece *piece, int size, int64_t *bytes);

/* ffi:end */

#ifdef __cplusplus
}
#endif
#endif
