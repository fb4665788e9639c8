// The C interface (csrc/include/ragsys_kernels.h) of the CPU kernels: checks, their words, and the border.
#include "ragsys_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "isa.h"
#include "scoring/args.h"
#include "selection/args.h"

namespace {

using rsk::DType;

thread_local char last_error[512] = "";

std::string shown(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", x);
  return text;
}
std::string shown(std::int64_t x) { return std::to_string(x); }

struct Invalid {
  std::string text;
};

[[noreturn]] void refuse(const char* op, const std::string& what) { throw Invalid{std::string(op) + ": " + what}; }

// Runs a call; what it throws becomes a status.
template <class F>
rk_status guarded(const char* op, const F& f) noexcept {
  const auto failed = [op](rk_status status, const char* what, bool has_op) {
    std::snprintf(last_error, sizeof last_error, "%s%s%s", has_op ? "" : op, has_op ? "" : ": ", what);
    return status;
  };
  try {
    f();
    return RK_OK;
  } catch (const Invalid& invalid) {
    return failed(RK_INVALID_ARGUMENT, invalid.text.c_str(), true);
  } catch (const std::bad_alloc&) {
    return failed(RK_OUT_OF_MEMORY, "out of memory", false);
  } catch (const std::exception& error) {
    return failed(RK_INTERNAL_ERROR, error.what(), false);
  } catch (...) {
    return failed(RK_INTERNAL_ERROR, "unknown error", false);
  }
}

int widest_isa() {
  int widest = 0;
  for (int isa = 1; isa < rsk::isa_count(); ++isa)
    if (rsk::isa_supported(isa)) widest = isa;
  return widest;
}

// The caller's options over the defaults; a shorter struct is an older one.
template <class Options>
Options read_options(const char* op, const Options* given, void (*init)(Options*)) {
  Options options;
  init(&options);
  if (!given) return options;
  if (given->size < offsetof(Options, num_threads) + sizeof(options.num_threads))
    refuse(op, "options must have the size that its init function sets, got " + shown(std::int64_t(given->size)));
  std::memcpy(&options, given, std::min(given->size, sizeof options));
  if (options.num_threads < 1)
    refuse(op, "num_threads must be at least 1, got " + shown(std::int64_t(options.num_threads)));
  return options;
}

void check_matrix(const char* op, const char* name, const rk_matrix* m, int most_dtype) {
  const std::string n = name;
  if (!m) refuse(op, n + " must be given, got NULL");
  if (m->dtype < 0 || m->dtype > most_dtype)
    refuse(op, n + " must have a dtype within [0, " + shown(std::int64_t(most_dtype)) + "], got " +
                   shown(std::int64_t(m->dtype)));
  if (m->rows < 1) refuse(op, n + " must have at least one row, got " + shown(m->rows));
  if (m->columns < 1) refuse(op, n + " must have at least one column, got " + shown(m->columns));
  if (m->stride < m->columns)
    refuse(op, n + " must have a stride of at least its " + shown(m->columns) + " columns, got " + shown(m->stride));
  if (!m->data) refuse(op, n + " must have data, got NULL");
}

float weight(const char* op, const char* name, double x) {
  if (!(x >= 0 && x <= 1)) refuse(op, std::string(name) + " must be within [0, 1], got " + shown(x));
  return float(x);
}

// Words why a query was given up.
[[noreturn]] void explain(const char* op, const rsk::SelectArgs& a, std::int64_t q) {
  const std::string of_query = " for query " + shown(q);
  const auto* ids = static_cast<const std::int64_t*>(a.candidates);
  switch (rsk::Status(a.status[q])) {
    case rsk::Status::id_out_of_range:
      for (std::int64_t p = q * a.pool; p < (q + 1) * a.pool; ++p)
        if (ids[p] < -1 || ids[p] >= a.num_rows)
          refuse(op, "candidates must be -1 or rows of the corpus, below N = " + shown(a.num_rows) + ", got " +
                         shown(ids[p]) + of_query);
      break;
    case rsk::Status::id_repeated: {
      std::vector<std::int64_t> sorted(ids + q * a.pool, ids + (q + 1) * a.pool);
      std::sort(sorted.begin(), sorted.end());
      for (std::size_t i = 1; i < sorted.size(); ++i)
        if (sorted[i] >= 0 && sorted[i] == sorted[i - 1])
          refuse(op, "candidates must not repeat an id within a query, got " + shown(sorted[i]) + " twice" + of_query);
      break;
    }
    case rsk::Status::norm_out_of_range:
      refuse(op, "embeddings must have row norms of 0 or within [1e-15, 1e+15], got one beyond it" + of_query +
                     "; rescale them");
    default:
      break;
  }
  for (std::int64_t d = 0; d < a.dims; ++d)
    if (!std::isfinite(a.queries[q * a.dims + d]))
      refuse(op, "queries must be finite, got NaN or inf in row " + shown(q));
  for (std::int64_t p = 0; a.bias && p < a.pool; ++p) {
    const std::int64_t row = ids ? ids[q * a.pool + p] : p;
    if (row >= 0 && !std::isfinite(a.bias[row])) refuse(op, "bias must be finite, got NaN or inf in row " + shown(row));
  }
  refuse(op, "embeddings must be finite and have products within the range of float32, got others" + of_query);
}

void select(const char* op, rsk::Method method, const float* queries, std::int64_t num_queries, const rk_matrix* rows,
            std::int64_t k, const rk_select_options* given, const rk_picks* out) {
  const rk_select_options options = read_options(op, given, rk_select_options_init);
  check_matrix(op, "embeddings", rows, RK_INT8);
  if (num_queries < 0) refuse(op, "num_queries must be at least 0, got " + shown(num_queries));
  if (k < 1) refuse(op, "k must be at least 1, got " + shown(k));
  if (!out) refuse(op, "out must be given, got NULL");
  if (options.metric != RK_COSINE && options.metric != RK_DOT)
    refuse(op, "metric must be RK_COSINE or RK_DOT, got " + shown(std::int64_t(options.metric)));
  const bool cosine = options.metric == RK_COSINE;
  if (rows->dtype == RK_INT8 && !cosine) refuse(op, "metric must be RK_COSINE for rows of int8, got RK_DOT");
  if (options.bias && method == rsk::Method::vrsd) refuse(op, "bias must be NULL, got an array");
  if (options.candidates && options.pool < 1)
    refuse(op, "pool must be at least 1 with candidates, got " + shown(options.pool));
  if (!options.candidates && options.pool != 0)
    refuse(op, "pool must be 0 without candidates, got " + shown(options.pool));
  const std::vector<float> lambda_d(std::size_t(num_queries), weight(op, "lambda_d", options.lambda_d)),
      lambda_b(std::size_t(num_queries), weight(op, "lambda_b", options.lambda_b));
  if (num_queries == 0) return;
  if (!queries) refuse(op, "queries must be given, got NULL");

  rsk::SelectArgs a{};
  a.method = method;
  a.num_queries = num_queries;
  a.num_rows = rows->rows;
  a.dims = rows->columns;
  a.pool = options.candidates ? options.pool : rows->rows;
  a.k = std::min(k, a.pool);
  a.rows = rows->data;
  a.dtype = DType(rows->dtype);
  a.row_stride = rows->stride;
  a.norm = cosine ? rsk::Norm::computed : rsk::Norm::as_given;
  a.queries = queries;
  a.unit_queries = cosine || method == rsk::Method::vrsd;
  a.unit_rows = cosine;
  a.candidates = options.candidates;
  a.id_bytes = 8;
  a.bias = options.bias;
  a.lambda_d = lambda_d.data();
  a.lambda_b = lambda_b.data();
  const std::size_t made = std::size_t(num_queries * a.k);
  std::vector<std::int64_t> indices(made);
  std::vector<float> scores(made), relevance(made), redundancy(made);
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(num_queries));
  std::vector<std::uint8_t> status(static_cast<std::size_t>(num_queries));
  a.indices = indices.data();
  a.scores = scores.data();
  a.out_relevance = relevance.data();
  a.redundancy = redundancy.data();
  a.lengths = lengths.data();
  a.status = status.data();
  rsk::select(a, widest_isa(), options.num_threads);
  for (std::int64_t q = 0; q < num_queries; ++q)
    if (status[std::size_t(q)]) explain(op, a, q);

