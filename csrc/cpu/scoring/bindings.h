// Python for scoring.
#pragma once

#include "binding.h"
#include "scoring/args.h"

namespace rsk {
namespace {

void require_ids(const std::int64_t* ids, std::int64_t count, std::int64_t least, std::int64_t end, const char* name) {
  for (std::int64_t i = 0; i < count; ++i) require(ids[i] >= least && ids[i] < end, name);
}

// What both forms share. num_rows and width are those of the logits, or of the hidden states and the weight.
py::tuple run(ScoreArgs& a, std::int64_t num_rows, std::int64_t width, const Array<std::int64_t>& rows,
              const Array<float>& inverse_temperature, float logit_scale, float softcap, std::int64_t num_columns,
              const Optional& allowed, const Array<std::int64_t>& pair_begin, const Array<std::int64_t>& columns,
              const Optional& target_logits, bool entropy, bool rank, std::int64_t top, int isa, int num_threads) {
  a.num_slots = rows.size();
  a.rows = rows.data();
  require_ids(a.rows, a.num_slots, 0, num_rows, "rows");
  require(inverse_temperature.size() == a.num_slots, "inverse_temperature");
  a.inverse_temperature = inverse_temperature.data();
  a.logit_scale = logit_scale;
  a.softcap = softcap;
  require(num_columns >= 0 && num_columns <= width, "num_columns");
  a.num_columns = num_columns;
  if (allowed) {
    a.num_allowed = allowed->size();
    a.allowed = pointer(allowed, a.num_allowed, "allowed");
    require_ids(a.allowed, a.num_allowed, 0, num_columns, "allowed");
  }
  const std::int64_t pairs = columns.size();
  require(pair_begin.size() == a.num_slots + 1, "pair_begin");
  a.pair_begin = pair_begin.data();
  require(a.pair_begin[0] == 0 && a.pair_begin[a.num_slots] == pairs, "pair_begin");
  for (std::int64_t slot = 0; slot < a.num_slots; ++slot)
    require(a.pair_begin[slot] <= a.pair_begin[slot + 1], "pair_begin");
  a.columns = columns.data();
  require_ids(a.columns, pairs, -1, num_columns, "columns");
  a.target_logits = pointer(target_logits, pairs, "target_logits");
  require(num_threads >= 1, "num_threads");

  require(top >= 0 && top <= (a.allowed ? a.num_allowed : num_columns), "top");
  a.top = top;

  Array<float> ref(a.num_slots), max(a.num_slots), target(pairs);
  Array<double> sum(a.num_slots), weighted(entropy ? a.num_slots : 0);
  Array<std::int64_t> ranks(rank ? pairs : 0);
  a.ref = ref.mutable_data();
  a.max = max.mutable_data();
  a.sum = sum.mutable_data();
  a.weighted = entropy ? weighted.mutable_data() : nullptr;
  a.target = target.mutable_data();
  a.rank = rank ? ranks.mutable_data() : nullptr;
  const std::vector<std::int64_t> best = {top ? a.num_slots : 0, top};
  Array<float> top_z(best);
  Array<std::int64_t> top_columns(best);
  a.top_z = top_z.mutable_data();
  a.top_columns = top_columns.mutable_data();
  without_gil([&] { score(a, isa, num_threads); });
  return py::make_tuple(ref, max, sum, entropy ? py::object(weighted) : py::none(), target,
                        rank ? py::object(ranks) : py::none(), top ? py::object(top_z) : py::none(),
                        top ? py::object(top_columns) : py::none());
}

py::tuple score_logits(const py::array& logits, const py::object& dtype, const Array<std::int64_t>& rows,
                       const Array<float>& inverse_temperature, float logit_scale, float softcap,
                       std::int64_t num_columns, const Optional& allowed, const Array<std::int64_t>& pair_begin,
                       const Array<std::int64_t>& columns, const Optional& target_logits, bool entropy, bool rank,
                       std::int64_t top, int isa, int num_threads) {
  ScoreArgs a{};
  const Matrix m = matrix(logits, dtype, "logits");
  require(m.dtype < DType::i8, "dtype");
  a.form = Form::logits;
  a.logits = m.data;
  a.dtype = m.dtype;
  a.row_stride = m.stride;
  return run(a, m.rows, m.columns, rows, inverse_temperature, logit_scale, softcap, num_columns, allowed, pair_begin,
             columns, target_logits, entropy, rank, top, isa, num_threads);
}

py::tuple score_hidden(const py::array& hidden, const py::object& hidden_dtype, const py::array& weight,
                       const py::object& weight_dtype, const Optional& head_bias, const Array<std::int64_t>& rows,
                       const Array<float>& inverse_temperature, float logit_scale, float softcap,
                       std::int64_t num_columns, const Optional& allowed, const Array<std::int64_t>& pair_begin,
                       const Array<std::int64_t>& columns, const Optional& target_logits, bool entropy, bool rank,
                       std::int64_t top, int isa, int num_threads) {
  ScoreArgs a{};
  const Matrix h = matrix(hidden, hidden_dtype, "hidden"), w = matrix(weight, weight_dtype, "weight");
  require(h.dtype < DType::i8 && w.dtype < DType::i8, "dtype");
  require(h.columns == w.columns && h.columns >= 1, "weight and hidden differ");
  a.form = Form::hidden;
  a.hidden = h.data;
  a.hidden_dtype = h.dtype;
  a.hidden_stride = h.stride;
  a.weight = w.data;
  a.weight_dtype = w.dtype;
  a.weight_stride = w.stride;
  a.dims = h.columns;
  a.head_bias = pointer(head_bias, w.rows, "head_bias");
  return run(a, h.rows, w.rows, rows, inverse_temperature, logit_scale, softcap, num_columns, allowed, pair_begin,
             columns, target_logits, entropy, rank, top, isa, num_threads);
}

void bind_scoring(py::module_& m) {
  m.def("bf16_unit", &bf16_unit, py::arg("isa"));
  m.def("score_logits", &score_logits, py::arg("logits"), py::arg("dtype"), py::arg("rows").noconvert(),
        py::arg("inverse_temperature").noconvert(), py::arg("logit_scale"), py::arg("softcap"), py::arg("num_columns"),
        py::arg("allowed").noconvert(), py::arg("pair_begin").noconvert(), py::arg("columns").noconvert(),
        py::arg("target_logits").noconvert(), py::arg("entropy"), py::arg("rank"), py::arg("top"), py::arg("isa"),
        py::arg("num_threads"));
  m.def("score_hidden", &score_hidden, py::arg("hidden"), py::arg("hidden_dtype"), py::arg("weight"),
        py::arg("weight_dtype"), py::arg("head_bias").noconvert(), py::arg("rows").noconvert(),
        py::arg("inverse_temperature").noconvert(), py::arg("logit_scale"), py::arg("softcap"), py::arg("num_columns"),
        py::arg("allowed").noconvert(), py::arg("pair_begin").noconvert(), py::arg("columns").noconvert(),
        py::arg("target_logits").noconvert(), py::arg("entropy"), py::arg("rank"), py::arg("top"), py::arg("isa"),
        py::arg("num_threads"));
}

}  // namespace
}  // namespace rsk
