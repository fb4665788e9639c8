// Runs CUDA kernels on the CPU, for tests only: included before the .cu file, which g++ then compiles as C++17.
//
// A CUDA thread is a fiber; blocks, or clusters of blocks, run one after another on one OS thread. Fibers switch only
// at barriers and warp collectives. Which runnable fiber goes on is a seeded draw (0: in the order of the threads), and
// warps drift apart, so that a missing barrier shows as a wrong or seed-dependent answer, and as a data race under
// ThreadSanitizer, for which barriers order memory; shuffles do not, nor does a store to another block of a cluster,
// which comes when it may (seed 0: at once) and is itself no access to ThreadSanitizer. Also found: barriers that not
// all threads of a block or cluster reach, or of which threads reach different ones; stores to a block of the cluster
// that has not begun or has ended; collectives with lanes that have exited, wait elsewhere or are not in the mask;
// reads of shared memory that was not written (it starts as NaN); with AddressSanitizer, accesses beyond an array or
// the dynamic shared memory; with UndefinedBehaviorSanitizer, vector loads from unaligned addresses.
//
// A missing fence shows as a wrong answer: other blocks see what a block publishes after a fence, an atomic operation
// here and one there, and a fence there, and not before.
//
// What it cannot find: other races between blocks, and what differs in hardware (limits of registers, bank conflicts,
// approximate intrinsics, contraction of a * b + c, which is off here).
//
// A source needs nothing special but SYNC(n) for __syncthreads(), FENCE(n) for __threadfence(), CLUSTER_SYNC(n) for a
// cluster's barrier, publish() for stores that other blocks are to see, DYN_SHARED(T, name) for dynamic shared memory
// and READS(address, bytes) where reads are to be counted; csrc/cuda/common.cuh has them for CUDA. What has a number
// can be removed by it at run time, see Launch::removed.
#pragma once
#include "fibers.hpp"

#define CUDA_ON_CPU 1
// Kernels are found in the preprocessed source by this attribute.
#define __global__ __attribute__((used))
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
// emulator.py finds the number of blocks by this name.
#define __cluster_dims__(x, y, z) __attribute__((section(".text.cluster" #x)))
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __constant__ static
#define __restrict__ __restrict

