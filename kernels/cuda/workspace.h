/* workspace.h - workspaces for NVIDIA's libraries, which require 256-byte alignment, while kernel workspaces have 64.
 * Callers request MS_LIBRARY_SLACK extra bytes, and the library's part begins at the first suitable address. */
#ifndef MS_KERNELS_CUDA_WORKSPACE_H
#define MS_KERNELS_CUDA_WORKSPACE_H

#include <stdint.h>

enum { MS_LIBRARY_ALIGNMENT = 256, MS_LIBRARY_SLACK = MS_LIBRARY_ALIGNMENT - 64 };

/* The first address in a workspace that a library can use. */
static inline char *ms_library_workspace(void *workspace) {
  const uintptr_t beyond = (uintptr_t)workspace % MS_LIBRARY_ALIGNMENT;
  return (char *)workspace + (beyond ? MS_LIBRARY_ALIGNMENT - beyond : 0);
}

#endif
