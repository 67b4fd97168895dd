/* emulated_block.cpp - fibers, barriers and warp operations; see emulated_block.h. */
#include "emulated_tensor.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
  #include <sanitizer/asan_interface.h>
  #include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
  #include <ucontext.h>
#endif

namespace emulated {

__thread Place here;

/* ---- switching stacks -------------------------------------------------------------------------------------------- */

#if defined(__SANITIZE_ADDRESS__)
enum { STACK_BYTES = 128 * 1024 };
#else
enum { STACK_BYTES = 64 * 1024 };
#endif

/* Where a suspended fiber continues. */
#if defined(__x86_64__)
typedef void *Context;
#else
typedef ucontext_t Context;
#endif

struct Stack {
  char *bottom; /* NULL: the host thread's own stack, before the first switch away from it */
  size_t bytes;
};

#if defined(__x86_64__)
/* Saves the registers that a called function must preserve, changes stacks, and returns on the other one. swapcontext
 * would need two system calls. */
extern "C" void emulated_switch(Context *from, Context to);
asm(R"(
.text
.type emulated_switch, @function
emulated_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulated_switch, .-emulated_switch
)");

static Context fresh_context(const Stack &stack, size_t color, void (*entry)()) {
  void **top = reinterpret_cast<void **>(stack.bottom + stack.bytes - color);
  *--top = nullptr;
  *--top = reinterpret_cast<void *>(entry);
  for (int i = 0; i < 6; i++) *--top = nullptr;
  return top;
}

static void switch_context(Context *from, Context *to) { emulated_switch(from, *to); }
#else
static Context fresh_context(const Stack &stack, size_t color, void (*entry)()) {
  Context context;
  getcontext(&context);
  context.uc_stack.ss_sp = stack.bottom;
  context.uc_stack.ss_size = stack.bytes - color;
  context.uc_link = nullptr;
  makecontext(&context, entry, 0);
  return context;
}

static void switch_context(Context *from, Context *to) { swapcontext(from, to); }
#endif

/* ---- a block ----------------------------------------------------------------------------------------------------- */

enum class State : unsigned char { fresh, ready, at_barrier, in_warp, done };

struct Thread {
  uint3 index;
  State state;
  int stack; /* index of its stack in Machine; -1: none */
  Context context;
  Collective kind;
  unsigned mask;
  int source;
  Site site;
  uint64_t value, result;
};

/* A host thread's state for running blocks; created once. */
struct Machine {
  Thread thread[MAX_THREADS];
  Stack stack[MAX_THREADS];
  int free_stack[MAX_THREADS], free_stacks;
  char *memory; /* all stacks */
  Stack host;
  Context host_context;

  const char *name;
  const Body *run;
  char *shared;
  size_t shared_capacity;
  int threads, current, step; /* step: 1 or -1, the order of threads */
  int arrived, done;
  Site meeting; /* the line where the first thread arrived */
  int in_warp[MAX_THREADS / WARP], done_in_warp[MAX_THREADS / WARP];
  bool failed;

  Machine();
  ~Machine();
};

static thread_local std::unique_ptr<Machine> machine;

Machine::Machine() : host{nullptr, 0}, shared(nullptr), shared_capacity(0) {
  const size_t bytes = static_cast<size_t>(MAX_THREADS) * STACK_BYTES;
  void *stacks = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) {
    perror("emulated_cuda: stacks for a block");
    abort();
  }
  memory = static_cast<char *>(stacks);
  free_stacks = MAX_THREADS;
  for (int i = 0; i < MAX_THREADS; i++) {
    stack[i] = {memory + static_cast<size_t>(i) * STACK_BYTES, STACK_BYTES};
    free_stack[i] = MAX_THREADS - 1 - i;
  }
}

Machine::~Machine() {
  munmap(memory, static_cast<size_t>(MAX_THREADS) * STACK_BYTES);
  free(shared);
}

static void fail_with(Machine *m, const char *format, va_list list) {
  if (m->failed) return; /* only the first error is printed */
  fprintf(stderr, "emulated_cuda: kernel %s, block (%u,%u,%u): ", m->name, here.block.x, here.block.y, here.block.z);
  vfprintf(stderr, format, list);
  fputc('\n', stderr);
  m->failed = true;
}

