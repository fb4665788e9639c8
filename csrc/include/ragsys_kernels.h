/* The C interface of the CPU kernels of ragsys_kernels.
 *
 * Arrays are the caller's and are not copied; matrices are row-major, and consecutive rows may lie further apart than
 * their columns take. A function returns RK_OK or why it did not, and then rk_last_error() says what was wrong, in the
 * words
 * `<op>: <argument> must <rule>, got <value>`. Calls from several threads at once are allowed. No C++ exception leaves
 * a call.
 *
 * Structs of options begin with their size, which rk_..._init() sets with every default: a program that was compiled
 * with an older header keeps working, since fields are only added at the end.
 */
#ifndef RAGSYS_KERNELS_H
#define RAGSYS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define RK_API __attribute__((visibility("default")))
#else
#define RK_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when a program that was compiled before would no longer work; the library's soname has it too. */
#define RK_ABI_VERSION 0

typedef enum rk_status { RK_OK = 0, RK_INVALID_ARGUMENT = 1, RK_OUT_OF_MEMORY = 2, RK_INTERNAL_ERROR = 3 } rk_status;

typedef enum rk_dtype { RK_FLOAT32 = 0, RK_FLOAT16 = 1, RK_BFLOAT16 = 2, RK_INT8 = 3 } rk_dtype;
typedef enum rk_metric { RK_COSINE = 0, RK_DOT = 1 } rk_metric;

/* A matrix. Consecutive rows are `stride` elements apart, at least `columns`. */
typedef struct rk_matrix {
  const void* data;
  int64_t rows, columns, stride;
  int32_t dtype; /* rk_dtype */
} rk_matrix;

typedef struct rk_select_options {
  size_t size;
  int32_t metric;            /* rk_metric; RK_COSINE. RK_INT8 rows need RK_COSINE, for which a scale does not matter */
  int32_t num_threads;       /* 1 */
  double lambda_d;           /* 1: the weight of relevance against diversity, within [0, 1] */
  double lambda_b;           /* 1: the weight of relevance against bias, within [0, 1] */
  const float* bias;         /* (N,) or NULL; rk_mmr only */
  const int64_t* candidates; /* (Q, pool) rows, -1 is padding; or NULL: all rows */
  int64_t pool;              /* columns of candidates; 0 without */
} rk_select_options;

/* Outputs, (Q, k) each; any may be NULL. Where nothing was left to pick: -1, minus infinity, NaN. */
typedef struct rk_picks {
  int64_t* indices;
  float* scores;
  float* relevance;
  float* redundancy;
  int32_t* lengths; /* (Q,): how many picks are real */
} rk_picks;

typedef struct rk_logprob_options {
  size_t size;
  int32_t num_threads; /* 1 */
  double temperature;  /* 1 */
  double logit_scale;  /* 1 */
  double softcap;      /* 0: none */
} rk_logprob_options;

RK_API void rk_select_options_init(rk_select_options* options);
RK_API void rk_logprob_options_init(rk_logprob_options* options);

/* The k picks of each of the Q queries (Q, columns) from the rows, by MMR with bias or by VRSD. options may be NULL. */
RK_API rk_status rk_mmr(const float* queries, int64_t num_queries, const rk_matrix* rows, int64_t k,
                        const rk_select_options* options, const rk_picks* out);
RK_API rk_status rk_vrsd(const float* queries, int64_t num_queries, const rk_matrix* rows, int64_t k,
                         const rk_select_options* options, const rk_picks* out);

/* log p of column targets[t] in row t of logits, for every row. logits are not RK_INT8; options may be NULL. */
RK_API rk_status rk_token_logprobs(const rk_matrix* logits, const int64_t* targets, const rk_logprob_options* options,
                                   float* out);

RK_API int rk_abi_version(void);
RK_API const char* rk_version(void);
/* The widest instruction set of this processor that the kernels are compiled for: "base", "avx2", "avx512". */
RK_API const char* rk_instruction_set(void);
/* What the last call of this thread that failed says; never NULL. Holds until the thread's next call. */
RK_API const char* rk_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
