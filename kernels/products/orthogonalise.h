/* orthogonalise.h - the Newton-Schulz iteration of Muon (Jordan et al. 2024), with the coefficients and the order of
 * torch.optim.Muon: x = u / max(|u|, 1e-7), then a few times
 *
 *   g = x x',  x = a x + (b g + c g g) x           of a wide matrix [m,n], m <= n
 *   g = x' x,  x = a x + x (b g + c g g)           of a tall one: the same numbers without a transposed copy
 *
 * A stack of matrices takes them one after the other, in the same workspace.
 *
 * Singular values end between 0.7 and 1.2. The op is a sequence of other kernels of one device, the same on all
 * devices. In f32 all of it is f32. With dtype 1, each step rounds x to bf16, and its products read x, g and the
 * polynomial of g in bf16, as PyTorch does; sums are in f32. All of a step reads the same rounded x: the iteration
 * corrects what x is off by, but not what one of its terms is.
 */
#ifndef MS_KERNELS_ORTHOGONALISE_H
#define MS_KERNELS_ORTHOGONALISE_H

#include "kernels/op.h"

enum ms_orthogonalise_dtype { MS_ORTHOGONALISE_F32 = 0, MS_ORTHOGONALISE_BF16 = 1 };

/* The kernels of a call, in the order in which they first run. */
enum ms_orthogonalise_kernel {
  MS_NS_SQUARES, /* |u|^2 */
  MS_NS_ROOT,
  MS_NS_MIN,       /* max(|u|, 1e-7) */
  MS_NS_NORMALISE, /* x */
  MS_NS_ROUND_X,   /* x in bf16, if products are; also of the other places of x */
  MS_NS_GRAM,      /* g */
  MS_NS_ROUND_G,   /* g, and later b g + c g g, in bf16 */
  MS_NS_TIMES_BC,  /* (b / c) g */
  MS_NS_ADD_GG,    /* (b / c) g + g g */
  MS_NS_TIMES_C,   /* b g + c g g, which is rounded only once */
  MS_NS_WIDEN_X,   /* x, which was rounded, in f32 */
  MS_NS_TIMES_A,   /* a x */
  MS_NS_ADD_GX,    /* a x + (b g + c g g) x */
  MS_NS_KERNELS
};

typedef struct ms_orthogonalise {
  ms_kernel_call call[MS_NS_KERNELS]; /* pointers are not set; without inputs: not needed */
  const ms_kernel *(*kernel_of)(int op);
  int64_t norm, x, rounded_x, gram, rounded_g, polynomial, scratch; /* offsets in the workspace, bytes */
} ms_orthogonalise;

/* The matrices of [m,n], one, or of [matrices,m,n]; their rows, and columns. */
static inline int64_t ms_orthogonalise_matrices(const ms_value_info *u) { return u->ndim == 3 ? u->dims[0] : 1; }
static inline int64_t ms_orthogonalise_rows(const ms_value_info *u) { return u->dims[u->ndim - 2]; }
static inline int64_t ms_orthogonalise_columns(const ms_value_info *u) { return u->dims[u->ndim - 1]; }
/* The smaller size of each, whose square g has; the larger one. */
static inline int64_t ms_orthogonalise_inner(const ms_value_info *u) {
  const int64_t rows = ms_orthogonalise_rows(u), columns = ms_orthogonalise_columns(u);
  return rows < columns ? rows : columns;
}
static inline int64_t ms_orthogonalise_outer(const ms_value_info *u) {
  const int64_t rows = ms_orthogonalise_rows(u), columns = ms_orthogonalise_columns(u);
  return rows < columns ? columns : rows;
}
/* Operations of the products: each step of a matrix 4 m^2 n for g and its product with x, and 2 m^3 for g g. */
static inline double ms_orthogonalise_flops(int64_t steps, const ms_value_info *u) {
  const double m = (double)ms_orthogonalise_inner(u), n = (double)ms_orthogonalise_outer(u);
  return (double)(ms_orthogonalise_matrices(u) * steps) * (4 * m * m * n + 2 * m * m * m);
}

/* call: muon_orthogonalise. Prepares its kernels and requests the workspace. If it fails, nothing stays prepared. */
int ms_orthogonalise_prepare(ms_kernel_call *call, const ms_kernel *(*kernel_of)(int op), ms_orthogonalise *made);
int ms_orthogonalise_bind(const ms_orthogonalise *o, const ms_kernel_call *call);
int ms_orthogonalise_run(const ms_orthogonalise *o, const ms_kernel_call *call);
void ms_orthogonalise_release(const ms_orthogonalise *o);

#endif
