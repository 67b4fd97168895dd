/* each_setting.h - the rows of settings.def for a file that wants some kinds of them: define their macros and include
 * this, without a guard. Rows of all other kinds are nothing. All macros are undefined after it.
 */
#ifndef MS_CONFIG
  #define MS_CONFIG(...)
#endif
#ifndef MS_SIZE
  #define MS_SIZE
#endif
#ifndef MS_SETTING
  #define MS_SETTING(...)
#endif
#ifndef MS_POINTER
  #define MS_POINTER(...)
#endif
#ifndef MS_PART
  #define MS_PART(...)
#endif
#ifndef MS_OPTIMIZER
  #define MS_OPTIMIZER(...)
#endif
#ifndef MS_OPTIMIZER_END
  #define MS_OPTIMIZER_END
#endif
#ifndef MS_END
  #define MS_END
#endif
#ifndef MS_NEEDS
  #define MS_NEEDS(...)
#endif
#ifndef MS_EXCLUDES
  #define MS_EXCLUDES(...)
#endif

#include "base/settings/settings.def"

#undef MS_CONFIG
#undef MS_SIZE
#undef MS_SETTING
#undef MS_POINTER
#undef MS_PART
#undef MS_OPTIMIZER
#undef MS_OPTIMIZER_END
#undef MS_END
#undef MS_NEEDS
#undef MS_EXCLUDES
