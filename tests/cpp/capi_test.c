/* The C interface against a brute force in double precision, and its errors. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ragsys_kernels.h"

enum { Q = 7, N = 60, D = 24, STRIDE = 29, K = 9 };
#define LAMBDA 0.6

static int failures;
#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      ++failures;                                                                   \
      fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, rk_last_error()); \
    }                                                                               \
  } while (0)

static uint32_t state = 1;
static float draw(void) {
  state = state * 1664525u + 1013904223u;
  return (float)(state >> 8) / 8388608.0f - 1.0f;
}

static double value(const void* rows, rk_dtype dtype, int row, int d) {
  const int at = row * STRIDE + d;
  if (dtype == RK_INT8) return ((const int8_t*)rows)[at];
  if (dtype == RK_BFLOAT16) {
    const uint32_t bits = (uint32_t)((const uint16_t*)rows)[at] << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
  }
  return ((const float*)rows)[at];
}

/* Cosines of the query and of the picks, the largest of the value each time. */
static void brute_force(const float* query, const void* rows, rk_dtype dtype, const float* bias, int vrsd, int k,
                        int64_t* picks) {
  static double unit[N][D];
  double q[D], sum[D] = {0}, norm = 0;
  for (int d = 0; d < D; ++d) norm += (double)query[d] * query[d];
  for (int d = 0; d < D; ++d) q[d] = query[d] / sqrt(norm);
  int taken[N] = {0};
  for (int i = 0; i < N; ++i) {
    norm = 0;
    for (int d = 0; d < D; ++d) norm += value(rows, dtype, i, d) * value(rows, dtype, i, d);
    for (int d = 0; d < D; ++d) unit[i][d] = value(rows, dtype, i, d) / sqrt(norm);
  }
  for (int step = 0; step < k; ++step) {
    int best = -1;
    double most = -INFINITY;
    for (int i = 0; i < N; ++i) {
      if (taken[i]) continue;
      double relevance = 0, redundancy = step ? -INFINITY : 0, dot = 0, square = 0, w;
      for (int d = 0; d < D; ++d) {
        relevance += q[d] * unit[i][d];
        dot += q[d] * (sum[d] + unit[i][d]);
        square += (sum[d] + unit[i][d]) * (sum[d] + unit[i][d]);
      }
      if (bias) relevance = 0.8 * relevance + 0.2 * bias[i];
      for (int p = 0; p < step; ++p) {
        double similarity = 0;
        for (int d = 0; d < D; ++d) similarity += unit[i][d] * unit[picks[p]][d];
        if (similarity > redundancy) redundancy = similarity;
      }
      w = vrsd ? dot / sqrt(square) : LAMBDA * relevance - (1 - LAMBDA) * redundancy;
      if (w > most) most = w, best = i;
    }
    picks[step] = best;
    taken[best] = 1;
    for (int d = 0; d < D; ++d) sum[d] += unit[best][d];
  }
}

