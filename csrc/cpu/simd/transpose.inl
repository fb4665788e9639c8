// W vectors of W lanes, rows to columns. Included once per instruction set, after vectors.inl.

// In fours, within each 16 bytes: rows to lanes.
template <std::size_t... L>
static inline void transpose_fours(vf* x, std::index_sequence<L...>) {
#pragma GCC unroll 4
  for (std::int64_t i = 0; i < W; i += 4) {
    const vf a = x[i], b = x[i + 1], c = x[i + 2], d = x[i + 3];
    const vf ab = __builtin_shufflevector(a, b, int(L / 4 * 4 + L % 4 / 2 + L % 2 * W)...);
    const vf ba = __builtin_shufflevector(a, b, int(L / 4 * 4 + L % 4 / 2 + L % 2 * W + 2)...);
    const vf cd = __builtin_shufflevector(c, d, int(L / 4 * 4 + L % 4 / 2 + L % 2 * W)...);
    const vf dc = __builtin_shufflevector(c, d, int(L / 4 * 4 + L % 4 / 2 + L % 2 * W + 2)...);
    x[i] = __builtin_shufflevector(ab, cd, int(L / 4 * 4 + L % 2 + L % 4 / 2 * W)...);
    x[i + 1] = __builtin_shufflevector(ab, cd, int(L / 4 * 4 + L % 2 + L % 4 / 2 * W + 2)...);
    x[i + 2] = __builtin_shufflevector(ba, dc, int(L / 4 * 4 + L % 2 + L % 4 / 2 * W)...);
    x[i + 3] = __builtin_shufflevector(ba, dc, int(L / 4 * 4 + L % 2 + L % 4 / 2 * W + 2)...);
  }
}

// W vectors, rows to columns.
static inline void transpose(vf* x) {
  transpose_fours(x, std::make_index_sequence<std::size_t(W)>());
#pragma GCC unroll 4
  for (std::int64_t i = 0; i < 4 && W > 4; ++i) {
#if RSK_VEC_BYTES == 32
    const vf a = x[i], b = x[i + 4];
    x[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
    x[i + 4] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
#elif RSK_VEC_BYTES == 64
    const vf a = x[i], b = x[i + 4], c = x[i + 8], d = x[i + 12];
    const vf ab = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    const vf cd = __builtin_shufflevector(c, d, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    const vf ba = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    const vf dc = __builtin_shufflevector(c, d, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    x[i] = __builtin_shufflevector(ab, cd, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    x[i + 8] = __builtin_shufflevector(ab, cd, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    x[i + 4] = __builtin_shufflevector(ba, dc, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    x[i + 12] = __builtin_shufflevector(ba, dc, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
#endif
  }
}