// Vector types, aligned as on the device.
struct alignas(8) int2 {
  int x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace emu {
template <class To, class From>
To bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  __builtin_memcpy(&y, &x, sizeof y);
  return y;
}
// Barriers and collectives.
inline void barrier(int number) {
  if (number && number == B.launch.removed) return;
  me().barrier = number;
  suspend(State::block_barrier);
}
inline void cluster_barrier(int number) {
  if (number == B.launch.removed) return;
  me().barrier = number;
  suspend(State::cluster_barrier);
}
// mbarriers: a thread waits until a phase has ended. SYNC's numbers are theirs too.
EMU_QUIET inline void await(int number, const Arrivals* arrivals, int phase) {
  if (number == B.launch.removed) return;
  me().arrivals = arrivals;
  me().phase = phase;
  suspend(State::arrivals);
}
EMU_QUIET inline void expect_bytes(Arrivals* arrivals, int bytes) {
  if (arrivals->arrived) fail("an mbarrier of one arrival has two");
  arrivals->bytes += bytes;
  arrivals->arrived = 1;
  arrivals->settle();
}
template <class T>
void publish(T* to, T x) {
  Published p{to, sizeof x, {}};
  std::memcpy(&p.value, to, sizeof x);
  me().published.push_back(p);
  *to = x;
}
template <class F>
void each_published(F f) {
  const std::size_t first = rank() * threads_of_a_block();
  for (std::size_t i = first; i < first + threads_of_a_block(); ++i)
    for (Published& p : B.threads[i].published) f(p.state);
}
// By one thread for its block.
inline void fence(int number) {
  if (number && number == B.launch.removed) return;
  each_published([](auto& state) { state = std::max(state, Published::fenced); });
  if (__atomic_load_n(&B.counted, __ATOMIC_RELAXED)) show(false);
}
inline unsigned char* shared() { return B.shared[rank()].data(); }
// What has the place of `own`, which is in shared memory, in another block of the cluster.
inline void* in_block(unsigned block, void* own) {
  if (block >= B.launch.cluster) fail("the cluster has no such block");
  const auto at = std::size_t(static_cast<unsigned char*>(own) - shared());
  if (at >= B.launch.shared) fail("an address is not in shared memory");
  const Thread* const its = &B.threads[block * threads_of_a_block()];
  const auto all_of = [&](auto has) { return std::all_of(its, its + threads_of_a_block(), has); };
  if (all_of([](const Thread& t) { return !t.begun; })) fail("a store to a block that has not begun");
  if (all_of([](const Thread& t) { return t.state == State::done; })) fail("a store to a block that has ended");
  return B.shared[block].data() + at;
}
EMU_QUIET inline void fly(unsigned block, void* to, const void* from, void* told) {
  if (B.num_flying == kMostFlying) fail("too many stores to other blocks");
  Flying& f = B.flying.get()[B.num_flying++];
  f.block = block;
  f.to = to;
  f.arrivals = static_cast<Arrivals*>(told);
  __builtin_memcpy(&f.value, from, sizeof f.value);
  if (!B.launch.seed) deliver();
}
template <class T>
void store_to(unsigned block, T* own, const T& x, Arrivals* told) {
  static_assert(sizeof(T) == sizeof(Value));
  fly(block, in_block(block, own), &x, in_block(block, told));
}
EMU_QUIET inline void collective(unsigned mask, const char* where, int source, bool orders) {
  Thread& t = me();
  if (!(mask >> lane() & 1)) fail(std::string(where) + ": the calling lane is not in its mask");
  const std::size_t lanes = std::min<std::size_t>(kWarp, B.threads.size() - (B.current - lane()));
  if (source >= 0 && !(std::size_t(source) < lanes && mask >> source & 1))
    fail(std::string(where) + ": reads a lane outside its mask");
  t.mask = mask;
  t.where = where;
  t.source = source;
  t.orders = orders;
  suspend(State::warp_collective);
}
template <class T>
T exchange(unsigned mask, T x, const char* where, int source) {
  static_assert(sizeof(T) <= sizeof(Value) && std::is_trivially_copyable_v<T>);
  Value v{};
  __builtin_memcpy(&v, &x, sizeof x);
  me().value = v;
  collective(mask, where, source, false);
  v = me().result;
  __builtin_memcpy(&x, &v, sizeof x);
  return x;
}
template <class T, class Op>
T fold(unsigned mask, T x, const char* where, Op op) {
  Value v{};
  __builtin_memcpy(&v, &x, sizeof x);
  me().value = v;
  collective(mask, where, -1, false);
  bool first = true;
  for (int j = 0; j < kWarp; ++j) {
    if (!(mask >> j & 1)) continue;
    T y;
    __builtin_memcpy(&y, &me().all[j], sizeof y);
    x = first ? y : op(x, y);
    first = false;
  }
  return x;
}
// Asynchronous copies of a thread are made when it waits for them, and not before.
inline void copy_later(void* to, const void* from, std::size_t size) {
  if ((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) % size)
    fail("an asynchronous copy is not aligned");
  me().copies.push_back({to, from, size, me().group});
}
inline void copies_end() { ++me().group; }
inline void copies_wait(int but) {
  auto& copies = me().copies;
  const auto waits = [&](const Thread::Copy& c) { return c.group < me().group - but; };
  for (const Thread::Copy& c : copies)
    if (waits(c)) std::memcpy(c.to, c.from, c.size);
  copies.erase(std::remove_if(copies.begin(), copies.end(), waits), copies.end());
}
inline void copies_done() {
  copies_end();
  copies_wait(0);
}
template <class T, class F>
T read_modify_write(T* p, F f) {  // a real atomic operation, which ThreadSanitizer knows
  T old, next;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  do next = f(old);
  while (!__atomic_compare_exchange(p, &old, &next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  each_published([](auto& state) { state = state == Published::stored ? state : Published::counted; });
  __atomic_store_n(&B.counted, true, __ATOMIC_RELAXED);
  return old;
}
inline float half(unsigned short h) {
  const unsigned sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
  if (exponent == 31) return bits<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent) return bits<float>(sign | (exponent + 112) << 23 | fraction << 13);
  return bits<float>(sign | bits<unsigned>(float(fraction) * 5.9604644775390625e-8f));
}
inline float bfloat16(unsigned short x) { return bits<float>(unsigned(x) << 16); }
inline float int8(unsigned char x) { return float((signed char)x); }
inline unsigned short nearest_half(float x) {
  const unsigned sign = bits<unsigned>(x) >> 16 & 0x8000u;
  const float size = std::fabs(x);
  if (!(size < 65520.0f)) return (unsigned short)(size > 0.0f ? sign | 0x7c00u : 0x7e00u);
  if (size == 0.0f) return (unsigned short)sign;
  int exponent;
  std::frexp(size, &exponent);  // halves of this size are whole multiples of a power of two, to which rint rounds
  const int unit = std::max(exponent - 11, -24);
  const unsigned multiple = unsigned(std::rint(std::ldexp(size, -unit)));
  return (unsigned short)(sign | ((unsigned(unit + 24) << 10) + multiple));
}

// What all lanes of a warp have.
template <class T>
void of_all(T x, T (&all)[kWarp], const char* where) {
  fold(~0u, x, where, [](T a, T) { return a; });
  for (int j = 0; j < kWarp; ++j) __builtin_memcpy(&all[j], &me().all[j], sizeof(T));
}
inline void load_matrices(unsigned (&out)[4], const unsigned char* row) {
  const unsigned char* rows[kWarp];
  of_all(row, rows, "ldmatrix");
  for (int i = 0; i < 4; ++i) {
    const unsigned char* from = rows[8 * i + lane() / 4];
    if (reinterpret_cast<std::uintptr_t>(from) % 16) fail("a row of a matrix is not aligned");
    std::memcpy(&out[i], from + lane() % 4 * 4, 4);
  }
}
// mma.m16n8k16 and, of elements of 8 bits, m16n8k32: the N elements of a register are columns N t and on of a (rows of
// b), t = lane % 4, and rows of a (columns of b) are lane / 4 and 8 more. Lanes leave their elements for the others, at
// even and odd products in turn: one that is ahead waits at the next product until all have read these.
struct Elements {
  float a[4][4], b[2][4];
};
inline Elements elements[2][kMostBlocks * 32][kWarp];
template <int N, class Sum, class Bits>
EMU_QUIET inline void multiply(Sum (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, float (*widen)(Bits)) {
  Elements* const its = elements[me().products++ % 2][B.current / kWarp];
  Elements& mine = its[lane()];
  for (int e = 0; e < N; ++e) {
    for (int i = 0; i < 4; ++i) mine.a[i][e] = widen(Bits(a[i] >> 32 / N * e));
    mine.b[0][e] = widen(Bits(b0 >> 32 / N * e));
    mine.b[1][e] = widen(Bits(b1 >> 32 / N * e));
  }
  collective(~0u, "mma", lane(), false);
  for (int i = 0; i < 4; ++i) {
    const Elements* const row = its + lane() / 4 * 4;
    const Elements* const column = its + 4 * (2 * (lane() % 4) + i % 2);
    for (int k = 0; k < 8 * N; ++k) {
      const int t = k % (4 * N) / N, half = k / (4 * N);
      c[i] += Sum(row[t].a[i / 2 + 2 * half][k % N] * column[t].b[half][k % N]);
    }
  }
}
}  // namespace emu

#define SYNC(n) emu::barrier(n)
#define FENCE(n) emu::fence(n)
#define CLUSTER_SYNC(n) emu::cluster_barrier(n)
#define AWAIT(n, arrivals, phase) emu::await(n, arrivals, phase)
#define READS(address, bytes) emu::reads.add(address, bytes)
#define DYN_SHARED(T, name) T* name = reinterpret_cast<T*>(emu::shared())
#define threadIdx (emu::me().index)
#define blockIdx (emu::block_index())
#define blockDim (emu::B.launch.block)
#define gridDim (emu::B.launch.grid)
constexpr int warpSize = emu::kWarp;

inline void __syncthreads() { emu::barrier(0); }
inline void __syncwarp(unsigned m = ~0u) { emu::collective(m, "__syncwarp", -1, true); }
inline void __threadfence() { emu::fence(0); }
inline void __threadfence_block() {}
template <class T>
T __shfl_sync(unsigned m, T x, int source, int width = 32) {
  return emu::exchange(m, x, "__shfl_sync", (emu::lane() & ~(width - 1)) + (source & (width - 1)));
}
template <class T>
T __shfl_down_sync(unsigned m, T x, unsigned d, int width = 32) {
  const int l = emu::lane();
  return emu::exchange(m, x, "__shfl_down_sync", (l & (width - 1)) + int(d) < width ? l + int(d) : l);
}
template <class T>
T __shfl_up_sync(unsigned m, T x, unsigned d, int width = 32) {
  const int l = emu::lane();
  return emu::exchange(m, x, "__shfl_up_sync", (l & (width - 1)) >= int(d) ? l - int(d) : l);
}
template <class T>
T __shfl_xor_sync(unsigned m, T x, int d, int = 32) {
  return emu::exchange(m, x, "__shfl_xor_sync", emu::lane() ^ d);
}
inline unsigned __ballot_sync(unsigned m, int p) {
  return emu::fold(m, p ? 1u << emu::lane() : 0u, "__ballot_sync", [](unsigned a, unsigned b) { return a | b; });
}
inline int __any_sync(unsigned m, int p) { return __ballot_sync(m, p) != 0; }
inline int __all_sync(unsigned m, int p) { return __ballot_sync(m, p) == m; }
inline unsigned __reduce_max_sync(unsigned m, unsigned x) {
  return emu::fold(m, x, "__reduce_max_sync", [](unsigned a, unsigned b) { return std::max(a, b); });
}
inline unsigned __reduce_min_sync(unsigned m, unsigned x) {
  return emu::fold(m, x, "__reduce_min_sync", [](unsigned a, unsigned b) { return std::min(a, b); });
}
inline unsigned __reduce_add_sync(unsigned m, unsigned x) {
  return emu::fold(m, x, "__reduce_add_sync", [](unsigned a, unsigned b) { return a + b; });
}
template <class T>
T atomicAdd(T* p, T x) {
  return emu::read_modify_write(p, [=](T old) { return T(old + x); });
}
inline unsigned atomicInc(unsigned* p, unsigned limit) {
  return emu::read_modify_write(p, [=](unsigned old) { return old >= limit ? 0 : old + 1; });
}
template <class T>
T atomicMax(T* p, T x) {
  return emu::read_modify_write(p, [=](T old) { return std::max(old, x); });
}
template <class T>
T atomicMin(T* p, T x) {
  return emu::read_modify_write(p, [=](T old) { return std::min(old, x); });
}
template <class T>
T atomicExch(T* p, T x) {
  return emu::read_modify_write(p, [=](T) { return x; });
}
template <class T>
T atomicCAS(T* p, T expected, T x) {
  return emu::read_modify_write(p, [=](T old) { return old == expected ? x : old; });
}
template <class T>
T __ldg(const T* p) {
  return *p;
}
inline int __float_as_int(float x) { return emu::bits<int>(x); }
inline unsigned __float_as_uint(float x) { return emu::bits<unsigned>(x); }
// Only what is not finite lies outside of the integers here.
inline int __float2int_rn(float x) { return std::isfinite(x) ? int(std::nearbyint(x)) : 0; }
inline float __int_as_float(int x) { return emu::bits<float>(x); }
inline float __uint_as_float(unsigned x) { return emu::bits<float>(x); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
using std::max;
using std::min;