__attribute__((format(printf, 2, 3))) static void fail(Machine *m, const char *format, ...) {
  va_list list;
  va_start(list, format);
  fail_with(m, format, list);
  va_end(list);
}

void refuse(const char *format, ...) {
  va_list list;
  va_start(list, format);
  fail_with(machine.get(), format, list);
  va_end(list);
}

/* For functions that leave a stack for good: their poisoned frames would trap the stack's next user. */
#define NO_REDZONES __attribute__((no_sanitize_address))

/* Switches from `from` (NULL: for good) to `to`, which runs on `stack`. */
NO_REDZONES static void leave(Machine *m, Context *from, Context *to, const Stack &stack) {
  Context nowhere;
#if defined(__SANITIZE_ADDRESS__)
  void *kept = nullptr;
  const void *bottom;
  size_t bytes;
  __sanitizer_start_switch_fiber(from ? &kept : nullptr, stack.bottom, stack.bytes);
  switch_context(from ? from : &nowhere, to);
  __sanitizer_finish_switch_fiber(kept, &bottom, &bytes);
#else
  (void)m, (void)stack;
  switch_context(from ? from : &nowhere, to);
#endif
}

/* Call first on a new stack, and after returning to an old one. */
static void arrived_on_new_stack(Machine *m) {
#if defined(__SANITIZE_ADDRESS__)
  const void *bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (!m->host.bottom) m->host = {static_cast<char *>(const_cast<void *>(bottom)), bytes};
#else
  (void)m;
#endif
}

/* The next thread that can run, in this launch's order; -1: none. */
static int next_thread(const Machine *m) {
  for (int i = 0, t = m->current; i < m->threads; i++) {
    t += m->step;
    t = t == m->threads ? 0 : t < 0 ? m->threads - 1 : t;
    if (m->thread[t].state == State::fresh || m->thread[t].state == State::ready) return t;
  }
  return -1;
}

static void make_current(Machine *m, int t) {
  m->current = t;
  here.thread = m->thread[t].index;
}

[[noreturn]] NO_REDZONES static void back_to_host(Machine *m) {
  leave(m, nullptr, &m->host_context, m->host);
  abort();
}

static void tell_deadlock(Machine *m) {
  int at_barrier = 0, in_warp = 0;
  for (int t = 0; t < m->threads; t++) {
    at_barrier += m->thread[t].state == State::at_barrier;
    in_warp += m->thread[t].state == State::in_warp;
  }
  fail(m, "deadlock: of %d threads, %d wait at a barrier, %d wait in a warp operation and %d have left the kernel",
       m->threads, at_barrier, in_warp, m->done);
}

static void finish_collective(Machine *m, int warp);

/* Runs threads that have not started, one after the other, on this stack; if there is none, continues a suspended
 * one. */
NO_REDZONES static void fiber_main() {
  Machine *m = machine.get();
  arrived_on_new_stack(m);
  for (;;) {
    (*m->run)();
    Thread *self = &m->thread[m->current];
    self->state = State::done;
    m->done++;
    m->done_in_warp[m->current / WARP]++;
    if (m->in_warp[m->current / WARP])
      finish_collective(m, m->current / WARP); /* the other lanes no longer wait for this one */
    const int next = m->failed ? -1 : next_thread(m), own = self->stack;
    if (next < 0) {
      if (m->done < m->threads && !m->failed) tell_deadlock(m);
      back_to_host(m);
    }
    self->stack = -1;
    Thread *other = &m->thread[next];
    make_current(m, next);
    if (other->state == State::fresh) {
      other->stack = own;
      continue;
    }
    m->free_stack[m->free_stacks++] = own;
    leave(m, nullptr, &other->context, m->stack[other->stack]);
  }
}

static void begin_on_new_stack(Machine *m, int t) {
  const int stack = m->free_stack[--m->free_stacks];
  m->thread[t].stack = stack;
  /* Different offsets, because equal ones would map the tops of all stacks to the same few cache lines. */
  m->thread[t].context = fresh_context(m->stack[stack], static_cast<size_t>(stack % 61) * 64, fiber_main);
}

/* Suspends the current thread and runs others; returns when the thread can continue. */
static void suspend(Machine *m) {
  const int next = m->failed ? -1 : next_thread(m), own = m->current;
  if (next < 0) {
    if (!m->failed) tell_deadlock(m);
    back_to_host(m);
  }
  if (m->thread[next].state == State::fresh) begin_on_new_stack(m, next);
  make_current(m, next);
  leave(m, &m->thread[own].context, &m->thread[next].context, m->stack[m->thread[next].stack]);
}

