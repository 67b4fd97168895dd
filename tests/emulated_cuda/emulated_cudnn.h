/* emulated_cudnn.h - what the two halves of the emulated cuDNN share: descriptors and their attributes
 * (emulated_cudnn.c), and the computing of graphs (emulated_cudnn_run.c).
 */
#ifndef EMULATED_CUDNN_H
#define EMULATED_CUDNN_H

#include <stdint.h>

#include "kernels/cuda/cudnn.h"

enum { BAD_PARAM = 2000, NOT_FINALIZED = 2004, NOT_SUPPORTED = 3000, INTERNAL_ERROR = 4000 };
enum { ATTRIBUTES = 8, VALUES = 32, ALIGNMENT = 16 };

typedef struct attribute {
  int name;
  int64_t count;
  char value[VALUES * 8];
} attribute;

typedef struct descriptor {
  int type, finalized, attributes, choice; /* choice: of a configuration, which plan */
  attribute attribute[ATTRIBUTES];
  struct descriptor *graph; /* of a configuration */
} descriptor;

struct context {
  cudaStream_t stream;
};

/* The status, and what the library last said. */
__attribute__((format(printf, 2, 3))) int refuse(int status, const char *format, ...);

/* An attribute of a descriptor, NULL: it is not set; and the values of one that is. */
const attribute *find_attribute(const descriptor *d, int name);
int int_of(const descriptor *d, int name);
const int64_t *longs_of(const descriptor *d, int name);
int flag_of(const descriptor *d, int name);
/* NULL when it is not set. */
descriptor *one_of(const descriptor *d, int name);

descriptor *const *operations_of(const descriptor *graph, int *count);
/* Bytes that a plan of the graph needs. */
int64_t workspace_of(const descriptor *graph, int choice);

#endif
