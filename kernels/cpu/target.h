/* target.h - code for instruction sets beyond baseline x86-64. Functions between MS_TARGET_BEGIN and MS_TARGET_END are
 * compiled for the named features; callers must check ms_cpu_is_v3 or its siblings before they run them.
 *
 * GCC and clang use different pragmas. Include intrinsics headers, which set targets themselves, before the macros.
 */
#ifndef MS_KERNELS_CPU_TARGET_H
#define MS_KERNELS_CPU_TARGET_H

#if defined(__x86_64__)
  #include <cpuid.h>
  #include <immintrin.h>

  #define MS_TARGET_PRAGMA(text) _Pragma(#text)
  #if defined(__clang__)
    #define MS_TARGET_BEGIN(features) \
      MS_TARGET_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
    #define MS_TARGET_END MS_TARGET_PRAGMA(clang attribute pop)
  #else
    #define MS_TARGET_BEGIN(features) MS_TARGET_PRAGMA(GCC push_options) MS_TARGET_PRAGMA(GCC target(features))
    #define MS_TARGET_END MS_TARGET_PRAGMA(GCC pop_options)
  #endif

/* One bit of a register that CPUID sets; `which` 0 to 3 selects EAX, EBX, ECX or EDX. */
static inline int ms_cpu_bit(unsigned leaf, int which, int bit) {
  unsigned registers[4] = {0, 0, 0, 0};
  return __get_cpuid_count(leaf, 0, &registers[0], &registers[1], &registers[2], &registers[3]) &&
         (registers[which] >> bit & 1);
}

/* The psABI levels. __builtin_cpu_supports also checks that the operating system enables the wide registers. clang 14
 * knows neither the level names nor some of their instructions. */
static inline int ms_cpu_is_v3(void) {
  enum { LEAF = 1, MOVBE = 22, F16C = 29, EXTENDED_LEAF = 0x80000001, LZCNT = 5, ECX = 2 };
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && ms_cpu_bit(LEAF, ECX, MOVBE) && ms_cpu_bit(LEAF, ECX, F16C) &&
         ms_cpu_bit(EXTENDED_LEAF, ECX, LZCNT);
}

static inline int ms_cpu_is_v4(void) {
  return ms_cpu_is_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static inline int ms_cpu_multiplies_bf16(void) { return ms_cpu_is_v4() && __builtin_cpu_supports("avx512bf16"); }

/* Whether the processor has AMX tiles; Linux must also permit their use. */
static inline int ms_cpu_has_bf16_tiles(void) {
  enum { LEAF = 7, AMX_BF16 = 22, AMX_TILE = 24, EDX = 3 };
  return ms_cpu_bit(LEAF, EDX, AMX_TILE) && ms_cpu_bit(LEAF, EDX, AMX_BF16);
}
#endif

#endif