/* ---- barriers and warps ------------------------------------------------------------------------------------------ */

static bool same(const Site &a, const Site &b) {
  return a.line == b.line && (a.file == b.file || !strcmp(a.file, b.file));
}

void barrier(Site site) {
  Machine *m = machine.get();
  if (m->arrived == 0) m->meeting = site;
  if (!same(m->meeting, site)) {
    fail(m, "threads wait at different barriers: %s:%d and %s:%d", m->meeting.file, m->meeting.line, site.file,
         site.line);
    suspend(m);
  }
  if (++m->arrived == m->threads) {
    m->arrived = 0;
    for (int t = 0; t < m->threads; t++)
      if (t != m->current) m->thread[t].state = State::ready;
    return;
  }
  m->thread[m->current].state = State::at_barrier;
  suspend(m);
}

int lane() { return machine->current % WARP; }

int thread_number() { return machine->current; }

static int lanes_of(const Machine *m, int warp) {
  return m->threads - warp * WARP < WARP ? m->threads - warp * WARP : static_cast<int>(WARP);
}

static uint64_t result_of(Machine *m, Thread *warp, int lanes, unsigned present, const Thread *self) {
  uint64_t result = 0;
  switch (self->kind) {
    case Collective::synchronize: break;
    case Collective::shuffle:
      if (self->source < lanes && (present >> self->source & 1u)) return warp[self->source].value;
      fail(m, "a shuffle reads lane %d, which is not part of it (mask %08x)", self->source, self->mask);
      break;
    case Collective::ballot:
    case Collective::any:
    case Collective::all:
      for (int l = 0; l < lanes; l++) result |= static_cast<uint64_t>((present >> l & 1u) && warp[l].value) << l;
      if (self->kind == Collective::any) return result != 0;
      if (self->kind == Collective::all) return result == present;
      break;
    case Collective::match:
      for (int l = 0; l < lanes; l++)
        result |= static_cast<uint64_t>((present >> l & 1u) && warp[l].value == self->value) << l;
      break;
    case Collective::multiply:
    case Collective::multiply_tf32:
    case Collective::load:
    case Collective::load_transposed: break; /* done for all lanes at once */
  }
  return result;
}

/* Operations on matrices; they store each lane's result directly. */
static void work_on_matrices(Machine *m, Thread *warp, unsigned present) {
  if (warp[0].kind < Collective::multiply) return;
  if (present != 0xffffffffu) return fail(m, "an operation on matrices requires the whole warp (lanes %08x)", present);
  void *lanes[WARP];
  for (int l = 0; l < WARP; l++) lanes[l] = reinterpret_cast<void *>(warp[l].value);
  if (warp[0].kind == Collective::multiply) multiply_lanes(lanes);
  else if (warp[0].kind == Collective::multiply_tf32) multiply_tf32_lanes(lanes);
  else load_lanes(lanes, warp[0].kind == Collective::load_transposed);
}

/* Completes the operations of a warp whose lanes have all arrived, and lets these lanes continue. */
static void finish_collective(Machine *m, int number) {
  Thread *warp = &m->thread[number * WARP];
  const int lanes = lanes_of(m, number);
  for (int first = 0; first < lanes; first++) {
    if (warp[first].state != State::in_warp) continue;
    const unsigned mask = warp[first].mask;
    unsigned present = 0;
    bool complete = true;
    for (int l = 0; l < lanes && complete; l++) {
      if (!(mask >> l & 1u) || warp[l].state == State::done) continue;
      complete = warp[l].state == State::in_warp;
      if (!complete) break;
      if (warp[l].mask != mask || warp[l].kind != warp[first].kind)
        return fail(m, "lanes %d and %d of warp %d are in different warp operations (masks %08x, %08x)", first, l,
                    number, mask, warp[l].mask);
      if (!same(warp[l].site, warp[first].site))
        return fail(m, "lanes %d and %d of warp %d call it from different lines: %s:%d and %s:%d", first, l, number,
                    warp[first].site.file, warp[first].site.line, warp[l].site.file, warp[l].site.line);
      present |= 1u << l;
    }
    if (!complete) continue;
    work_on_matrices(m, warp, present);
    for (int l = 0; l < lanes; l++)
      if (present >> l & 1u) warp[l].result = result_of(m, warp, lanes, present, &warp[l]);
    for (int l = 0; l < lanes; l++)
      if (present >> l & 1u) warp[l].state = State::ready;
    m->in_warp[number] -= __builtin_popcount(present);
  }
}