  // Columns beyond the pool are padding.
  const auto copy = [&](auto* to, const auto& from, auto padding) {
    if (!to) return;
    for (std::int64_t q = 0; q < num_queries; ++q) {
      std::copy_n(from.data() + q * a.k, a.k, to + q * k);
      std::fill_n(to + q * k + a.k, k - a.k, padding);
    }
  };
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  copy(out->indices, indices, std::int64_t(-1));
  copy(out->scores, scores, -std::numeric_limits<float>::infinity());
  copy(out->relevance, relevance, kNaN);
  copy(out->redundancy, redundancy, kNaN);
  if (out->lengths) std::copy(lengths.begin(), lengths.end(), out->lengths);
}

double scale(const char* op, const char* name, double x) {
  if (!(x > 0 && std::isfinite(x))) refuse(op, std::string(name) + " must be positive and finite, got " + shown(x));
  if (x < 1e-15 || x > 1e15) refuse(op, std::string(name) + " must be within [1e-15, 1e+15], got " + shown(x));
  return x;
}

void token_logprobs(const char* op, const rk_matrix* logits, const std::int64_t* targets,
                    const rk_logprob_options* given, float* out) {
  const rk_logprob_options options = read_options(op, given, rk_logprob_options_init);
  check_matrix(op, "logits", logits, RK_BFLOAT16);
  if (!targets) refuse(op, "targets must be given, got NULL");
  if (!out) refuse(op, "out must be given, got NULL");
  const std::int64_t slots = logits->rows;
  const std::size_t size = std::size_t(slots);
  for (std::int64_t t = 0; t < slots; ++t)
    if (targets[t] < 0 || targets[t] >= logits->columns)
      refuse(op, "targets must be within [0, " + shown(logits->columns) + "), got " + shown(targets[t]) +
                     " at position " + shown(t));
  const std::vector<float> inverse(size, float(1 / scale(op, "temperature", options.temperature)));
  std::vector<std::int64_t> rows(size), begin(size + 1);
  for (std::size_t t = 0; t < size; ++t) rows[t] = begin[t] = std::int64_t(t);
  begin[size] = slots;
  std::vector<float> ref(size), largest(size), target(size);
  std::vector<double> sum(size);

  rsk::ScoreArgs a{};
  a.form = rsk::Form::logits;
  a.num_slots = slots;
  a.rows = rows.data();
  a.inverse_temperature = inverse.data();
  a.logit_scale = float(scale(op, "logit_scale", options.logit_scale));
  a.softcap = options.softcap == 0 ? 0.0f : float(scale(op, "softcap", options.softcap));
  a.logits = logits->data;
  a.dtype = DType(logits->dtype);
  a.row_stride = logits->stride;
  a.num_columns = logits->columns;
  a.pair_begin = begin.data();
  a.columns = targets;
  a.ref = ref.data();
  a.max = largest.data();
  a.sum = sum.data();
  a.target = target.data();
  rsk::score(a, widest_isa(), options.num_threads);
  for (std::size_t t = 0; t < size; ++t) {
    // z - lse would cancel where both are large. The bound: the sum has the target's own term in it, but rounded.
    const double logp = (target[t] - double(ref[t])) - std::log(sum[t]);
    out[t] = float(logp > 0 ? 0.0 : logp);
  }
}

}  // namespace

