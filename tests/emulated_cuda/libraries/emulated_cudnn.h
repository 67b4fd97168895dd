/* emulated_cudnn.h - shared by the two files of the emulated cuDNN: descriptors and attributes (emulated_cudnn.c), and
 * the computation of graphs (emulated_cudnn_run.c). */
#ifndef EMULATED_CUDNN_H
#define EMULATED_CUDNN_H

#include <stdint.h>

#include "kernels/cuda/attention/cudnn.h"

enum { BAD_PARAM = 2000, NOT_FINALIZED = 2004, NOT_SUPPORTED = 3000, INTERNAL_ERROR = 4000 };
enum { ATTRIBUTES = 8, VALUES = 32, ALIGNMENT = 16 };

typedef struct attribute {
  int name;
  int64_t count;
  char value[VALUES * 8];
} attribute;

typedef struct descriptor {
  int type, finalized, attributes, choice; /* choice: the plan of a configuration */
  attribute attribute[ATTRIBUTES];
  struct descriptor *graph; /* of a configuration or plan */
} descriptor;

struct context {
  cudaStream_t stream;
};

/* Returns the status and stores the message for cudnnGetLastErrorString. */
__attribute__((format(printf, 2, 3))) int refuse(int status, const char *format, ...);

/* An attribute of a descriptor (NULL: not set), and the values of one that is set. */
const attribute *find_attribute(const descriptor *d, int name);
int int_of(const descriptor *d, int name);
const int64_t *longs_of(const descriptor *d, int name);
int flag_of(const descriptor *d, int name);
/* NULL if the attribute is not set. */
descriptor *one_of(const descriptor *d, int name);

descriptor *const *operations_of(const descriptor *graph, int *count);
/* The workspace of a plan of the graph in bytes. */
int64_t workspace_of(const descriptor *graph, int choice);

#endif
