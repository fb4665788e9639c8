// Blocks of a cluster, which run together and write to one another's shared memory: from sm_90 on.
#pragma once
#include "common.cuh"

#ifndef CUDA_ON_CPU
// CLUSTER_SYNC: the second half of the cluster's barrier, of which cluster_arrive() is the first; it makes `Arrivals`
// of all blocks ready for use. AWAIT: a phase has ended, and what was stored with it is there. Numbered like SYNC.
#define CLUSTER_SYNC(n) rsk::cluster_wait()
#define AWAIT(n, arrivals, phase) rsk::await(arrivals, phase)
#endif

namespace rsk {

// Counts the bytes that are stored in its block, by phases, which are 0 and 1 in turn: an mbarrier.
#ifdef CUDA_ON_CPU
using Arrivals = emu::Arrivals;
#else
using Arrivals = unsigned long long;
#endif

__device__ inline unsigned shared_address(const void* p) {
#ifdef CUDA_ON_CPU
  return 0;
#else
  return unsigned(__cvta_generic_to_shared(p));
#endif
}

// Which block of its cluster this is.
__device__ inline unsigned cluster_rank() {
#ifdef CUDA_ON_CPU
  return emu::rank();
#else
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#endif
}

// By one thread, before its cluster_arrive().
__device__ inline void begin(Arrivals* arrivals) {
#ifdef CUDA_ON_CPU
  *arrivals = {};
#else
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(arrivals)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
// So many bytes are to come in this phase. By one thread, once a phase; some may have come before.
__device__ inline void expect(Arrivals* arrivals, int bytes) {
#ifdef CUDA_ON_CPU
  emu::expect_bytes(arrivals, bytes);
#else
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(arrivals)), "r"(bytes)
               : "memory");
#endif
}
// Stores where another block of the cluster has what `own` is in this one, and counts that there.
__device__ inline void store_in(unsigned block, uint4* own, uint4 x, Arrivals* arrivals) {
#ifdef CUDA_ON_CPU
  emu::store_to(block, own, x, arrivals);
#else
  unsigned to, its;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_address(own)), "r"(block));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(its) : "r"(shared_address(arrivals)), "r"(block));
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
               "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(its)
               : "memory");
#endif
}

#ifdef CUDA_ON_CPU
__device__ inline void cluster_arrive() {}
#else
__device__ inline void cluster_arrive() {
  __syncwarp();  // all lanes arrive together
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() {
  __syncwarp();
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ inline void await(Arrivals* arrivals, int phase) {
  unsigned ended;
  do
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(ended)
        : "r"(shared_address(arrivals)), "r"(phase)
        : "memory");
  while (!ended);
}
#endif

}  // namespace rsk
