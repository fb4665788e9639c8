// Kernels with faults that tests/gpu/test_cuda_on_cpu.py must see found, and one without.
#include "../../csrc/cuda/common.cuh"

// The sum of a block's numbers, by halves in shared memory.
extern "C" __global__ void block_sum(const float* x, float* out) {
  DYN_SHARED(float, partial);
  partial[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    SYNC(1);
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
  }
  if (threadIdx.x == 0) out[blockIdx.x] = partial[0];
}
extern "C" __global__ void some_leave() {
  if (threadIdx.x % 2) SYNC(1);
}
extern "C" __global__ void two_barriers() {
  if (threadIdx.x % 2)
    SYNC(1);
  else
    SYNC(2);
}
extern "C" __global__ void lane_has_left(int* out) {
  if (threadIdx.x == 3) return;
  out[threadIdx.x] = __shfl_xor_sync(rsk::kAll, int(threadIdx.x), 1);
}
extern "C" __global__ void lane_not_in_mask(int* out) { out[threadIdx.x] = __shfl_xor_sync(0xffffu, 1, 1); }
extern "C" __global__ void reads_outside_mask(int* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffffu, 1, 20);
}
extern "C" __global__ void different_collectives(int* out) {
  out[threadIdx.x] = threadIdx.x % 2 ? __shfl_xor_sync(rsk::kAll, 1, 2) : int(__ballot_sync(rsk::kAll, 1));
}
// What lane 0 wrote to shared memory, after a collective that orders memory or not.
extern "C" __global__ void read_of_lane_0(const float* x, float* out, int ordered) {
  DYN_SHARED(float, shared);
  if (threadIdx.x == 0) shared[0] = x[0];
  if (ordered)
    __syncwarp();
  else
    __shfl_sync(rsk::kAll, 0, 0);
  out[threadIdx.x] = shared[0];
}
extern "C" __global__ void beyond_shared(float* out) {
  DYN_SHARED(float, shared);
  shared[threadIdx.x + 1] = 1.0f;
  out[threadIdx.x] = 1.0f;
}
extern "C" __global__ void loads_16(const float* x, float* out, int offset) {
  float four[4];
  rsk::load_pack(x + offset, four);
  out[threadIdx.x] = four[3];
}
extern "C" __global__ void copies_16(const float* x, float* out, int offset, int waits) {
  DYN_SHARED(float, shared);
  rsk::copy16(shared + 4 * threadIdx.x, x + offset + 4 * threadIdx.x);
  if (waits) rsk::copies_done();
  out[threadIdx.x] = shared[4 * threadIdx.x];
}
