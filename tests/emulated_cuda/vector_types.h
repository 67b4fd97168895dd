/* vector_types.h - the toolkit's short vectors and dim3, with their alignments. */
#ifndef EMULATED_VECTOR_TYPES_H
#define EMULATED_VECTOR_TYPES_H

#define EMULATED_VECTOR(name, type, alignment_of_2, alignment_of_4) \
  typedef struct name##1 {                                          \
    type x;                                                         \
  }                                                                 \
  name##1;                                                          \
  typedef struct __attribute__((aligned(alignment_of_2))) name##2 { \
    type x, y;                                                      \
  }                                                                 \
  name##2;                                                          \
  typedef struct name##3 {                                          \
    type x, y, z;                                                   \
  }                                                                 \
  name##3;                                                          \
  typedef struct __attribute__((aligned(alignment_of_4))) name##4 { \
    type x, y, z, w;                                                \
  }                                                                 \
  name##4;

EMULATED_VECTOR(uchar, unsigned char, 2, 4)
EMULATED_VECTOR(ushort, unsigned short, 4, 8)
EMULATED_VECTOR(int, int, 8, 16)
EMULATED_VECTOR(uint, unsigned int, 8, 16)
EMULATED_VECTOR(float, float, 8, 16)
EMULATED_VECTOR(double, double, 16, 16)

#undef EMULATED_VECTOR

#ifdef __cplusplus
struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1) : x(vx), y(vy), z(vz) {}
};
#else
typedef struct dim3 {
  unsigned int x, y, z;
} dim3;
#endif

#endif
