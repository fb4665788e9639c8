// Python for selections, searches and codes.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "binding.h"
#include "selection/args.h"
#include "selection/given.h"
#include "selection/path.h"
#include "selection/top_n.h"

namespace rsk {
namespace {

void set_rows(SelectArgs& a, const py::array& rows, int dtype) {
  const Matrix m = matrix(rows, dtype, "rows");
  a.rows = m.data;
  a.num_rows = m.rows;
  a.dims = dims_of(m.dtype, m.columns);
  a.row_stride = m.stride;
  a.dtype = m.dtype;
}

// Floats or, to rows of signs, bytes of signs.
void set_queries(SelectArgs& a, const Optional& queries) {
  if (queries && queries->dtype().kind() == 'u') {
    require(a.dtype == DType::bits, "queries");
    const std::uint8_t* const signs = pointer(queries, a.num_queries * (a.dims / 8), "queries");
    a.query_signs = signs;
    return;
  }
  a.queries = pointer(queries, a.num_queries * a.dims, "queries");
}

const void* set_ids(const Optional& ids, std::int64_t rows, std::int64_t columns, int* bytes, const char* name) {
  if (!ids) return nullptr;
  require(ids->ndim() == 2 && ids->shape(0) == rows && ids->shape(1) == columns, name);
  require(ids->flags() & py::array::c_style, name);
  require(ids->dtype().kind() == 'i' && (ids->itemsize() == 4 || ids->itemsize() == 8) && !swapped(*ids), name);
  *bytes = int(ids->itemsize());
  return ids->data();
}

// Constraints as they arrive.
struct Given {
  Optional initial, groups, query_groups;
  std::int64_t max_per_group = 0;
  Optional allowed, exclude, costs, budget, max_similarity;
};

template <class T>
T item_of(const py::tuple& tuple, std::size_t i) {
  return py::reinterpret_borrow<py::object>(tuple[i]).cast<T>();
}

Given given_constraints(const std::optional<py::tuple>& tuple) {
  if (!tuple) return {};
  const py::tuple& t = *tuple;
  require(t.size() == 9, "constraints");
  return {item_of<Optional>(t, 0),     item_of<Optional>(t, 1), item_of<Optional>(t, 2),
          item_of<std::int64_t>(t, 3), item_of<Optional>(t, 4), item_of<Optional>(t, 5),
          item_of<Optional>(t, 6),     item_of<Optional>(t, 7), item_of<Optional>(t, 8)};
}

// The limits that searches have too.
void set_filters(SelectArgs& a, const Given& given) {
  Constraints& limits = a.limits;
  limits.groups = pointer(given.groups, a.num_rows, "groups");
  limits.query_groups = pointer(given.query_groups, a.num_queries, "query_groups");
  require(!limits.query_groups || limits.groups, "query_groups");
  limits.allowed_per_query = given.allowed && given.allowed->ndim() == 2;
  limits.allowed = pointer(given.allowed, (limits.allowed_per_query ? a.num_queries : 1) * a.num_rows, "allowed");
  limits.num_excluded = given.exclude ? given.exclude->shape(1) : 0;
  limits.exclude = pointer(given.exclude, a.num_queries * limits.num_excluded, "exclude");
  require((!given.allowed && !given.exclude) || (!a.candidates && !a.pool_stride), "allowed");
}

void set_limits(SelectArgs& a, const Given& given) {
  Constraints& limits = a.limits;
  limits.num_initial = given.initial ? given.initial->shape(1) : 0;
  limits.initial = set_ids(given.initial, a.num_queries, limits.num_initial, &limits.initial_bytes, "initial");
  limits.max_per_group = given.max_per_group;
  require(limits.max_per_group == 0 || limits.groups, "max_per_group");
  limits.costs_per_item = given.costs && given.costs->ndim() == 2;
  limits.costs = pointer(given.costs, limits.costs_per_item ? a.num_queries * a.pool : a.num_rows, "costs");
  limits.budget = pointer(given.budget, a.num_queries, "budget");
  require(!limits.costs == !limits.budget, "budget");
  limits.max_similarity = pointer(given.max_similarity, a.num_queries, "max_similarity");
}

// quality, scale, noise, min_gain, gamma, window, kind, aspects, weights, density
void set_options(SelectArgs& a, const std::optional<py::tuple>& tuple) {
  if (!tuple) return require(a.method <= Method::msd, "options");
  const py::tuple& t = *tuple;
  require(t.size() == 10, "options");
  const auto number = [&](std::size_t i) { return t[i].is_none() ? 0.0 : item_of<double>(t, i); };
  const Optional quality = item_of<Optional>(t, 0), aspects = item_of<Optional>(t, 7),
                 weights = item_of<Optional>(t, 8);
  Options& options = a.options;
  options.quality_per_item = quality && quality->ndim() == 2;
  options.quality = pointer(quality, options.quality_per_item ? a.num_queries * a.pool : a.num_rows, "quality");
  options.scale = float(number(1));
  options.noise = float(number(2));
  options.min_gain = float(number(3));
  options.gamma = float(number(4));
  options.window = std::int64_t(number(5));
  require(options.window >= 0, "window");
  if (aspects) require(aspects->ndim() == 3 && aspects->shape(1) >= 1, "aspects");
  options.num_aspects = aspects ? aspects->shape(1) : 0;
  options.aspects = pointer(aspects, a.num_queries * options.num_aspects * a.dims, "aspects");
  require(!weights || aspects, "weights");
  options.weights = pointer(weights, a.num_queries * options.num_aspects, "weights");
  options.density = !t[9].is_none() && item_of<bool>(t, 9);
  require(!options.density || a.limits.costs, "density");
}

// The arguments that both entry points share.
SelectArgs pool_args(std::int64_t num_queries, std::int64_t pool, std::int64_t pool_stride, const py::array& rows,
                     int dtype, int norm, const Optional& scales, const Optional& queries, bool unit_queries,
                     const Optional& candidates, const Optional& bias, const Optional& lambda_b, const Given& given,
                     std::uint8_t* status) {
  SelectArgs a{};
  a.num_queries = num_queries;
  a.pool = pool;
  a.pool_stride = pool_stride;
  set_rows(a, rows, dtype);
  require(candidates || (pool_stride ? num_queries * pool_stride : pool) == a.num_rows, "pool");
  a.norm = Norm(norm);
  a.scales = pointer(scales, a.num_rows, "scales");
  require(a.norm != Norm::scaled || a.scales, "scales");
  require(a.dtype != DType::bits || a.norm == Norm::as_given, "norm");
  set_queries(a, queries);
  a.unit_queries = unit_queries;
  a.candidates = set_ids(candidates, num_queries, pool, &a.id_bytes, "candidates");
  a.bias_per_item = bias && bias->ndim() == 2;
  a.bias = pointer(bias, a.bias_per_item ? num_queries * pool : a.num_rows, "bias");
  a.lambda_b = pointer(lambda_b, num_queries, "lambda_b");
  require(!a.bias || a.lambda_b, "lambda_b");
  set_filters(a, given);
  a.status = status;
  return a;
}

py::tuple select_pools(int method, std::int64_t num_queries, std::int64_t pool, std::int64_t pool_stride,
                       const py::array& rows, int dtype, int norm, const Optional& scales, const Optional& codes,
                       const Optional& queries, bool unit_queries, bool unit_rows, int bounds,
                       const Optional& candidates, const Optional& relevance, const Optional& bias, std::int64_t k,
                       const Optional& ks, const Optional& lambda_d, const Optional& lambda_b,
                       const Optional& relevance_error, const Optional& forced, const Optional& ceiling,
                       const Optional& outside, float max_bias, bool best_first,
                       const std::optional<py::tuple>& constraints, const std::optional<py::tuple>& options, int isa,
                       int num_threads, std::optional<Array<float>> pool_needed) {
  std::vector<std::uint8_t> status(static_cast<std::size_t>(num_queries));
  const Given given = given_constraints(constraints);
  SelectArgs a = pool_args(num_queries, pool, pool_stride, rows, dtype, norm, scales, queries, unit_queries, candidates,
                           bias, lambda_b, given, status.data());
  require(method >= 0 && method < kMethods, "method");
  a.method = Method(method);
  a.codes = pointer(codes, a.num_rows * code_stride(a.dims), "codes");
  a.unit_rows = unit_rows;
  a.bounds = Bounds(bounds);
  a.k = k;
  a.ks = pointer(ks, num_queries, "k");
  require(k >= 1, "k");
  a.lambda_d = pointer(lambda_d, num_queries, "lambda_d");
  require(a.lambda_d, "lambda_d");
  a.relevance = pointer(relevance, num_queries * pool, "relevance");
  require(!a.bias || a.method != Method::vrsd, "bias");
  const bool asked = a.queries || a.query_signs;
  require(asked || (a.relevance && a.method != Method::vrsd), "queries");
  set_limits(a, given);
  set_options(a, options);
  a.relevance_error = pointer(relevance_error, num_queries, "relevance_error");
  a.forced = pointer(forced, num_queries * k, "forced");
  a.ceiling = pointer(ceiling, num_queries * pool, "ceiling");
  a.outside = pointer(outside, num_queries, "outside");
  a.max_bias = max_bias;
  a.best_first = best_first;
  require(!a.ceiling || (a.forced && !a.relevance && asked && a.method == Method::mmr), "ceiling");
  require(!a.relevance_error || (a.relevance && asked && a.method == Method::mmr), "relevance_error");

  const std::array<py::ssize_t, 2> shape = {num_queries, k};
  Array<std::int64_t> indices(shape);
  Array<float> scores(shape), out_relevance(shape), redundancy(shape);
  Array<std::int32_t> lengths(num_queries);
  a.indices = indices.mutable_data();
  a.scores = scores.mutable_data();
  a.out_relevance = out_relevance.mutable_data();
  a.redundancy = redundancy.mutable_data();
  a.lengths = lengths.mutable_data();
  if (pool_needed) {
    require(a.method == Method::mmr && unit_rows && pool_needed->size() == num_queries, "pool_needed");
    a.pool_needed = pool_needed->mutable_data();
  }
  std::int64_t work[3];
  a.work = work;
  without_gil([&] { select(a, isa, num_threads); });
  const bool well = std::all_of(status.begin(), status.end(), [](std::uint8_t query) { return query == 0; });
  return py::make_tuple(indices, scores, out_relevance, redundancy, lengths,
                        well ? py::object(py::none()) : Array<std::uint8_t>(num_queries, status.data()),
                        py::make_tuple(work[0], work[1], work[2]));
}

py::tuple path_pools(std::int64_t num_queries, std::int64_t pool, std::int64_t pool_stride, const py::array& rows,
                     int dtype, int norm, const Optional& scales, const Optional& queries, bool unit_queries,
                     const Optional& candidates, const Optional& relevance, const Optional& bias, std::int64_t k,
                     const Optional& ks, const Optional& lambda_b, double low, double high,
                     const std::optional<py::tuple>& constraints, int isa, int num_threads) {
  Array<std::uint8_t> status(num_queries);
  const Given given = given_constraints(constraints);
  SelectArgs a = pool_args(num_queries, pool, pool_stride, rows, dtype, norm, scales, queries, unit_queries, candidates,
                           bias, lambda_b, given, status.mutable_data());
  a.k = k;
  a.ks = pointer(ks, num_queries, "k");
  require(k >= 1, "k");
  a.relevance = pointer(relevance, num_queries * pool, "relevance");
  require(a.queries || a.query_signs || a.relevance, "queries");
  require(low <= high, "low");
  set_limits(a, given);
  std::vector<QueryPath> paths;
  without_gil([&] { select_path(a, low, high, paths, isa, num_threads); });
  Array<std::int64_t> cu_segments(num_queries + 1);
  std::int64_t segments = *cu_segments.mutable_data() = 0;
  for (std::int64_t q = 0; q < num_queries; ++q)
    cu_segments.mutable_data()[q + 1] = segments += std::int64_t(paths[std::size_t(q)].low.size());
  Array<double> lows(segments), highs(segments);
  Array<std::int64_t> indices({segments, k});
  for (std::int64_t q = 0; q < num_queries; ++q) {
    QueryPath& path = paths[std::size_t(q)];
    const std::int64_t begin = cu_segments.data()[q];
    std::copy(path.low.begin(), path.low.end(), lows.mutable_data() + begin);
    std::copy(path.high.begin(), path.high.end(), highs.mutable_data() + begin);
    std::copy(path.picks.begin(), path.picks.end(), indices.mutable_data() + begin * k);
    path = {};
  }
  return py::make_tuple(cu_segments, lows, highs, indices, status);
}

Array<std::uint8_t> encode_rows(const py::array& rows, int dtype, const Optional& scales, int isa, int num_threads) {
  SelectArgs a{};
  set_rows(a, rows, dtype);
  require(a.dtype != DType::bits, "dtype");
  // On whole cache lines, as code rows are made to be read.
  constexpr std::int64_t kLine = 64;
  const std::int64_t stride = code_stride(a.dims);
  Array<std::uint8_t> memory(a.num_rows * stride + kLine);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  Array<std::uint8_t> out({a.num_rows, stride}, memory.mutable_data() + (kLine - address % kLine) % kLine, memory);
  const EncodeArgs args = {
      a.rows, a.num_rows, a.dims, a.row_stride, a.dtype, pointer(scales, a.num_rows, "scales"), out.mutable_data()};
  without_gil([&] { encode(args, isa, num_threads); });
  return out;
}

// Rows into `out` and `scales`. Returns the first row that cannot be stored, or their number, the reason, and the
// largest norm.
py::tuple store(const py::array& rows, int given, py::array& out, int dtype, std::optional<py::array>& scales,
                bool cosine, int isa) {
  const Matrix from = matrix(rows, given, "rows"), to = matrix(out, dtype, "out");
  require(from.dtype < DType::i8 && to.dtype <= DType::i8 && to.rows == from.rows && to.columns == from.columns &&
              out.writeable(),
          "out");
  require(to.stride == to.columns || to.rows <= 1, "out");
  if (scales) require(scales->writeable(), "scales");
  StoreArgs args = {from.data, from.rows, from.columns,       from.stride, from.dtype,
                    to.dtype,  cosine,    out.mutable_data(), nullptr};
  if (scales) {
    const float* const checked = pointer(*scales, from.rows, "scales");
    args.scales = const_cast<float*>(checked);
  }
  Stored stored;
  without_gil([&] { stored = store_rows(args, isa); });
  return py::make_tuple(stored.row, int(stored.status), stored.largest_norm);
}

// Whether rows are stored at these places of `data`. Returns that with the first row that cannot be stored, or their
// number, and the reason.
py::tuple same(const py::array& rows, int given, const py::array& data, int dtype, const Optional& scales,
               const py::array& places, bool cosine, int isa, int num_threads) {
  const Matrix from = matrix(rows, given, "rows"), stored = matrix(data, dtype, "data");
  require(from.dtype < DType::i8 && stored.dtype <= DType::i8 && stored.columns == from.columns, "data");
  require(stored.stride == stored.columns || stored.rows <= 1, "data");
  const std::int64_t* const at = pointer(places, from.rows, "places");
  for (std::int64_t row = 0; row < from.rows; ++row) require(at[row] < stored.rows, "places");
  Array<std::uint8_t> out(from.rows);
  const StoreArgs args = {from.data, from.rows, from.columns, from.stride, from.dtype, stored.dtype, cosine, {}, {}};
  const SameArgs there = {stored.data, pointer(scales, stored.rows, "scales"), at, out.mutable_data()};
  Stored found;
  without_gil([&] { found = same_rows(args, there, isa, num_threads); });
  return py::make_tuple(out, found.row, int(found.status));
}

py::tuple pool_relevance(std::int64_t num_queries, std::int64_t pool, const py::array& rows, int dtype, int norm,
                         const Optional& scales, const Optional& queries, bool unit_queries, const Optional& candidates,
                         const Optional& bias, const Optional& lambda_b, int isa, int num_threads) {
  Array<std::uint8_t> status(num_queries);
  RelevanceArgs a{};
  a.pool = pool_args(num_queries, pool, 0, rows, dtype, norm, scales, queries, unit_queries, candidates, bias, lambda_b,
                     {}, status.mutable_data());
  require((a.pool.queries || a.pool.query_signs) && a.pool.candidates, "queries and candidates");
  Array<float> out({num_queries, pool});
  a.out = out.mutable_data();
  without_gil([&] { relevance(a, isa, num_threads); });
  return py::make_tuple(out, status);
}

// The rows of a scan or a search, all of a corpus.
SelectArgs corpus_args(std::int64_t num_queries, const py::array& rows, int dtype, int norm, const Optional& scales,
                       const Optional& codes, const Optional& queries, bool unit_queries, const Optional& bias,
                       const Optional& lambda_b, const Given& given, std::uint8_t* status) {
  require(rows.ndim() == 2, "rows");
  SelectArgs a = pool_args(num_queries, rows.shape(0), 0, rows, dtype, norm, scales, queries, unit_queries,
                           std::nullopt, bias, lambda_b, given, status);
  a.codes = pointer(codes, a.num_rows * code_stride(a.dims), "codes");
  require(!a.bias_per_item, "bias");
  return a;
}

py::tuple scan_rows(const Array<float>& vectors, std::int64_t n, const py::array& rows, int dtype, int norm,
                    const Optional& scales, const Optional& codes, float row_error, float max_norm,
                    const Optional& bias, float largest_bias, const Optional& score_weight, const Optional& bias_weight,
                    const Optional& groups, const Optional& query_groups, int isa, int num_threads,
                    const Optional& allowed, const Optional& exclude) {
  require(vectors.ndim() == 3 && vectors.shape(0) >= 1 && vectors.shape(0) <= kScanVectors, "vectors");
  require(n >= 1, "n");
  const std::int64_t num_queries = vectors.shape(1);
  ScanArgs a{};
  a.corpus = corpus_args(num_queries, rows, dtype, norm, scales, codes, std::nullopt, false, bias, score_weight,
                         {{}, groups, query_groups, 0, allowed, exclude, {}, {}, {}}, nullptr);
  require(vectors.shape(2) == a.corpus.dims, "vectors");
  a.terms = vectors.shape(0);
  a.vectors = vectors.data();
  a.row_error = row_error;
  a.largest_bias = largest_bias;
  a.max_norm = max_norm;
  a.score_weight = a.corpus.lambda_b;
  a.bias_weight = pointer(bias_weight, num_queries, "bias_weight");
  require(!a.corpus.bias || a.bias_weight, "bias_weight");
  TopN top(num_queries, n, false);
  bool well = true;
  without_gil([&] { well = top.scan(a, isa, num_threads); });
  const std::int64_t width = top.width();
  Array<std::int64_t> kept({num_queries, width});
  Array<float> scores({num_queries, width}), outside(num_queries), error(num_queries);
  top.get(kept.mutable_data(), scores.mutable_data(), width, outside.mutable_data(), error.mutable_data());
  return py::make_tuple(kept, scores, outside, error, well);
}

py::tuple search_rows(const py::array& queries, bool unit_queries, std::int64_t n, const py::array& rows, int dtype,
                      int norm, const Optional& scales, const Optional& codes, float row_error, const Optional& bias,
                      float largest_bias, const Optional& lambda_b, const Optional& groups,
                      const Optional& query_groups, int isa, int num_threads, const Optional& allowed,
                      const Optional& exclude) {
  require(queries.ndim() == 2, "queries");
  require(n >= 1, "n");
  const std::int64_t num_queries = queries.shape(0);
  Array<std::uint8_t> status(num_queries);
  SearchArgs a{};
  a.corpus = corpus_args(num_queries, rows, dtype, norm, scales, codes, queries, unit_queries, bias, lambda_b,
                         {{}, groups, query_groups, 0, allowed, exclude, {}, {}, {}}, status.mutable_data());
  require(a.corpus.norm != Norm::computed, "norm");
  a.row_error = row_error;
  a.largest_bias = largest_bias;
  a.n = n;
  Array<std::int64_t> indices({num_queries, n});
  Array<float> scores({num_queries, n});
  a.indices = indices.mutable_data();
  a.scores = scores.mutable_data();
  without_gil([&] { search(a, isa, num_threads); });
  return py::make_tuple(indices, scores, status);
}

py::tuple given_pools(int rule, const Array<float>& similarity, const Array<float>& values, const Optional& weights,
                      float one, float gamma, float largest, const std::array<float, 5>& determinant, std::int64_t k,
                      const Optional& ks, const Optional& lambda_d, const Optional& open, const Optional& initial,
                      const Optional& groups, std::int64_t max_per_group, const Optional& costs, const Optional& budget,
                      const Optional& max_similarity, int num_threads) {
  require(similarity.ndim() == 3 && similarity.shape(1) == similarity.shape(2), "similarity");
  GivenArgs a{};
  a.num_queries = similarity.shape(0);
  a.pool = similarity.shape(1);
  const std::int64_t items = a.num_queries * a.pool;
  require(rule >= 0 && rule <= 5 && (rule != 2 || weights), "rule");
  a.rule = GivenRule(rule);
  a.similarity = similarity.data();
  require(values.size() == items, "values");
  a.values = values.data();
  a.weights = pointer(weights, items, "weights");
  a.one = one;
  a.gamma = gamma;
  a.largest = largest;
  a.least_left = determinant[0];
  a.unequal = determinant[1];
  a.negative = determinant[2];
  a.sound = determinant[3];
  a.pairs = std::int64_t(determinant[4]);
  a.k = k;
  require(k >= 1, "k");
  a.ks = pointer(ks, a.num_queries, "k");
  a.lambda_d = pointer(lambda_d, a.num_queries, "lambda_d");
  require(a.lambda_d, "lambda_d");
  a.open = pointer(open, items, "open");
  a.num_initial = initial ? initial->shape(1) : 0;
  a.initial = pointer(initial, a.num_queries * a.num_initial, "initial");
  a.max_per_group = max_per_group;
  a.groups = pointer(groups, items, "groups");
  require(max_per_group == 0 || a.groups, "max_per_group");
  a.costs = pointer(costs, items, "costs");
  a.budget = pointer(budget, a.num_queries, "budget");
  require(!a.costs == !a.budget, "budget");
  a.max_similarity = pointer(max_similarity, a.num_queries, "max_similarity");
  for (std::int64_t i = 0; i < a.num_queries * a.num_initial; ++i)
    require(a.initial[i] >= -1 && a.initial[i] < a.pool, "initial");
  for (std::int64_t q = 0; a.ks && q < a.num_queries; ++q) require(a.ks[q] <= k, "k");
  const std::array<py::ssize_t, 2> shape = {a.num_queries, k};
  Array<std::int64_t> indices(shape);
  Array<float> scores(shape), relevance(shape), redundancy(shape);
  Array<std::int32_t> lengths(a.num_queries);
  Array<std::uint8_t> status(a.num_queries);
  a.indices = indices.mutable_data();
  a.scores = scores.mutable_data();
  a.relevance = relevance.mutable_data();
  a.redundancy = redundancy.mutable_data();
  a.lengths = lengths.mutable_data();
  a.status = status.mutable_data();
  without_gil([&] { select_given(a, num_threads); });
  return py::make_tuple(indices, scores, relevance, redundancy, lengths, status);
}

void bind_selection(py::module_& m) {
  m.def("select", &select_pools, py::arg("method"), py::arg("num_queries"), py::arg("pool"), py::arg("pool_stride"),
        py::arg("rows"), py::arg("dtype"), py::arg("norm"), py::arg("scales"), py::arg("codes"), py::arg("queries"),
        py::arg("unit_queries"), py::arg("unit_rows"), py::arg("bounds"), py::arg("candidates"), py::arg("relevance"),
        py::arg("bias"), py::arg("k"), py::arg("ks"), py::arg("lambda_d"), py::arg("lambda_b"),
        py::arg("relevance_error"), py::arg("forced"), py::arg("ceiling"), py::arg("outside"), py::arg("max_bias"),
        py::arg("best_first"), py::arg("constraints"), py::arg("options"), py::arg("isa"), py::arg("num_threads"),
        py::arg("pool_needed").noconvert() = py::none());
  m.def("path", &path_pools, py::arg("num_queries"), py::arg("pool"), py::arg("pool_stride"), py::arg("rows"),
        py::arg("dtype"), py::arg("norm"), py::arg("scales"), py::arg("queries"), py::arg("unit_queries"),
        py::arg("candidates"), py::arg("relevance"), py::arg("bias"), py::arg("k"), py::arg("ks"), py::arg("lambda_b"),
        py::arg("low"), py::arg("high"), py::arg("constraints"), py::arg("isa"), py::arg("num_threads"));
  m.def("select_given", &given_pools, py::arg("rule"), py::arg("similarity").noconvert(), py::arg("values").noconvert(),
        py::arg("weights"), py::arg("one"), py::arg("gamma"), py::arg("largest"), py::arg("determinant"), py::arg("k"),
        py::arg("ks"), py::arg("lambda_d"), py::arg("open"), py::arg("initial"), py::arg("groups"),
        py::arg("max_per_group"), py::arg("costs"), py::arg("budget"), py::arg("max_similarity"),
        py::arg("num_threads"));
  m.def("encode", &encode_rows, py::arg("rows"), py::arg("dtype"), py::arg("scales"), py::arg("isa"),
        py::arg("num_threads"));
  m.def("same", &same, py::arg("rows"), py::arg("given"), py::arg("data"), py::arg("dtype"), py::arg("scales"),
        py::arg("places"), py::arg("cosine"), py::arg("isa"), py::arg("num_threads"));
  m.def("store", &store, py::arg("rows"), py::arg("given"), py::arg("out"), py::arg("dtype"), py::arg("scales"),
        py::arg("cosine"), py::arg("isa"));
  m.def("relevance", &pool_relevance, py::arg("num_queries"), py::arg("pool"), py::arg("rows"), py::arg("dtype"),
        py::arg("norm"), py::arg("scales"), py::arg("queries"), py::arg("unit_queries"), py::arg("candidates"),
        py::arg("bias"), py::arg("lambda_b"), py::arg("isa"), py::arg("num_threads"));
  m.def("code_scan_supported", &code_scan_supported, py::arg("isa"), py::arg("vectors"));
  m.def(
      "code_error",
      [](const Array<std::uint8_t>& codes) {
        require(codes.ndim() == 2 && codes.shape(1) >= kCodeHeader, "codes");
        return largest_code_error(codes.data(), codes.shape(0), codes.shape(1));
      },
      py::arg("codes").noconvert());
  m.def("scan", &scan_rows, py::arg("vectors").noconvert(), py::arg("n"), py::arg("rows"), py::arg("dtype"),
        py::arg("norm"), py::arg("scales"), py::arg("codes"), py::arg("row_error"), py::arg("max_norm"),
        py::arg("bias"), py::arg("largest_bias"), py::arg("score_weight"), py::arg("bias_weight"), py::arg("groups"),
        py::arg("query_groups"), py::arg("isa"), py::arg("num_threads"), py::arg("allowed") = py::none(),
        py::arg("exclude") = py::none());
  m.def("search", &search_rows, py::arg("queries").noconvert(), py::arg("unit_queries"), py::arg("n"), py::arg("rows"),
        py::arg("dtype"), py::arg("norm"), py::arg("scales"), py::arg("codes"), py::arg("row_error"), py::arg("bias"),
        py::arg("largest_bias"), py::arg("lambda_b"), py::arg("groups"), py::arg("query_groups"), py::arg("isa"),
        py::arg("num_threads"), py::arg("allowed") = py::none(), py::arg("exclude") = py::none());
}

}  // namespace
}  // namespace rsk