uint64_t collective(Collective kind, unsigned mask, uint64_t value, Site site, int source) {
  Machine *m = machine.get();
  Thread *self = &m->thread[m->current];
  const int own = m->current;
  self->kind = kind;
  self->mask = mask;
  self->value = value;
  self->source = source;
  self->site = site;
  self->state = State::in_warp;
  const int number = own / WARP, lanes = lanes_of(m, number);
  const bool whole = mask == 0xffffffffu, all_here = ++m->in_warp[number] + m->done_in_warp[number] == lanes;
  if (!(mask >> own % WARP & 1u))
    fail(m, "lane %d calls a warp operation with mask %08x, which does not include it", own % WARP, mask);
  else if (!whole || all_here) finish_collective(m, number);
  if (m->failed || self->state != State::ready) suspend(m);
  return self->result;
}

void *dynamic_shared() { return machine->shared; }

/* ---- a grid ------------------------------------------------------------------------------------------------------ */

static void prepare_shared(Machine *m, size_t bytes) {
  if (bytes > m->shared_capacity) {
#if defined(__SANITIZE_ADDRESS__)
    if (m->shared) __asan_unpoison_memory_region(m->shared, m->shared_capacity);
#endif
    free(m->shared);
    m->shared_capacity = (bytes + 255) / 256 * 256;
    m->shared = static_cast<char *>(aligned_alloc(256, m->shared_capacity));
    if (!m->shared) abort();
  }
#if defined(__SANITIZE_ADDRESS__)
  if (m->shared) {
    __asan_unpoison_memory_region(m->shared, bytes);
    __asan_poison_memory_region(m->shared + bytes, m->shared_capacity - bytes);
  }
#endif
}

static bool run_block(Machine *m) {
  for (int t = 0; t < m->threads; t++) m->thread[t].state = State::fresh;
  m->arrived = m->done = 0;
  memset(m->in_warp, 0, sizeof m->in_warp);
  memset(m->done_in_warp, 0, sizeof m->done_in_warp);
  m->failed = false;
  forget_copies();
  make_current(m, m->step > 0 ? 0 : m->threads - 1);
  begin_on_new_stack(m, m->current);
  const Thread *first = &m->thread[m->current];
  Context to = first->context;
  leave(m, &m->host_context, &to, m->stack[first->stack]);
  m->free_stacks = 0;
  for (int i = 0; i < MAX_THREADS; i++) m->free_stack[m->free_stacks++] = MAX_THREADS - 1 - i;
#if defined(__SANITIZE_ADDRESS__)
  if (m->failed) __asan_unpoison_memory_region(m->memory, static_cast<size_t>(MAX_THREADS) * STACK_BYTES);
#endif
  return !m->failed;
}

cudaError_t run_grid(const char *name, dim3 grid, dim3 block, size_t shared, const Body &thread) {
  static thread_local unsigned launches;
  if (!machine) machine.reset(new Machine);
  Machine *m = machine.get();
  m->name = name;
  m->run = &thread;
  m->threads = static_cast<int>(block.x * block.y * block.z);
  m->step = launches++ % 2 ? -1 : 1;
  prepare_shared(m, shared);
  for (int t = 0; t < m->threads; t++) {
    const unsigned at = static_cast<unsigned>(t);
    m->thread[t].index = uint3{at % block.x, at / block.x % block.y, at / (block.x * block.y)};
  }
  here.block_dim = uint3{block.x, block.y, block.z};
  here.grid_dim = uint3{grid.x, grid.y, grid.z};
  const uint64_t blocks = static_cast<uint64_t>(grid.x) * grid.y * grid.z;
  for (uint64_t i = 0; i < blocks; i++) {
    const uint64_t b = m->step > 0 ? i : blocks - 1 - i;
    here.block = uint3{static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                       static_cast<unsigned>(b / grid.x / grid.y)};
    if (shared) memset(m->shared, 0xff, shared);
    if (!run_block(m)) return cudaErrorLaunchFailure;
  }
  return cudaSuccess;
}

} // namespace emulated
