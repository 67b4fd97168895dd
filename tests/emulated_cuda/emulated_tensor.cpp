/* emulated_tensor.cpp - ldmatrix, mma and cp.async on the host; see emulated_tensor.h. The PTX ISA 9.0 defines how
 * matrix elements are distributed over lanes: 9.7.14.5.15 (ldmatrix), 9.7.14.5.7 (mma.m16n8k8), 9.7.14.5.8
 * (mma.m16n8k16). */
#include "emulated_tensor.h"

#include <cmath>
#include <cstring>
#include <vector>

namespace emulated {

/* ---- asynchronous copies ----------------------------------------------------------------------------------------- */

namespace {

struct Copy {
  void *to;
  const void *from;
  int bytes;
  bool there;
};

/* The copies of one thread of the block: groups in order, the last one still open. */
using Groups = std::vector<std::vector<Copy>>;

thread_local std::vector<Groups> of_thread;
thread_local bool any;

Groups &own_groups() {
  if (of_thread.empty()) of_thread.resize(MAX_THREADS);
  any = true;
  Groups &groups = of_thread[static_cast<size_t>(thread_number())];
  if (groups.empty()) groups.emplace_back();
  return groups;
}

} // namespace

void copy_later(void *shared, const void *global, int bytes, bool there) {
  const uintptr_t unit = static_cast<uintptr_t>(bytes);
  if (reinterpret_cast<uintptr_t>(shared) % unit || reinterpret_cast<uintptr_t>(global) % unit)
    return refuse("a copy of %d bytes from %p to %p is not aligned", bytes, global, shared);
  own_groups().back().push_back({shared, global, bytes, there});
}

void commit_copies() { own_groups().emplace_back(); }

void wait_copies(int left) {
  Groups &groups = own_groups();
  while (groups.size() > static_cast<size_t>(left) + 1) {
    for (const Copy &copy : groups.front())
      if (copy.there) memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
      else memset(copy.to, 0, static_cast<size_t>(copy.bytes));
    groups.erase(groups.begin());
  }
}

void forget_copies() {
  if (any)
    for (Groups &groups : of_thread) groups.clear();
  any = false;
}

/* ---- matrices ---------------------------------------------------------------------------------------------------- */

namespace {

struct Load {
  unsigned *matrices;
  const void *row;
};

struct Multiply {
  float *c;
  const unsigned *a;
  unsigned b[2];
};

float low(unsigned pair) {
  const unsigned bits = pair << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

float high(unsigned pair) { return low(pair >> 16); }

float kept_of_tf32(unsigned bits) {
  bits &= ~0x1fffu;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* c [16][8] = a b; each lane adds its elements of c to its results. */
template <int K>
void add_product(void *const *lanes, const float (&a)[16][K], const float (&b)[K][8], float (&c)[16][8]) {
  for (int row = 0; row < 16; row++)
    for (int k = 0; k < K; k++)
      for (int column = 0; column < 8; column++) c[row][column] += a[row][k] * b[k][column];
  for (int l = 0; l < WARP; l++)
    for (int i = 0; i < 4; i++) static_cast<Multiply *>(lanes[l])->c[i] += c[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
}

} // namespace

void load_matrices(unsigned (&matrices)[4], const void *row, bool transposed) {
  Load load = {matrices, row};
  collective(transposed ? Collective::load_transposed : Collective::load, 0xffffffffu,
             reinterpret_cast<uint64_t>(&load));
}

void load_lanes(void *const *lanes, bool transposed) {
  unsigned short element[4][8][8];
  for (int l = 0; l < WARP; l++) {
    const void *row = static_cast<Load *>(lanes[l])->row;
    if (reinterpret_cast<uintptr_t>(row) % 16) return refuse("lane %d loads a matrix row from unaligned %p", l, row);
    memcpy(element[l / 8][l % 8], row, sizeof element[0][0]);
  }
  for (int l = 0; l < WARP; l++)
    for (int i = 0; i < 4; i++) {
      const int row = l / 4, column = l % 4 * 2;
      const unsigned first = transposed ? element[i][column][row] : element[i][row][column];
      const unsigned second = transposed ? element[i][column + 1][row] : element[i][row][column + 1];
      static_cast<Load *>(lanes[l])->matrices[i] = first | second << 16;
    }
}

void multiply_tiles(float (&c)[4], const unsigned (&a)[4], unsigned b_low, unsigned b_high) {
  Multiply multiply = {c, a, {b_low, b_high}};
  collective(Collective::multiply, 0xffffffffu, reinterpret_cast<uint64_t>(&multiply));
}

void multiply_lanes(void *const *lanes) {
  float a[16][16], b[16][8], c[16][8] = {};
  for (int l = 0; l < WARP; l++) {
    const Multiply *m = static_cast<const Multiply *>(lanes[l]);
    const int group = l / 4, in_group = l % 4;
    for (int i = 0; i < 4; i++) {
      const int row = group + i % 2 * 8, column = in_group * 2 + i / 2 * 8;
      a[row][column] = low(m->a[i]);
      a[row][column + 1] = high(m->a[i]);
    }
    for (int i = 0; i < 2; i++) {
      b[in_group * 2 + i * 8][group] = low(m->b[i]);
      b[in_group * 2 + i * 8 + 1][group] = high(m->b[i]);
    }
  }
  add_product<16>(lanes, a, b, c);
}

/* Rounds to nearest, halves away from zero; infinity and NaN are kept. */
unsigned round_tf32(float x) {
  constexpr unsigned DROPPED = 0x1fff, HALF = 0x1000, QUIET = 0x400000;
  unsigned bits;
  memcpy(&bits, &x, sizeof bits);
  return std::isfinite(x) ? (bits + HALF) & ~DROPPED : std::isnan(x) ? bits | QUIET : bits;
}

void multiply_tf32(float (&c)[4], const unsigned (&a)[4], unsigned b_low, unsigned b_high) {
  Multiply multiply = {c, a, {b_low, b_high}};
  collective(Collective::multiply_tf32, 0xffffffffu, reinterpret_cast<uint64_t>(&multiply));
}

void multiply_tf32_lanes(void *const *lanes) {
  float a[16][8], b[8][8], c[16][8] = {};
  for (int l = 0; l < WARP; l++) {
    const Multiply *m = static_cast<const Multiply *>(lanes[l]);
    for (int i = 0; i < 4; i++) a[l / 4 + i % 2 * 8][l % 4 + i / 2 * 4] = kept_of_tf32(m->a[i]);
    for (int i = 0; i < 2; i++) b[l % 4 + i * 4][l / 4] = kept_of_tf32(m->b[i]);
  }
  add_product<8>(lanes, a, b, c);
}

} // namespace emulated