static void selections(void) {
  static float queries[Q * D], rows32[N * STRIDE], bias[N];
  static uint16_t rows16[N * STRIDE];
  static int8_t rows8[N * STRIDE];
  for (int i = 0; i < Q * D; ++i) queries[i] = draw();
  for (int i = 0; i < N; ++i) bias[i] = draw();
  for (int i = 0; i < N * STRIDE; ++i) {
    uint32_t bits;
    rows32[i] = draw();
    memcpy(&bits, &rows32[i], sizeof bits);
    rows16[i] = (uint16_t)(bits >> 16);
    rows8[i] = (int8_t)(rows32[i] * 127);
    if (i % STRIDE >= D) { /* never to be read */
      rows32[i] = NAN;
      rows16[i] = 0x7fff;
    }
  }
  const void* const stored[] = {rows32, rows16, rows8};
  const rk_dtype dtypes[] = {RK_FLOAT32, RK_BFLOAT16, RK_INT8};
  for (int type = 0; type < 3; ++type) {
    const rk_matrix rows = {stored[type], N, D, STRIDE, dtypes[type]};
    for (int rule = 0; rule < 3; ++rule) { /* MMR, MMR with bias, VRSD */
      int64_t picks[Q * K], expected[K];
      int32_t lengths[Q];
      float scores[Q * K];
      const rk_picks out = {picks, scores, NULL, NULL, lengths};
      rk_select_options options;
      rk_select_options_init(&options);
      options.lambda_d = rule < 2 ? LAMBDA : 1;
      options.lambda_b = rule == 1 ? 0.8 : 1;
      options.bias = rule == 1 ? bias : NULL;
      CHECK((rule < 2 ? rk_mmr : rk_vrsd)(queries, Q, &rows, K, &options, &out) == RK_OK);
      for (int q = 0; q < Q; ++q) {
        brute_force(queries + q * D, stored[type], dtypes[type], options.bias, rule == 2, K, expected);
        CHECK(memcmp(expected, picks + q * K, sizeof expected) == 0);
        CHECK(lengths[q] == K);
      }
    }
  }

  /* More picks than the pool has; an older struct of options, without candidates. */
  const rk_matrix rows = {rows32, N, D, STRIDE, RK_FLOAT32};
  const int64_t candidates[] = {5, -1, 2};
  int64_t five[5];
  float scores[5];
  const rk_picks out = {five, scores, NULL, NULL, NULL};
  rk_select_options options;
  rk_select_options_init(&options);
  options.candidates = candidates;
  options.pool = 3;
  CHECK(rk_mmr(queries, 1, &rows, 5, &options, &out) == RK_OK);
  CHECK((five[0] == 5 && five[1] == 2) || (five[0] == 2 && five[1] == 5));
  CHECK(five[2] == -1 && five[4] == -1 && isinf(scores[2]) && isinf(scores[4]));
  options.size = offsetof(rk_select_options, candidates);
  CHECK(rk_mmr(queries, 1, &rows, 5, &options, &out) == RK_OK && five[4] >= 0);

  /* Errors. */
  CHECK(rk_mmr(queries, 1, &rows, 0, NULL, &out) == RK_INVALID_ARGUMENT);
  CHECK(strcmp(rk_last_error(), "mmr: k must be at least 1, got 0") == 0);
  rk_select_options_init(&options);
  options.lambda_d = 1.5;
  CHECK(rk_mmr(queries, 1, &rows, 5, &options, &out) == RK_INVALID_ARGUMENT);
  CHECK(strcmp(rk_last_error(), "mmr: lambda_d must be within [0, 1], got 1.5") == 0);
  const int64_t outside[] = {5, 60, 2};
  rk_select_options_init(&options);
  options.candidates = outside;
  options.pool = 3;
  CHECK(rk_vrsd(queries, 1, &rows, 2, &options, &out) == RK_INVALID_ARGUMENT);
  CHECK(strcmp(rk_last_error(),
               "vrsd: candidates must be -1 or rows of the corpus, below N = 60, got 60 for query 0") == 0);
  queries[3] = NAN;
  CHECK(rk_mmr(queries, 1, &rows, 5, NULL, &out) == RK_INVALID_ARGUMENT);
  CHECK(strcmp(rk_last_error(), "mmr: queries must be finite, got NaN or inf in row 0") == 0);
}

static void logprobs(void) {
  enum { T = 5, V = 1003 };
  static float logits[T * V];
  int64_t targets[T];
  float out[T];
  for (int i = 0; i < T * V; ++i) logits[i] = 20 * draw();
  for (int t = 0; t < T; ++t) targets[t] = 200 * t;
  const rk_matrix rows = {logits, T, V, V, RK_FLOAT32};
  rk_logprob_options options;
  rk_logprob_options_init(&options);
  options.temperature = 0.5;
  CHECK(rk_token_logprobs(&rows, targets, &options, out) == RK_OK);
  for (int t = 0; t < T; ++t) {
    double sum = 0;
    for (int v = 0; v < V; ++v) sum += exp(2.0 * logits[t * V + v] - 2.0 * logits[t * V + targets[t]]);
    CHECK(fabs(out[t] + log(sum)) < 1e-5 * (1 + log(sum)));
  }
  targets[2] = V;
  CHECK(rk_token_logprobs(&rows, targets, NULL, out) == RK_INVALID_ARGUMENT);
  CHECK(strcmp(rk_last_error(), "token_logprobs: targets must be within [0, 1003), got 1003 at position 2") == 0);
}

int main(void) {
  CHECK(rk_abi_version() == RK_ABI_VERSION);
  selections();
  logprobs();
  printf("ragsys_kernels %s, %s: %s\n", rk_version(), rk_instruction_set(), failures ? "FAILED" : "as expected");
  return failures != 0;
}
