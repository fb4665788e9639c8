// Where the numbers of an item are, by address alone: no test has memory for pools this large.
#include "../../csrc/cuda/selector.cuh"

extern "C" __global__ void places_of_an_item(int pool, int item, float* memory, long long* out) {
  DYN_SHARED(unsigned char, shared);
  rsk::SelectArgs args = {};
  args.pool = pool;
  args.workspace = memory;
  const rsk::Selector<float, rsk::kMmr, false> selector(args, shared);
  out[0] = &selector.value(item) - memory;
  out[1] = &selector.aux(item) - memory;
  out[2] = &selector.scale(item) - memory;
}
