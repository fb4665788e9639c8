// 4-bit codes of rows, W rows a block, so that a register has eight dimensions of each: word w of a row's codes is word
// w * W + lane of its block, and has dimensions 8 w + i in its low halves of bytes and 8 w + 4 + i in its high ones.

// Codes of a row times norm_scale, to whole words: of each dimension the nearest step from its centre. How far the row
// is from what its codes stand for, or a little more; `spread` is at least the squared length of the codes as they
// count from the centre.
template <class T>
static float coarse_row(const T* row, std::int64_t dims, float norm_scale, const float* centre, const float* step,
                        const float* inverse, std::uint8_t* codes, float* spread) {
  typedef std::uint8_t bytes __attribute__((vector_size(W)));
  typedef std::uint8_t bytes_u __attribute__((vector_size(W), aligned(1), may_alias));
  vf lost = {}, sizes = {};
  std::memset(codes + dims / 8 * 8, 0, 8);  // whole words, also where a vector is half of one
  for (std::int64_t d = 0; d < dims; d += W) {
    const vf x = (d + W <= dims ? load(row + d) : load_rest(row + d, dims - d)) * splat(norm_scale);
    const vf place = (x - load(centre + d)) * load(inverse + d) + splat(7.5f);
    const vf rounded = larger(smaller(place, splat(15.0f)), vf{}) + splat(kRound);
    const vf code = (rounded - splat(kRound)) - splat(7.5f);  // kRound + 7.5 is no float
    const vf difference = x - (load(centre + d) + code * load(step + d));
    lost = fma(difference, difference, lost);
    sizes = fma(code, code, sizes);
    *reinterpret_cast<bytes_u*>(codes + d) = __builtin_convertvector((vi)rounded, bytes);
  }
  *spread = hsum(sizes);
  return __builtin_sqrtf(hsum(lost)) * 1.0001f + 2e-6f;
}

// Codes of one row, a byte each to whole words, to its lane of a block.
static inline void pack_coarse(const std::uint8_t* codes, std::int64_t words, std::int64_t lane, std::uint8_t* block) {
  for (std::int64_t w = 0; w < words; ++w) {
    std::uint32_t low, high;
    std::memcpy(&low, codes + 8 * w, 4);
    std::memcpy(&high, codes + 8 * w + 4, 4);
    const std::uint32_t both = low | high << 4;
    std::memcpy(block + 4 * (w * W + lane), &both, 4);
  }
}

// Products of the W rows of a block with signed codes, exact.
static inline vi coarse_products(const std::uint8_t* block, const std::int8_t* vector, std::int64_t words) {
#if RSK_VEC_BYTES >= 32 && defined(__x86_64__)
  // Sums of 16 bits hold the products of four words: 8 * 2 * 15 * 127 < 2^15.
#if RSK_VEC_BYTES == 64
#define RSK_OF_VECTOR(name) _mm512_##name
  typedef __m512i vector_of_bits;
#else
#define RSK_OF_VECTOR(name) _mm256_##name
  typedef __m256i vector_of_bits;
#endif
  const vector_of_bits half = RSK_OF_VECTOR(set1_epi8)(15), ones = RSK_OF_VECTOR(set1_epi16)(1);
  vi total = {};
  for (std::int64_t begin = 0; begin < words; begin += 4) {
    const std::int64_t end = begin + 4 < words ? begin + 4 : words;
    vector_of_bits sum = (vector_of_bits)vi{};
    for (std::int64_t w = begin; w < end; ++w) {
      std::int32_t low, high;
      std::memcpy(&low, vector + 8 * w, 4);
      std::memcpy(&high, vector + 8 * w + 4, 4);
      const vector_of_bits x = (vector_of_bits)load(reinterpret_cast<const std::int32_t*>(block) + w * W);
      const vector_of_bits upper = (vector_of_bits)((vi)x >> 4);
      sum = RSK_OF_VECTOR(add_epi16)(
          sum, RSK_OF_VECTOR(maddubs_epi16)((vector_of_bits)((vi)x & (vi)half), RSK_OF_VECTOR(set1_epi32)(low)));
      sum = RSK_OF_VECTOR(add_epi16)(
          sum, RSK_OF_VECTOR(maddubs_epi16)((vector_of_bits)((vi)upper & (vi)half), RSK_OF_VECTOR(set1_epi32)(high)));
    }
    total += (vi)RSK_OF_VECTOR(madd_epi16)(sum, ones);
  }
  return total;
#undef RSK_OF_VECTOR
#else
  vi total = {};
  for (std::int64_t w = 0; w < words; ++w)
    for (std::int64_t lane = 0; lane < W; ++lane)
      for (std::int64_t i = 0; i < 4; ++i) {
        const std::int32_t both = block[4 * (w * W + lane) + i];
        total[lane] += (both & 15) * vector[8 * w + i] + (both >> 4) * vector[8 * w + 4 + i];
      }
  return total;
#endif
}
