// Python for the scoring kernels, in the manner of bindings.cpp.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "binding.h"
#include "score_api.h"

namespace py = pybind11;

namespace {

template <class T>
using Array = py::array_t<T, py::array::c_style>;
template <class T>
using Optional = std::optional<Array<T>>;

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(std::string("_C: ") + what);
}

// A matrix whose last axis is contiguous, of float32, float16 bits or bfloat16 bits; returns its first element.
const void* matrix(const py::buffer& array, int dtype, rsk::DType& type, std::int64_t& stride, const char* name,
                   std::int64_t shape[2]) {
  const py::buffer_info info = array.request();
  require(dtype >= 0 && dtype <= 2, "dtype");
  require(info.ndim == 2 && info.itemsize == (dtype == 0 ? 4 : 2) && info.format[0] != '>', name);
  require(info.strides[1] == info.itemsize || info.shape[1] <= 1, name);
  require(info.strides[0] % info.itemsize == 0, name);
  type = rsk::DType(dtype);
  stride = info.strides[0] / info.itemsize;
  shape[0] = info.shape[0];
  shape[1] = info.shape[1];
  return info.ptr;
}

void require_ids(const std::int64_t* ids, std::int64_t count, std::int64_t least, std::int64_t end, const char* name) {
  for (std::int64_t i = 0; i < count; ++i) require(ids[i] >= least && ids[i] < end, name);
}

// What both forms share. num_rows and width are those of the logits, or of the hidden states and the weight.
py::tuple run(rsk::ScoreArgs& a, std::int64_t num_rows, std::int64_t width, const Array<std::int64_t>& rows,
              const Array<float>& inverse_temperature, float logit_scale, float softcap, std::int64_t num_columns,
              const Optional<std::int64_t>& allowed, const Array<std::int64_t>& pair_begin,
              const Array<std::int64_t>& columns, const Optional<float>& target_logits, bool entropy, bool rank,
              int isa, int num_threads) {
  a.num_jobs = rows.size();
  a.rows = rows.data();
  require_ids(a.rows, a.num_jobs, 0, num_rows, "rows");
  require(inverse_temperature.size() == a.num_jobs, "inverse_temperature");
  a.inverse_temperature = inverse_temperature.data();
  a.logit_scale = logit_scale;
  a.softcap = softcap;
  require(num_columns >= 0 && num_columns <= width, "num_columns");
  a.num_columns = num_columns;
  if (allowed) {
    a.allowed = allowed->data();
    a.num_allowed = allowed->size();
    require_ids(a.allowed, a.num_allowed, 0, num_columns, "allowed");
  }
  const std::int64_t pairs = columns.size();
  require(pair_begin.size() == a.num_jobs + 1, "pair_begin");
  a.pair_begin = pair_begin.data();
  require(a.pair_begin[0] == 0 && a.pair_begin[a.num_jobs] == pairs, "pair_begin");
  for (std::int64_t job = 0; job < a.num_jobs; ++job) require(a.pair_begin[job] <= a.pair_begin[job + 1], "pair_begin");
  a.columns = columns.data();
  require_ids(a.columns, pairs, -1, num_columns, "columns");
  require(!target_logits || target_logits->size() == pairs, "target_logits");
  a.target_logits = target_logits ? target_logits->data() : nullptr;
  require(num_threads >= 1, "num_threads");

  Array<float> ref(a.num_jobs), max(a.num_jobs), target(pairs);
  Array<double> sum(a.num_jobs), weighted(entropy ? a.num_jobs : 0);
  Array<std::int64_t> ranks(rank ? pairs : 0);
  a.ref = ref.mutable_data();
  a.max = max.mutable_data();
  a.sum = sum.mutable_data();
  a.weighted = entropy ? weighted.mutable_data() : nullptr;
  a.target = target.mutable_data();
  a.rank = rank ? ranks.mutable_data() : nullptr;
  rsk::without_gil([&] { rsk::score(a, isa, num_threads); });
  return py::make_tuple(ref, max, sum, entropy ? py::object(weighted) : py::none(), target,
                        rank ? py::object(ranks) : py::none());
}

py::tuple score_logits(const py::buffer& logits, int dtype, const Array<std::int64_t>& rows,
                       const Array<float>& inverse_temperature, float logit_scale, float softcap,
                       std::int64_t num_columns, const Optional<std::int64_t>& allowed,
                       const Array<std::int64_t>& pair_begin, const Array<std::int64_t>& columns,
                       const Optional<float>& target_logits, bool entropy, bool rank, int isa, int num_threads) {
  rsk::ScoreArgs a{};
  std::int64_t shape[2];
  a.form = rsk::Form::logits;
  a.logits = matrix(logits, dtype, a.dtype, a.row_stride, "logits", shape);
  return run(a, shape[0], shape[1], rows, inverse_temperature, logit_scale, softcap, num_columns, allowed, pair_begin,
             columns, target_logits, entropy, rank, isa, num_threads);
}

py::tuple score_hidden(const py::buffer& hidden, int hidden_dtype, const py::buffer& weight, int weight_dtype,
                       const Optional<float>& head_bias, const Array<std::int64_t>& rows,
                       const Array<float>& inverse_temperature, float logit_scale, float softcap,
                       std::int64_t num_columns, const Optional<std::int64_t>& allowed,
                       const Array<std::int64_t>& pair_begin, const Array<std::int64_t>& columns,
                       const Optional<float>& target_logits, bool entropy, bool rank, int isa, int num_threads) {
  rsk::ScoreArgs a{};
  std::int64_t shape[2], weight_shape[2];
  a.form = rsk::Form::hidden;
  a.hidden = matrix(hidden, hidden_dtype, a.hidden_dtype, a.hidden_stride, "hidden", shape);
  a.weight = matrix(weight, weight_dtype, a.weight_dtype, a.weight_stride, "weight", weight_shape);
  require(shape[1] == weight_shape[1] && shape[1] >= 1, "weight and hidden differ");
  a.dims = shape[1];
  require(!head_bias || head_bias->size() == weight_shape[0], "head_bias");
  a.head_bias = head_bias ? head_bias->data() : nullptr;
  return run(a, shape[0], weight_shape[0], rows, inverse_temperature, logit_scale, softcap, num_columns, allowed,
             pair_begin, columns, target_logits, entropy, rank, isa, num_threads);
}

}  // namespace

void bind_score(py::module_& m) {
  m.def("bf16_unit", &rsk::bf16_unit, py::arg("isa"));
  m.def("score_logits", &score_logits, py::arg("logits"), py::arg("dtype"), py::arg("rows").noconvert(),
        py::arg("inverse_temperature").noconvert(), py::arg("logit_scale"), py::arg("softcap"), py::arg("num_columns"),
        py::arg("allowed").noconvert(), py::arg("pair_begin").noconvert(), py::arg("columns").noconvert(),
        py::arg("target_logits").noconvert(), py::arg("entropy"), py::arg("rank"), py::arg("isa"),
        py::arg("num_threads"));
  m.def("score_hidden", &score_hidden, py::arg("hidden"), py::arg("hidden_dtype"), py::arg("weight"),
        py::arg("weight_dtype"), py::arg("head_bias").noconvert(), py::arg("rows").noconvert(),
        py::arg("inverse_temperature").noconvert(), py::arg("logit_scale"), py::arg("softcap"), py::arg("num_columns"),
        py::arg("allowed").noconvert(), py::arg("pair_begin").noconvert(), py::arg("columns").noconvert(),
        py::arg("target_logits").noconvert(), py::arg("entropy"), py::arg("rank"), py::arg("isa"),
        py::arg("num_threads"));
}
