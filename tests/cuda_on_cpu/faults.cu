// Kernels with faults that tests/gpu/test_cuda_on_cpu.py must see found, and one without.
#include "../../csrc/cuda/cluster.cuh"
#include "../../csrc/cuda/matrix.cuh"

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
  out[threadIdx.x] = __uint_as_float(rsk::load16(x + offset).w);
}
extern "C" __global__ void copies_16(const float* x, float* out, int offset, int waits) {
  DYN_SHARED(float, shared);
  rsk::copy16(shared + 4 * threadIdx.x, x + offset + 4 * threadIdx.x);
  if (waits) rsk::copies_done();
  out[threadIdx.x] = shared[4 * threadIdx.x];
}

// The registers of a lane, as they are multiplied.
template <class T>
__device__ void multiply_registers(const unsigned* a, const unsigned* b, rsk::Sum<T>* out) {
  const unsigned* const x = a + 4 * threadIdx.x;
  rsk::Sum<T> c[4] = {};
  rsk::multiply(c, {x[0], x[1], x[2], x[3]}, b[2 * threadIdx.x], b[2 * threadIdx.x + 1], T());
  for (int i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = c[i];
}
extern "C" __global__ void product_of_matrices(const unsigned* a, const unsigned* b, float* out) {
  multiply_registers<rsk::F16>(a, b, out);
}
extern "C" __global__ void product_of_int8(const unsigned* a, const unsigned* b, int* out) {
  multiply_registers<rsk::I8>(a, b, out);
}
// Of a cluster of two blocks of one warp: each block tells the other one its number, in a phase of 16 bytes.
constexpr int kFaultSync = 2, kFaultAwait = 3;
__device__ inline void tell_the_other(unsigned char* shared, int expected, int told) {
  rsk::Arrivals* const arrivals = reinterpret_cast<rsk::Arrivals*>(shared + 16);
  if (threadIdx.x == 0) rsk::begin(arrivals);
  rsk::cluster_arrive();
  CLUSTER_SYNC(kFaultSync);
  if (threadIdx.x == 0) rsk::expect(arrivals, expected);
  const unsigned mine = blockIdx.x;
  if (int(threadIdx.x) < told)
    rsk::store_in(1 - rsk::cluster_rank(), reinterpret_cast<uint4*>(shared), make_uint4(mine, mine, mine, mine),
                  arrivals);
  AWAIT(kFaultAwait, arrivals, 0);
}
extern "C" __global__ void __cluster_dims__(2, 1, 1) other_block(int* out, int expected, int told) {
  DYN_SHARED(unsigned char, shared);
  tell_the_other(shared, expected, told);
  out[blockDim.x * blockIdx.x + threadIdx.x] = reinterpret_cast<int*>(shared)[threadIdx.x % 4];
}
extern "C" __global__ void __cluster_dims__(2, 1, 1) other_block_has_ended() {
  DYN_SHARED(unsigned char, shared);
  rsk::Arrivals* const arrivals = reinterpret_cast<rsk::Arrivals*>(shared + 16);
  CLUSTER_SYNC(kFaultSync);
  if (rsk::cluster_rank() == 1) return;
  for (int i = 0; i < 99; ++i) __syncwarp();
  rsk::store_in(1, reinterpret_cast<uint4*>(shared), make_uint4(0, 0, 0, 0), arrivals);
  AWAIT(kFaultAwait, arrivals, 0);
}
extern "C" __global__ void __cluster_dims__(2, 1, 1) a_block_leaves() {
  if (rsk::cluster_rank() == 0) CLUSTER_SYNC(kFaultSync);
}
