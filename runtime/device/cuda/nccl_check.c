/* nccl_check.c - compares our declarations of NCCL with its own header at compile time, if the toolkit has it. */
#include "device/cuda/nccl.h"

#if !defined(EMULATED_CUDA) && __has_include(<nccl.h>)

  #include <nccl.h>

_Static_assert((int)ncclSuccess == (int)MS_NCCL_SUCCESS && (int)ncclInProgress == (int)MS_NCCL_IN_PROGRESS, "results");
_Static_assert((int)ncclSum == (int)MS_NCCL_SUM, "operations");
_Static_assert((int)ncclFloat32 == (int)MS_NCCL_FLOAT32 && (int)ncclBfloat16 == (int)MS_NCCL_BFLOAT16, "types");
_Static_assert(sizeof(ncclUniqueId) == sizeof(ms_nccl_id), "ids");
_Static_assert(offsetof(ncclConfig_t, blocking) == offsetof(ms_nccl_config, blocking), "config: blocking");
_Static_assert(offsetof(ncclConfig_t, netName) == offsetof(ms_nccl_config, net_name), "config: netName");
  #if NCCL_VERSION_CODE >= 22800
_Static_assert(sizeof(ncclConfig_t) == sizeof(ms_nccl_config), "config");
_Static_assert(offsetof(ncclConfig_t, CTAPolicy) == offsetof(ms_nccl_config, cta_policy), "config: CTAPolicy");
_Static_assert((int)NCCL_CTA_POLICY_ZERO == (int)MS_NCCL_CTA_POLICY_ZERO, "policies");
_Static_assert((int)NCCL_WIN_COLL_SYMMETRIC == (int)MS_NCCL_WINDOW_SYMMETRIC, "windows");
  #endif
_Static_assert(offsetof(ncclConfig_t, splitShare) == offsetof(ms_nccl_config, split_share), "config: splitShare");

#endif

/* ISO C does not allow an empty translation unit. */
typedef int ms_nccl_is_checked;
