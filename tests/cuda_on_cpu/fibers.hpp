// The threads of a block, or of the blocks of a cluster, as fibers: what runs next, who waits for whom, and which
// errors that shows. cuda_on_cpu.hpp, which includes this, says what for.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/mman.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#define EMU_TSAN 1
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define EMU_ASAN 1
#endif
#define EMU_QUIET __attribute__((no_sanitize("thread")))

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace emu {
constexpr int kWarp = 32;
constexpr std::size_t kMostBlocks = 16;  // of a cluster
constexpr std::size_t kStackBytes = 256 << 10;

struct Launch {
  dim3 grid, block;
  std::size_t shared = 0;      // bytes of dynamic shared memory
  std::size_t max_shared = 0;  // what a block may have
  unsigned seed = 0;
  int removed = 0;          // number of the SYNC or FENCE that is left out; 0: none
  std::size_t cluster = 1;  // blocks that run together
};

// A stack with what runs on it. On x86-64 a switch saves the registers that a call preserves; swapcontext would also
// call the kernel for the signal mask, which takes most of a test's time.
#ifdef __x86_64__
extern "C" __attribute__((visibility("hidden"))) void emu_switch(void** from, void* to);
asm(R"(
  .text
  .globl emu_switch
  .hidden emu_switch
  .type emu_switch, @function
emu_switch:
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
  .size emu_switch, . - emu_switch
)");
struct Context {
  void* top = nullptr;
  EMU_QUIET void start(char* stack, void (*entry)()) {
    void** p =
        reinterpret_cast<void**>(stack + kStackBytes) - 8;  // at the entry the stack is off by 8, as after a call
    std::fill_n(p, 8, nullptr);                             // registers; no return address ends a back trace
    p[6] = reinterpret_cast<void*>(entry);
    top = p;
  }
  EMU_QUIET void go(Context& next) { emu_switch(&top, next.top); }
};
#else
struct Context {
  ucontext_t context;
  EMU_QUIET void start(char* stack, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
  }
  EMU_QUIET void go(Context& next) { swapcontext(&context, &next.context); }
};
#endif

struct alignas(16) Value {
  unsigned char bytes[16];
};
enum class State { ready, block_barrier, cluster_barrier, arrivals, warp_collective, done };

// An mbarrier of one arrival, which says how many bytes are to come: a phase ends with both.
struct Arrivals {
  int bytes = 0;  // that are still to come; negative: more have come than are expected so far
  short arrived = 0, phase = 0;
  EMU_QUIET void settle() {
    if (!arrived || bytes) return;
    arrived = 0;
    phase ^= 1;
  }
};
static_assert(sizeof(Arrivals) == 8);

// A store that other blocks are to see, with what it has replaced, or while they do not see it what it has written.
struct Published {
  void* to;
  std::size_t size;
  Value value;
  enum {
    stored,
    fenced,
    counted
  } state = stored;  // since then its block has fenced, and then done an atomic operation
  void swap() {
    Value other;
    std::memcpy(&other, to, size);
    std::memcpy(to, &value, size);
    value = other;
  }
};

struct Thread {
  Context context;
  uint3 index;
  State state = State::ready;
  bool begun = false;
  int barrier = 0;              // which SYNC it waits in
  unsigned mask = 0;            // lanes named by the collective it waits in
  const char* where = nullptr;  // the collective's name
  bool orders = false;          // whether it orders memory
  const Arrivals* arrivals = nullptr;
  int phase = 0;    // the phase of `arrivals` that it waits for
  int source = -1;  // lane whose value it is to get; -1: those of all lanes
  Value value, result;
  Value all[kWarp];
  struct Copy {
    void* to;
    const void* from;
    std::size_t size;
    int group;
  };
  std::vector<Copy> copies;  // asynchronous ones, not yet waited for
  std::vector<Published> published;
  int group = 0;          // of the next one
  int products = 0;       // of matrices, so far
  void* fiber = nullptr;  // a sanitizer's view of it
};

// A store to a block of the cluster that has not come yet.
struct Flying {
  std::size_t block;
  void* to;
  Value value;
  Arrivals* arrivals;
};

constexpr std::size_t kMostFlying = 1 << 14;

struct Block {
  Launch launch;
  std::vector<Thread> threads;                     // of a cluster those of its blocks, one after another
  std::vector<std::vector<unsigned char>> shared;  // of each block
  std::unique_ptr<Flying[]> flying;                // made once, of which there are num_flying
  std::size_t num_flying = 0;
  std::vector<Published> unseen;  // of blocks that have ended
  bool counted = false;           // whether this block has done an atomic operation
  std::vector<char*> stacks;
  Context main;
  int current = -1;
  uint3 index;  // of the first block
  std::function<void()> body;
  std::mt19937 random;
  std::exception_ptr error;
  const void* main_stack = nullptr;
  std::size_t main_size = 0;
};
inline Block B;
inline Thread& me() { return B.threads[B.current]; }
inline int lane() { return B.current % kWarp; }
inline std::size_t threads_of_a_block() { return B.threads.size() / B.launch.cluster; }
inline unsigned rank() { return unsigned(std::size_t(B.current) / threads_of_a_block()); }
inline uint3 block_index() { return {B.index.x + rank(), B.index.y, B.index.z}; }

[[noreturn]] inline void fail(const std::string& what) {
  throw std::runtime_error(what + " (block " + std::to_string(block_index().x) + ", " + std::to_string(B.index.y) +
                           ", thread " + std::to_string(me().index.x) + ")");
}

// What warps read of one array. Loads of the lanes of a warp between two of its collectives touch a sector of memory
// once; beyond that nothing is cached.
struct Reads {
  static constexpr std::uintptr_t kSector = 32;
  std::uintptr_t begin = 0, end = 0;  // nothing is counted while these are equal
  long long bytes = 0;
  std::vector<std::vector<std::uintptr_t>> sectors;  // of each warp, since its last collective
  EMU_QUIET void add(const void* p, std::size_t size) {
    const auto at = reinterpret_cast<std::uintptr_t>(p);
    if (at < begin || at >= end) return;
    const std::size_t warp = std::size_t(B.current) / kWarp;
    if (sectors.size() <= warp) sectors.resize(warp + 1);
    for (std::uintptr_t s = at / kSector; s <= (at + size - 1) / kSector; ++s) sectors[warp].push_back(s);
  }
  EMU_QUIET void settle(std::size_t warp) {
    if (sectors.size() <= warp || sectors[warp].empty()) return;
    std::sort(sectors[warp].begin(), sectors[warp].end());
    bytes += kSector * (std::unique(sectors[warp].begin(), sectors[warp].end()) - sectors[warp].begin());
    sectors[warp].clear();
  }
};
inline Reads reads;

#ifdef EMU_TSAN
inline std::vector<void*> tsan_fibers;
inline void* tsan_main;
// What barriers release to and acquire from.
inline char launch_order, cluster_order, block_order[kMostBlocks], warp_order[kMostBlocks * 32];
inline bool orders_memory(const Thread& t) {
  return t.state == State::block_barrier || t.state == State::cluster_barrier ||
         (t.state == State::warp_collective && t.orders);
}
inline void* order_of(const Thread& t, int i) {
  return t.state == State::cluster_barrier ? &cluster_order
         : t.state == State::block_barrier ? &block_order[std::size_t(i) / threads_of_a_block()]
                                           : &warp_order[i / kWarp];
}
#endif

EMU_QUIET inline void to_fiber(Thread& t, [[maybe_unused]] int i) {
  t.begun = true;
#ifdef EMU_TSAN
  __tsan_switch_to_fiber(t.fiber, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef EMU_ASAN
  void* fake;
  __sanitizer_start_switch_fiber(&fake, B.stacks[i], kStackBytes);
#endif
  B.main.go(t.context);
#ifdef EMU_ASAN
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

EMU_QUIET inline void to_main(Thread& t) {
#ifdef EMU_TSAN
  __tsan_switch_to_fiber(tsan_main, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef EMU_ASAN
  __sanitizer_start_switch_fiber(t.state == State::done ? nullptr : &t.fiber, B.main_stack, B.main_size);
#endif
  t.context.go(B.main);
#ifdef EMU_ASAN
  __sanitizer_finish_switch_fiber(t.fiber, &B.main_stack, &B.main_size);
#endif
}

EMU_QUIET inline __attribute__((noinline)) void suspend(State state) {
  Thread& t = me();
  t.state = state;
#ifdef EMU_TSAN
  if (orders_memory(t)) __tsan_release(order_of(t, B.current));
#endif
  to_main(t);
}

EMU_QUIET inline void entry() {
#ifdef EMU_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &B.main_stack, &B.main_size);
#endif
  try {
    B.body();
  } catch (...) {
    B.error = std::current_exception();
  }
  Thread& t = me();
  t.state = State::done;
#ifdef EMU_TSAN
  __tsan_release(&launch_order);
#endif
  to_main(t);
}

// With a guard page below it.
inline char* stack(std::size_t i) {
  while (B.stacks.size() <= i) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* p = mmap(nullptr, kStackBytes + 4096, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p == MAP_FAILED || mprotect(p, 4096, PROT_NONE)) throw std::runtime_error("no memory for the stacks");
    B.stacks.push_back(static_cast<char*>(p) + 4096);
  }
  return B.stacks[i];
}

// Lets thread i go on. It acquires here and not when it runs: by then others may have released to the next barrier.
EMU_QUIET inline void wake(int i) {
  Thread& t = B.threads[i];
#ifdef EMU_TSAN
  if (orders_memory(t)) {
    __tsan_switch_to_fiber(t.fiber, __tsan_switch_to_fiber_no_sync);
    __tsan_acquire(order_of(t, i));
    __tsan_switch_to_fiber(tsan_main, __tsan_switch_to_fiber_no_sync);
  }
#endif
  t.state = State::ready;
}

// Lets threads from `first` on go on if all of them wait in this kind of barrier.
EMU_QUIET inline bool release_threads(State kind, std::size_t first, std::size_t n) {
  const std::string name = kind == State::block_barrier ? "SYNC" : "CLUSTER_SYNC";
  std::size_t waiting = 0, done = 0;
  const Thread* other = nullptr;
  for (std::size_t i = first; i < first + n; ++i) {
    const Thread& t = B.threads[i];
    waiting += t.state == kind;
    done += t.state == State::done;
    if (t.state != kind) continue;
    if (!other) other = &t;
    if (t.barrier != other->barrier)
      throw std::runtime_error("threads of a block wait in " + name + "(" + std::to_string(t.barrier) + ") and " +
                               name + "(" + std::to_string(other->barrier) + ")");
  }
  if (!waiting || waiting + done < n) return false;
  if (done) throw std::runtime_error(name + "(" + std::to_string(other->barrier) + ") not reached by all threads");
  for (std::size_t i = first; i < first + n; ++i) {
    if (i % kWarp == 0) reads.settle(i / kWarp);
    wake(int(i));
  }
  return true;
}

// Hands the lanes of a collective their results once all that it names have arrived.
EMU_QUIET inline bool release_lanes(int warp, int lanes, int l) {
  Thread* w = &B.threads[warp];
  const Thread& t = w[l];
  for (int j = 0; j < lanes; ++j) {
    if (!(t.mask >> j & 1)) continue;
    const std::string where = t.where;
    if (w[j].state == State::done) throw std::runtime_error(where + ": a lane in the mask has exited");
    if (w[j].state == State::block_barrier || w[j].state == State::cluster_barrier || w[j].state == State::arrivals)
      throw std::runtime_error(where + ": a lane in the mask waits in SYNC");
    if (w[j].state != State::warp_collective || w[j].mask != t.mask || std::strcmp(w[j].where, t.where)) return false;
  }
  const unsigned mask = t.mask;
  reads.settle(warp / kWarp);
  for (int j = 0; j < lanes; ++j) {
    if (!(mask >> j & 1)) continue;
    if (w[j].source >= 0) {
      w[j].result = w[w[j].source].value;
    } else {
      for (int k = 0; k < lanes; ++k) w[j].all[k] = w[k].value;
    }
  }
  for (int j = 0; j < lanes; ++j)
    if (mask >> j & 1) wake(warp + j);
  return true;
}

// Lets stores to other blocks arrive, each now or later.
EMU_QUIET inline bool deliver() {
  const std::size_t n = B.num_flying;
  B.num_flying = 0;
  for (std::size_t k = 0; k < n; ++k) {
    const Flying f = B.flying.get()[k];
    if (B.launch.seed && B.random() & 1) {
      B.flying.get()[B.num_flying++] = f;
      continue;
    }
    bool ended = true;
    for (std::size_t i = 0; i < threads_of_a_block(); ++i)
      ended &= B.threads[f.block * threads_of_a_block() + i].state == State::done;
    if (ended) throw std::runtime_error("a store to a block that has ended");
    *static_cast<Value*>(f.to) = f.value;
    f.arrivals->bytes -= int(sizeof f.value);
    f.arrivals->settle();
  }
  return n > 0;
}

EMU_QUIET inline bool release() {
  const int n = int(B.threads.size());
  const std::size_t of_block = threads_of_a_block();
  bool any = release_threads(State::cluster_barrier, 0, B.threads.size());
  for (std::size_t first = 0; first < B.threads.size(); first += of_block)
    any |= release_threads(State::block_barrier, first, of_block);
  for (int i = 0; i < n; ++i) {
    const Thread& t = B.threads[i];
    if (t.state != State::arrivals || t.arrivals->phase == t.phase) continue;
    wake(i);
    any = true;
  }
  for (int warp = 0; warp < n && !any; warp += kWarp) {
    const int lanes = std::min(kWarp, n - warp);
    for (int l = 0; l < lanes; ++l)
      if (B.threads[warp + l].state == State::warp_collective) any |= release_lanes(warp, lanes, l);
  }
  return any;
}

EMU_QUIET inline void start_block() {
  const dim3 size = B.launch.block;
  const std::size_t n = std::size_t(size.x) * size.y * size.z;
  for (auto& shared : B.shared) std::fill(shared.begin(), shared.end(), 0xff);
  B.threads.assign(n * B.launch.cluster, Thread{});
  B.num_flying = 0;
  B.counted = false;
#ifdef EMU_TSAN
  tsan_main = __tsan_get_current_fiber();
  __tsan_release(&launch_order);  // the launch, and the blocks before this one
#endif
  for (std::size_t i = 0; i < B.threads.size(); ++i) {
    Thread& t = B.threads[i];
    t.index = {unsigned(i % n % size.x), unsigned(i % n / size.x % size.y), unsigned(i % n / size.x / size.y)};
#ifdef EMU_ASAN
    __asan_unpoison_memory_region(stack(i), kStackBytes);  // frames of an earlier block that never returned
#endif
    t.context.start(stack(i), entry);
#ifdef EMU_TSAN
    if (tsan_fibers.size() <= i) tsan_fibers.push_back(__tsan_create_fiber(0));
    t.fiber = tsan_fibers[i];
    __tsan_switch_to_fiber(t.fiber, __tsan_switch_to_fiber_no_sync);
    __tsan_acquire(&launch_order);
    __tsan_switch_to_fiber(tsan_main, __tsan_switch_to_fiber_no_sync);
#endif
  }
}

// Takes back what a block has published, until another one may see it.
inline void hide() {
  for (Thread& t : B.threads)
    for (auto p = t.published.rbegin(); p != t.published.rend(); ++p) {
      p->swap();
      B.unseen.insert(B.unseen.begin(), *p);
    }
}
// Lets it be seen: by a block that fences after an atomic operation what was counted, by the next launch all of it.
inline void show(bool all) {
  std::vector<Published> rest;
  for (Published& p : B.unseen) {
    if (all || p.state == Published::counted)
      p.swap();
    else
      rest.push_back(p);
  }
  B.unseen.swap(rest);
}

EMU_QUIET inline void run_block() {
  start_block();
  const int n = int(B.threads.size()), warps = (n + kWarp - 1) / kWarp;
  std::vector<int> order(n);
  for (int i = 0; i < n; ++i) order[i] = i;
  std::vector<bool> goes(warps, true);
  std::vector<int> waits(B.launch.cluster, 0);  // rounds until a block of the cluster begins
  for (int& wait : waits)
    if (B.launch.seed && B.launch.cluster > 1) wait = 1 << B.random() % 14;
  int rounds = 0;
  for (;;) {
    if (B.launch.seed) {
      for (int& wait : waits) wait -= wait > 0;
      // About half of the warps go on, and for a while, so that some are far ahead of others.
      if (rounds-- == 0) {
        for (int w = 0; w < warps; ++w) goes[w] = B.random() & 1;
        rounds = 1 << B.random() % 9;
      }
      std::shuffle(order.begin(), order.end(), B.random);
    }
    bool any = false, left = false;
    for (int i : order) {
      Thread& t = B.threads[i];
      left |= t.state == State::ready;
      if (t.state != State::ready || !goes[i / kWarp] || waits[std::size_t(i) / threads_of_a_block()]) continue;
      any = true;
      B.current = i;
      to_fiber(t, i);
      if (B.error) std::rethrow_exception(std::exchange(B.error, nullptr));
    }
    const bool flew = deliver(), released = release();
    if (!any && !released) rounds = 0;  // all that could go on wait
    if (flew || released || any || left) continue;
    for (const Thread& t : B.threads)
      if (t.state != State::done) throw std::runtime_error("deadlock: threads wait in barriers that do not match");
    for (int w = 0; w < warps; ++w) reads.settle(w);
#ifdef EMU_TSAN
    __tsan_acquire(&launch_order);
#endif
    hide();
    return;
  }
}

// A failed block leaves fibers behind, and what their frames own.
template <class F>
void run(const Launch& launch, F body) {
  const dim3 grid = launch.grid, block = launch.block;
  const std::size_t threads = std::size_t(block.x) * block.y * block.z;
  if (threads == 0 || threads > 1024) throw std::runtime_error("a block has " + std::to_string(threads) + " threads");
  if (!grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535 || grid.x > 0x7fffffffu)
    throw std::runtime_error("the grid is out of range");
  if (launch.cluster > 1 && (threads % kWarp || grid.x % launch.cluster))
    throw std::runtime_error("a grid of " + std::to_string(grid.x) + " blocks of " + std::to_string(threads) +
                             " threads has no clusters of " + std::to_string(launch.cluster));
  if (launch.shared > launch.max_shared)
    throw std::runtime_error("a block has " + std::to_string(launch.shared) + " bytes of dynamic shared memory");
  B.launch = launch;
  B.shared.assign(launch.cluster, std::vector<unsigned char>(launch.shared));
  B.random.seed(launch.seed);
  if (launch.cluster > 1 && !B.flying) B.flying.reset(new Flying[kMostFlying]);
  B.body = body;
  B.unseen.clear();
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; x += unsigned(launch.cluster)) {
        B.index = {x, y, z};
        run_block();
      }
  show(true);
}
}  // namespace emu
