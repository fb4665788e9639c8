// Python for selections, searches and codes.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "binding.h"
#include "selection/args.h"
#include "selection/given.h"
#include "selection/path.h"
#include "selection/top_n.h"

namespace rsk {
namespace {

void set_rows(SelectArgs& a, const py::array& rows, const py::object& dtype) {
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

// Values of rows (N,) or, per item, of the items of each query (Q, P).
Memory of_items(const SelectArgs& a, const Fields& of, Name name, bool* per_item) {
  const Optional values = of.array(name);
  *per_item = values && values->ndim() == 2;
  return pointer(values, *per_item ? a.num_queries * a.pool : a.num_rows, name.text);
}

// The functions below alone know what the attributes of Python's objects are called, each of one class.

// Problem: what all calls read, and Rows, which are returned.
Fields set_pool(SelectArgs& a, const Fields& problem) {
  a.num_queries = problem.number<std::int64_t>(NAME("num_queries"));
  a.pool = problem.number<std::int64_t>(NAME("pool"));
  a.pool_stride = problem.number<std::int64_t>(NAME("pool_stride"));
  const Fields rows = problem.of(NAME("rows"));
  const Optional data = rows.array(NAME("data"));
  require(data.has_value(), "rows");
  set_rows(a, *data, rows.get(NAME("dtype")));
  a.norm = named<Norm>(rows.get(NAME("norm")), kNorms, "norm");
  a.scales = rows.pointer(NAME("scales"), a.num_rows);
  require(a.norm != Norm::scaled || a.scales, "scales");
  require(a.dtype != DType::bits || a.norm == Norm::as_given, "norm");
  const Optional candidates = problem.array(NAME("candidates"));
  require(candidates || (a.pool_stride ? a.num_queries * a.pool_stride : a.pool) == a.num_rows, "pool");
  a.candidates = set_ids(candidates, a.num_queries, a.pool, &a.id_bytes, "candidates");
  set_queries(a, problem.array(NAME("queries")));
  a.unit_queries = problem.number<bool>(NAME("unit_queries"));
  a.bias = of_items(a, problem, NAME("bias"), &a.bias_per_item);
  a.lambda_b = problem.pointer(NAME("lambda_b"), a.num_queries);
  require(!a.bias || a.lambda_b, "lambda_b");
  return rows;
}

// Problem: how many picks.
void set_picks(SelectArgs& a, const Fields& problem) {
  a.k = problem.number<std::int64_t>(NAME("k"));
  a.ks = problem.pointer(NAME("ks"), a.num_queries);
  require(a.k >= 1, "k");
}

void set_codes(SelectArgs& a, const Fields& rows) {
  a.codes = rows.pointer(NAME("codes"), a.num_rows * code_stride(a.dims));
}

// Constraints: those that searches have too, and Filter.
void set_filters(SelectArgs& a, const Fields& given) {
  Constraints& limits = a.limits;
  limits.groups = given.pointer(NAME("groups"), a.num_rows);
  limits.query_groups = given.pointer(NAME("query_groups"), a.num_queries);
  require(!limits.query_groups || limits.groups, "query_groups");
  const Fields filter = given.of(NAME("filter"));
  if (!filter) return;
  require(!a.candidates && !a.pool_stride, "filter");
  const Optional mask = filter.array(NAME("mask")), exclude = filter.array(NAME("exclude"));
  limits.allowed_per_query = mask && mask->ndim() == 2;
  limits.allowed = pointer(mask, (limits.allowed_per_query ? a.num_queries : 1) * a.num_rows, "mask");
  limits.num_excluded = exclude ? exclude->shape(1) : 0;
  limits.exclude = pointer(exclude, a.num_queries * limits.num_excluded, "exclude");
}

// Quotas.
void set_quotas(SelectArgs& a, const Fields& given) {
  if (!given) return;
  Quotas& quotas = a.limits.quotas;
  const Optional groups = given.array(NAME("groups"));
  require(groups && groups->ndim() == 2 && groups->shape(0) >= 1, "groups");
  const std::int64_t levels = groups->shape(0);
  quotas.num_rows = a.num_rows;
  quotas.groups = pointer(groups, levels * a.num_rows, "groups");
  quotas.offsets = given.pointer(NAME("offsets"), levels + 1);
  require(quotas.offsets && quotas.offsets[0] == 0, "offsets");
  for (std::int64_t i = 0; i < levels; ++i) require(quotas.offsets[i] <= quotas.offsets[i + 1], "offsets");
  const std::int64_t size = quotas.offsets[levels];
  quotas.numbers = given.pointer(NAME("numbers"), size);
  quotas.caps = given.pointer(NAME("caps"), size);
  quotas.others = given.pointer(NAME("others"), levels);
  require(quotas.numbers && quotas.caps && quotas.others, "caps");
  quotas.minima = given.pointer(NAME("minima"), size);
  require(!quotas.minima || levels == 1, "minima");
  quotas.num_levels = levels;
}

// Constraints: the others.
void set_limits(SelectArgs& a, const Fields& given) {
  Constraints& limits = a.limits;
  const Optional initial = given.array(NAME("initial"));
  limits.num_initial = initial ? initial->shape(1) : 0;
  limits.initial = set_ids(initial, a.num_queries, limits.num_initial, &limits.initial_bytes, "initial");
  limits.max_per_group = given.number<std::int64_t>(NAME("max_per_group"));
  require(limits.max_per_group == 0 || limits.groups, "max_per_group");
  limits.costs = of_items(a, given, NAME("costs"), &limits.costs_per_item);
  limits.budget = given.pointer(NAME("budget"), a.num_queries);
  require(!limits.costs == !limits.budget, "budget");
  limits.max_similarity = given.pointer(NAME("max_similarity"), a.num_queries);
  limits.min_relevance = given.pointer(NAME("min_relevance"), a.num_queries);
  set_quotas(a, given.of(NAME("quotas")));
}

void set_constraints(SelectArgs& a, const Fields& problem) {
  const Fields given = problem.of(NAME("constraints"));
  set_filters(a, given);
  set_limits(a, given);
}

// Graph.
void set_graph(SelectArgs& a, const Fields& given) {
  if (!given) return;
  Graph& graph = a.options.graph;
  const Optional rows = given.array(NAME("rows"));
  require(rows.has_value(), "graph");
  const std::int64_t size = rows->size();
  graph.begin = given.pointer(NAME("begin"), a.num_rows + 1);
  graph.rows = pointer(rows, size, "graph");
  graph.similarity = given.pointer(NAME("similarity"), size);
  require(graph.begin && graph.similarity && graph.begin[0] == 0 && graph.begin[a.num_rows] == size, "graph");
  for (std::int64_t r = 0; r < a.num_rows; ++r) require(graph.begin[r] <= graph.begin[r + 1], "graph");
  for (std::int64_t e = 0; e < size; ++e) require(graph.rows[e] >= 0 && graph.rows[e] < a.num_rows, "graph");
}

std::int64_t window_of(const Fields& options) {
  const auto window = options.number<std::int64_t>(NAME("window"));
  require(window >= 0, "window");
  return window;
}

// One of options.py.
void set_options(SelectArgs& a, const Fields& given) {
  Options& options = a.options;
  switch (a.method) {
    case Method::mmr:
    case Method::vrsd:
    case Method::msd:
      return;
    case Method::dpp:
      options.quality = of_items(a, given, NAME("quality"), &options.quality_per_item);
      options.scale = given.number<float>(NAME("scale"));
      options.window = window_of(given);
      return;
    case Method::ssd:
      options.gamma = given.number<float>(NAME("gamma"));
      options.window = window_of(given);
      return;
    case Method::sift:
      options.noise = given.number<float>(NAME("noise"));
      options.min_gain = given.number<float>(NAME("min_gain"));
      return;
    case Method::facility:
    case Method::cover:
    case Method::xquad:
      const Optional aspects = given.array(NAME("aspects"));
      if (aspects) require(aspects->ndim() == 3 && aspects->shape(1) >= 1, "aspects");
      options.num_aspects = aspects ? aspects->shape(1) : 0;
      options.aspects = pointer(aspects, a.num_queries * options.num_aspects * a.dims, "aspects");
      options.weights = given.pointer(NAME("weights"), a.num_queries * options.num_aspects);
      require(!options.weights || aspects, "weights");
      options.gamma = given.number<float>(NAME("gamma"));
      set_graph(a, given.of(NAME("graph")));
      require(!options.graph.begin || !aspects, "graph");
      options.density = given.number<bool>(NAME("density"));
      require(!options.density || a.limits.costs, "density");
  }
}

// cpu.Stage
void set_stage(SelectArgs& a, const Fields& given) {
  if (!given) return;
  Stage& stage = a.stage;
  stage.max_bias = given.number<float>(NAME("max_bias"));
  stage.outside = given.pointer(NAME("outside"), a.num_queries);
  stage.relevance_error = given.pointer(NAME("relevance_error"), a.num_queries);
  stage.forced = given.pointer(NAME("forced"), a.num_queries * a.k);
  stage.ceiling = given.pointer(NAME("ceiling"), a.num_queries * a.pool);
  stage.best_first = given.number<bool>(NAME("best_first"));
  const bool asked = (a.queries || a.query_signs) && a.method == Method::mmr;
  require(!stage.ceiling || (stage.forced && !a.relevance && asked), "ceiling");
  require(!stage.relevance_error || (a.relevance && asked), "relevance_error");
}

// Where each pick is written when it is made: an array that another thread looks at meanwhile, or a new one.
Array<std::int64_t> place_of_picks(const std::array<py::ssize_t, 2>& shape, const Fields& stage) {
  const Optional given = stage ? stage.array(NAME("indices")) : std::nullopt;
  if (!given) return Array<std::int64_t>(shape);
  require(py::isinstance<Array<std::int64_t>>(*given) && given->writeable() && given->ndim() == 2 &&
              given->shape(0) == shape[0] && given->shape(1) == shape[1],
          "indices");
  return py::reinterpret_borrow<Array<std::int64_t>>(*given);
}

bool is_cosine(const Fields& rows) { return is_text(rows.get(NAME("metric")), "cosine"); }

// The rule; coverage has one for each kind.
Method method_of(const Fields& problem, const Fields& options) {
  const py::object op = problem.get(NAME("op"));
  return named<Method>(is_text(op, "coverage") ? options.get(NAME("kind")) : op, kMethodNames, "op");
}

py::tuple select_pools(const py::object& given, const py::object& stage, const py::object& bounds, int isa,
                       int num_threads, std::int64_t most_kept, std::int64_t shared_items) {
  Held held;
  const Fields problem(given, held), options = problem.of(NAME("options"));
  SelectArgs a{};
  const Fields rows = set_pool(a, problem);
  set_picks(a, problem);
  set_codes(a, rows);
  a.method = method_of(problem, options);
  a.bounds = named<Bounds>(bounds, kBounds, "bounds");
  a.shared_items = shared_items;
  a.unit_rows = is_cosine(rows);
  a.lambda_d = problem.pointer(NAME("lambda_d"), a.num_queries);
  require(a.lambda_d, "lambda_d");
  a.relevance = problem.pointer(NAME("relevance"), a.num_queries * a.pool);
  require(!a.bias || a.method != Method::vrsd, "bias");
  require(a.queries || a.query_signs || (a.relevance && a.method != Method::vrsd), "queries");
  set_constraints(a, problem);
  set_options(a, options);
  a.options.most_kept = most_kept;
  set_stage(a, {stage, held});

  const std::array<py::ssize_t, 2> shape = {a.num_queries, a.k};
  Array<std::int64_t> indices = place_of_picks(shape, {stage, held});
  Array<float> scores(shape), relevance(shape), redundancy(shape);
  Array<std::int32_t> lengths(a.num_queries);
  a.indices = indices.mutable_data();
  a.scores = scores.mutable_data();
  a.out_relevance = relevance.mutable_data();
  a.redundancy = redundancy.mutable_data();
  a.lengths = lengths.mutable_data();
  py::object pool_needed = py::none();
  if (!problem.get(NAME("outside")).is_none()) {
    require(a.method == Method::mmr && a.unit_rows, "outside");
    Array<float> needed(a.num_queries);
    a.pool_needed = needed.mutable_data();
    std::fill_n(a.pool_needed, a.num_queries, std::numeric_limits<float>::quiet_NaN());
    pool_needed = needed;
  }
  std::vector<std::uint8_t> status(static_cast<std::size_t>(a.num_queries));
  a.status = status.data();
  std::int64_t work[3];
  a.work = work;
  without_gil([&] { select(a, isa, num_threads); });
  const bool well = std::all_of(status.begin(), status.end(), [](std::uint8_t query) { return query == 0; });
  return py::make_tuple(indices, scores, relevance, redundancy, lengths, pool_needed,
                        well ? py::object(py::none()) : Array<std::uint8_t>(a.num_queries, status.data()),
                        py::make_tuple(work[0], work[1], work[2]));
}

py::tuple path_pools(const py::object& given, double low, double high, int isa, int num_threads) {
  Held held;
  const Fields problem(given, held);
  SelectArgs a{};
  set_pool(a, problem);
  set_picks(a, problem);
  a.relevance = problem.pointer(NAME("relevance"), a.num_queries * a.pool);
  require(a.queries || a.query_signs || a.relevance, "queries");
  require(low <= high, "low");
  set_constraints(a, problem);
  const std::int64_t num_queries = a.num_queries, k = a.k;
  Array<std::uint8_t> status(num_queries);
  a.status = status.mutable_data();
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

Array<std::uint8_t> encode_rows(const py::array& rows, const py::object& dtype, const Optional& scales, int isa,
                                int num_threads) {
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
py::tuple store(const py::array& rows, const py::object& given, py::array& out, const py::object& dtype,
                std::optional<py::array>& scales, bool cosine, int isa) {
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
py::tuple same(const py::array& rows, const py::object& given, const py::array& data, const py::object& dtype,
               const Optional& scales, const py::array& places, bool cosine, int isa, int num_threads) {
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

py::tuple pool_relevance(const py::object& given, int isa, int num_threads) {
  Held held;
  RelevanceArgs a{};
  set_pool(a.pool, {given, held});
  require((a.pool.queries || a.pool.query_signs) && a.pool.candidates, "queries and candidates");
  Array<std::uint8_t> status(a.pool.num_queries);
  Array<float> out({a.pool.num_queries, a.pool.pool});
  a.pool.status = status.mutable_data();
  a.out = out.mutable_data();
  without_gil([&] { relevance(a, isa, num_threads); });
  return py::make_tuple(out, status);
}

// The rows of a scan or a search, all of a corpus.
Fields set_corpus(SelectArgs& a, const Fields& problem) {
  const Fields rows = set_pool(a, problem);
  require(!a.candidates && !a.pool_stride, "candidates");
  require(!a.bias_per_item, "bias");
  a.unit_rows = is_cosine(rows);
  set_filters(a, problem.of(NAME("constraints")));
  return rows;
}

py::tuple scan_rows(const py::object& given, const Array<float>& vectors, std::int64_t n, bool by_codes, float max_norm,
                    float largest_bias, const Optional& score_weight, const Optional& bias_weight, int isa,
                    int num_threads) {
  require(vectors.ndim() == 3 && vectors.shape(0) >= 1 && vectors.shape(0) <= kScanVectors, "vectors");
  require(n >= 1, "n");
  Held held;
  const Fields problem(given, held);
  ScanArgs a{};
  const Fields rows = set_corpus(a.corpus, problem);
  set_codes(a.corpus, rows);
  require(!by_codes || a.corpus.codes || rows_are_codes(a.corpus), "codes");
  a.by_codes = by_codes;
  const std::int64_t num_queries = a.corpus.num_queries;
  require(vectors.shape(1) == num_queries && vectors.shape(2) == a.corpus.dims, "vectors");
  a.terms = vectors.shape(0);
  a.vectors = vectors.data();
  a.row_error = rows.number<float>(NAME("code_error"));
  a.largest_bias = largest_bias;
  a.max_norm = max_norm;
  a.score_weight = pointer(score_weight, num_queries, "score_weight");
  a.bias_weight = pointer(bias_weight, num_queries, "bias_weight");
  require(!a.corpus.bias || (a.score_weight && a.bias_weight), "score_weight and bias_weight");
  TopN top(num_queries, n, false);
  bool well = true;
  without_gil([&] { well = top.scan(a, isa, num_threads); });
  const std::int64_t width = top.width();
  Array<std::int64_t> kept({num_queries, width});
  Array<float> scores({num_queries, width}), outside(num_queries), error(num_queries);
  top.get(kept.mutable_data(), scores.mutable_data(), width, outside.mutable_data(), error.mutable_data());
  return py::make_tuple(kept, scores, outside, error, well);
}

py::tuple search_rows(const py::object& given, float largest_bias, int isa, int num_threads) {
  Held held;
  const Fields problem(given, held);
  SearchArgs a{};
  const Fields rows = set_corpus(a.corpus, problem);
  set_codes(a.corpus, rows);
  require(a.corpus.queries || a.corpus.query_signs, "queries");
  require(a.corpus.norm != Norm::computed, "norm");
  a.row_error = rows.number<float>(NAME("code_error"));
  a.largest_bias = largest_bias;
  a.n = problem.number<std::int64_t>(NAME("k"));
  require(a.n >= 1, "k");
  Array<std::uint8_t> status(a.corpus.num_queries);
  Array<std::int64_t> indices({a.corpus.num_queries, a.n});
  Array<float> scores({a.corpus.num_queries, a.n});
  a.corpus.status = status.mutable_data();
  a.indices = indices.mutable_data();
  a.scores = scores.mutable_data();
  without_gil([&] { search(a, isa, num_threads); });
  return py::make_tuple(indices, scores, status);
}

// by_similarity.Given, and of Problem what a selection by vectors has too.
py::tuple select_by_similarity(const py::object& checked, const py::object& given_items, int num_threads) {
  Held held;
  const Fields problem(checked, held), rows = problem.of(NAME("rows")), options = problem.of(NAME("options"));
  const Fields given(given_items, held);
  SelectArgs pool{};
  pool.num_queries = problem.number<std::int64_t>(NAME("num_queries"));
  pool.pool = problem.number<std::int64_t>(NAME("pool"));
  pool.num_rows = pool.num_queries * pool.pool;
  set_picks(pool, problem);
  set_constraints(pool, problem);
  GivenArgs a{};
  a.rule = method_of(problem, options);
  require(a.rule != Method::vrsd && a.rule != Method::ssd && a.rule != Method::sift, "op");
  a.num_queries = pool.num_queries;
  a.pool = pool.pool;
  a.k = pool.k;
  a.ks = pool.ks;
  a.limits = pool.limits;
  a.lambda_d = problem.pointer(NAME("lambda_d"), a.num_queries);
  require(a.lambda_d, "lambda_d");
  a.similarity = rows.pointer(NAME("similarity"), pool.num_rows * a.pool);
  require(a.similarity, "similarity");
  a.values = given.pointer(NAME("values"), pool.num_rows);
  require(a.values, "values");
  a.weights = given.pointer(NAME("weights"), pool.num_rows);
  require(a.rule != Method::dpp || a.weights, "weights");
  a.open = given.pointer(NAME("open"), pool.num_rows);
  const bool cosine = is_cosine(rows);
  a.one = cosine ? 1.0f : 0.0f;
  a.largest = cosine || a.rule == Method::xquad ? 1.0f : std::numeric_limits<float>::max();
  if (a.rule >= Method::facility) a.gamma = options.number<float>(NAME("gamma"));
  if (a.rule == Method::dpp) {
    a.least_left = given.number<float>(NAME("least_left"));
    a.unequal = given.number<float>(NAME("unequal"));
    a.negative = given.number<float>(NAME("negative"));
    a.sound = given.number<float>(NAME("sound"));
    a.pairs = given.number<std::int64_t>(NAME("pairs"));
    a.window = window_of(options);
  }
  for (std::int64_t i = 0; i < a.num_queries * a.limits.num_initial; ++i)
    require(a.initial(i) >= -1 && a.initial(i) < a.pool, "initial");
  for (std::int64_t q = 0; a.ks && q < a.num_queries; ++q) require(a.ks[q] <= a.k, "ks");
  const std::array<py::ssize_t, 2> shape = {a.num_queries, a.k};
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
  m.def("select", &select_pools, py::arg("problem"), py::arg("stage"), py::arg("bounds"), py::arg("isa"),
        py::arg("num_threads"), py::arg("most_kept"), py::arg("shared_items"));
  m.def("path", &path_pools, py::arg("problem"), py::arg("low"), py::arg("high"), py::arg("isa"),
        py::arg("num_threads"));
  m.def("select_given", &select_by_similarity, py::arg("problem"), py::arg("given"), py::arg("num_threads"));
  m.def("encode", &encode_rows, py::arg("rows"), py::arg("dtype"), py::arg("scales"), py::arg("isa"),
        py::arg("num_threads"));
  m.def("same", &same, py::arg("rows"), py::arg("given"), py::arg("data"), py::arg("dtype"), py::arg("scales"),
        py::arg("places"), py::arg("cosine"), py::arg("isa"), py::arg("num_threads"));
  m.def("store", &store, py::arg("rows"), py::arg("given"), py::arg("out"), py::arg("dtype"), py::arg("scales"),
        py::arg("cosine"), py::arg("isa"));
  m.def("relevance", &pool_relevance, py::arg("problem"), py::arg("isa"), py::arg("num_threads"));
  m.def("code_scan_supported", &code_scan_supported, py::arg("isa"), py::arg("vectors"), py::arg("own"));
  m.def(
      "code_error",
      [](const Array<std::uint8_t>& codes) {
        require(codes.ndim() == 2 && codes.shape(1) >= kCodeHeader, "codes");
        return largest_code_error(codes.data(), codes.shape(0), codes.shape(1));
      },
      py::arg("codes").noconvert());
  m.def("scan", &scan_rows, py::arg("problem"), py::arg("vectors").noconvert(), py::arg("n"), py::arg("by_codes"),
        py::arg("max_norm"), py::arg("largest_bias"), py::arg("score_weight"), py::arg("bias_weight"), py::arg("isa"),
        py::arg("num_threads"));
  m.def("search", &search_rows, py::arg("problem"), py::arg("largest_bias"), py::arg("isa"), py::arg("num_threads"));
}

}  // namespace
}  // namespace rsk
