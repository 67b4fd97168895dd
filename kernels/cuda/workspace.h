/* workspace.h - workspaces for NVIDIA's libraries, which want them at 256 bytes; those of kernels begin at 64. So more is asked for,
** and the library's begins within it.
*/
#ifndef MS_KERNELS_CUDA_WORKSPACE_H
#define MS_KERNELS_CUDA_WORKSPACE_H

#include <stdint.h>

enum { MS_LIBRARY_ALIGNMENT = 256, MS_LIBRARY_SLACK = MS_LIBRARY_ALIGNMENT - 64 };

/* The first place of a workspace that a library may have; MS_LIBRARY_SLACK bytes are asked for beside what it needs. */
static inline char *ms_library_workspace(void *workspace) {
  const uintptr_t beyond = (uintptr_t)workspace % MS_LIBRARY_ALIGNMENT;
  return (char *)workspace + (beyond ? MS_LIBRARY_ALIGNMENT - beyond : 0);
}

#endif
