// How rows are read and multiplied: eight lanes share a row, 16 bytes of it at a time, and a lane takes part in four
// rows at once.
#pragma once
#include "common.cuh"

namespace rsk {

constexpr int kLanes = 8;                             // lanes that share a row
constexpr int kRowsAtOnce = 4;                        // rows that a lane takes part in
constexpr int kGroup = kWarp / kLanes * kRowsAtOnce;  // items of a warp that are taken together

// Four elements from p[first] on, zeros beyond the last dimension.
template <class T>
__device__ inline void load_four(const T* p, int first, int dims, float (&out)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[i] = 0.0f;
    if (first + i >= dims) continue;
    READS(p + first + i, sizeof(T));
    out[i] = widen(p[first + i]);
  }
}

// A vector that rows meet is taken four elements at a time, which spares registers. This is a stored row, of which the
// first `whole` packs can be loaded as such; kWhole says that this one can.
template <class T>
struct Row {
  const T* row;
  int dims, whole;
  template <bool kWhole>
  __device__ uint4 load(int pack) const {
    const bool can = kWhole || pack < whole;
    return can ? load16(row + pack * kPack<T>) : make_uint4(0, 0, 0, 0);
  }
  template <bool kWhole>
  __device__ void four(uint4 raw, int pack, int c, float (&out)[4]) const {
    if (kWhole || pack < whole)
      unpack_four(raw, c, out, T());
    else
      load_four(row, pack * kPack<T> + 4 * c, dims, out);
  }
};
// float32 in packs of T's size, times a factor.
template <class T>
struct Floats {
  const float* x;
  int dims, whole;
  float factor;
  template <bool>
  __device__ uint4 load(int) const {
    return make_uint4(0, 0, 0, 0);
  }
  template <bool>
  __device__ void four(uint4, int pack, int c, float (&out)[4]) const {
    const int first = pack * kPack<T> + 4 * c;
    if (pack < whole) {
      const float4 y = *reinterpret_cast<const float4*>(x + first);
      out[0] = y.x, out[1] = y.y, out[2] = y.z, out[3] = y.w;
    } else {
      load_four(x, first, dims, out);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = __fmul_rn(out[i], factor);
  }
};

// Sums over the eight lanes of a row for four rows: a lane gets that of row (lane % 8) / 2.
__device__ inline float sum_of_own(const float (&x)[kRowsAtOnce], int lane) {
  const bool upper = lane & 4, odd = lane & 2;
  const float a = __fadd_rn(upper ? x[2] : x[0], __shfl_xor_sync(kAll, upper ? x[0] : x[2], 4));
  const float b = __fadd_rn(upper ? x[3] : x[1], __shfl_xor_sync(kAll, upper ? x[1] : x[3], 4));
  const float c = __fadd_rn(odd ? b : a, __shfl_xor_sync(kAll, odd ? a : b, 2));
  return __fadd_rn(c, __shfl_xor_sync(kAll, c, 1));
}

// Visitors of `walk`: what is done with four elements of each of the lane's four rows, beside kNumbers of what they
// meet. Products with a vector and, if kNorms, the rows' squared norms; partial sums of the lane.
template <bool kNorms, class Vector>
struct Products {
  static constexpr int kNumbers = 4;
  const Vector& vector;
  float (&products)[kRowsAtOnce], (&norms2)[kRowsAtOnce];
  template <bool kWhole>
  __device__ uint4 load(int pack) const {
    return vector.template load<kWhole>(pack);
  }
  template <bool kWhole>
  __device__ void four(uint4 raw, int pack, int c, float (&y)[4]) const {
    vector.template four<kWhole>(raw, pack, c, y);
  }
  __device__ void use(int u, const float (&x)[4], const float (&y)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      products[u] = __fmaf_rn(x[i], y[i], products[u]);
      if (kNorms) norms2[u] = __fmaf_rn(x[i], x[i], norms2[u]);
    }
  }
};
// Products with the query, and with a stored row too; norms.
template <class T>
struct Meets {
  static constexpr int kNumbers = 8;
  const Floats<T>& query;
  const Row<T>& row;
  float (&products)[kRowsAtOnce], (&norms2)[kRowsAtOnce], (&near)[kRowsAtOnce];
  template <bool kWhole>
  __device__ uint4 load(int pack) const {
    return row.template load<kWhole>(pack);
  }
  template <bool kWhole>
  __device__ void four(uint4 raw, int pack, int c, float (&y)[8]) const {
    float of_query[4], of_row[4];
    query.template four<kWhole>({}, pack, c, of_query);
    row.template four<kWhole>(raw, pack, c, of_row);
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = of_query[i], y[4 + i] = of_row[i];
  }
  __device__ void use(int u, const float (&x)[4], const float (&y)[8]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      products[u] = __fmaf_rn(x[i], y[i], products[u]);
      norms2[u] = __fmaf_rn(x[i], x[i], norms2[u]);
      near[u] = __fmaf_rn(x[i], y[4 + i], near[u]);
    }
  }
};
// Squared lengths of VRSD's sum with each row, likewise.
template <class T>
struct Lengths {
  static constexpr int kNumbers = 4;
  const float* sum;
  const float (&scales)[kRowsAtOnce];
  float (&norms2)[kRowsAtOnce];
  template <bool>
  __device__ uint4 load(int) const {
    return make_uint4(0, 0, 0, 0);
  }
  template <bool>
  __device__ void four(uint4, int pack, int c, float (&y)[4]) const {
    const float4 s = *reinterpret_cast<const float4*>(sum + pack * kPack<T> + 4 * c);
    y[0] = s.x, y[1] = s.y, y[2] = s.z, y[3] = s.w;
  }
  __device__ void use(int u, const float (&x)[4], const float (&y)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float z = __fmaf_rn(scales[u], x[i], y[i]);
      norms2[u] = __fmaf_rn(z, z, norms2[u]);
    }
  }
};

}  // namespace rsk
