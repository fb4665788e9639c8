// What a region of rows.cpp compiles, and its table: products of rows, for each type.

#include "simd/vectors.inl"
#include "simd/dot.inl"
#include "simd/codes.inl"

template <class T, int A, int B>
__attribute__((flatten)) static void products_of(const float* const* vectors, const void* const* rows,
                                                 std::int64_t dims, float* out) {
  dot_tile<T, A, B>(vectors, rows, dims, out);
}

template <class T>
__attribute__((flatten)) static void products_of_aspects(const float* const* vectors, std::int64_t begin,
                                                         std::int64_t end, const void* const* rows, std::int64_t dims,
                                                         float* out) {
  for (std::int64_t a = begin; a < end; a += kAspectVectors, out += kAspectVectors * kAspectRows)
    dot_tile<T, kAspectVectors, kAspectRows, true>(vectors + a, rows, dims, out);
}

// More vectors than kTile do not meet one row.
template <class T, int A>
static constexpr RowKernels::Products* products_of_vectors() {
  if constexpr (A <= kTile) return products_of<T, A, 1>;
  return nullptr;
}

template <class T, int R>
static void norms2_of(const void* const* rows, std::int64_t dims, const float* tail_mask, float* out) {
  norm2_block<T, R>(rows, dims, tail_mask, out);
}

template <class T>
static void prepare_row(const void* row, std::int64_t dims, float* out) {
  prepare(static_cast<const T*>(row), dims, 1.0f, out);
}

template <class T>
static void widen_row(const void* row, std::int64_t dims, float* out) {
  for (std::int64_t d = 0; d < dims; ++d) out[d] = element(static_cast<const T*>(row), d);
}

template <class T>
static double exact_norm2(const void* row, std::int64_t dims) {
  double norm2 = 0;
  for (std::int64_t d = 0; d < dims; ++d) {
    const double x = element(static_cast<const T*>(row), d);
    norm2 += x * x;
  }
  return norm2;
}

template <class T>
static float add_lost_of(const CodeVector& codes, const void* row, std::int64_t dims, float norm_scale, float* lost) {
  if constexpr (kPacked<T>)
    return 0.0f;  // rows of signs have no codes
  else
    return add_lost(codes, static_cast<const T*>(row), dims, norm_scale, lost);
}

template <class T>
constexpr RowKernels kOfType = {
    {nullptr, products_of_vectors<T, 1>(), products_of_vectors<T, 2>(), products_of_vectors<T, 3>(),
     products_of_vectors<T, 4>(), products_of_vectors<T, 5>(), products_of_vectors<T, 6>(), products_of_vectors<T, 7>(),
     products_of_vectors<T, 8>()},
    {nullptr, products_of<T, 1, 1>, products_of<T, 1, 2>, products_of<T, 1, 3>, products_of<T, 1, 4>},
    products_of_aspects<T>,
    {nullptr, norms2_of<T, 1>, nullptr, nullptr, norms2_of<T, 4>},
    prepare_row<T>,
    widen_row<T>,
    exact_norm2<T>,
    add_lost_of<T>,
};

extern const RowKernels kRowKernels[5];
const RowKernels kRowKernels[5] = {kOfType<float>, kOfType<f16>, kOfType<bf16>, kOfType<i8>, kOfType<bits8>};