extern "C" {

void rk_select_options_init(rk_select_options* options) {
  *options = {};
  options->size = sizeof *options;
  options->metric = RK_COSINE;
  options->num_threads = 1;
  options->lambda_d = options->lambda_b = 1;
}

void rk_logprob_options_init(rk_logprob_options* options) {
  *options = {};
  options->size = sizeof *options;
  options->num_threads = 1;
  options->temperature = options->logit_scale = 1;
}

rk_status rk_mmr(const float* queries, int64_t num_queries, const rk_matrix* rows, int64_t k,
                 const rk_select_options* options, const rk_picks* out) {
  return guarded("mmr", [&] { select("mmr", rsk::Method::mmr, queries, num_queries, rows, k, options, out); });
}

rk_status rk_vrsd(const float* queries, int64_t num_queries, const rk_matrix* rows, int64_t k,
                  const rk_select_options* options, const rk_picks* out) {
  return guarded("vrsd", [&] { select("vrsd", rsk::Method::vrsd, queries, num_queries, rows, k, options, out); });
}

rk_status rk_token_logprobs(const rk_matrix* logits, const int64_t* targets, const rk_logprob_options* options,
                            float* out) {
  return guarded("token_logprobs", [&] { token_logprobs("token_logprobs", logits, targets, options, out); });
}

int rk_abi_version(void) { return RK_ABI_VERSION; }
const char* rk_version(void) { return RK_VERSION; }
const char* rk_instruction_set(void) { return rsk::isa_name(widest_isa()); }
const char* rk_last_error(void) { return last_error; }

}  // extern "C"
