// Python for rows that are near some vectors.
#pragma once

#include "selection/bindings.h"
#include "selection/near.h"

namespace rsk {
namespace {

// corpus.near: rows of a corpus, (M,) those that are looked at, (blocks, steps, 32, 2) their sketches, (Q, D) vectors,
// (Q, 2 steps) and (Q,) their sketches. Returns (n,) numbers of vectors, ascending, and of rows.
py::tuple near(const py::object& corpus, const py::array& looked_at, const py::array& sketches,
               const py::array& vectors, const py::array& vector_bytes, const py::array& start, const py::array& least,
               float margin, int isa, int num_threads) {
  Held held;
  const Fields rows(corpus, held);
  NearArgs a{};
  const Optional data = rows.array(NAME("data"));
  require(data.has_value(), "rows");
  set_rows(a.corpus, *data, rows.get(NAME("dtype")));
  a.corpus.norm = named<Norm>(rows.get(NAME("norm")), kNorms, "norm");
  a.corpus.scales = rows.pointer(NAME("scales"), a.corpus.num_rows);
  require(a.corpus.norm == Norm::as_given || (a.corpus.norm == Norm::scaled && a.corpus.scales), "norm");
  require(vectors.ndim() == 2 && vectors.shape(1) == a.corpus.dims, "vectors");
  require(vector_bytes.ndim() == 2 && vector_bytes.shape(1) % 2 == 0 && vector_bytes.shape(1) > 0, "vector_bytes");
  a.num_vectors = vectors.shape(0);
  a.steps = vector_bytes.shape(1) / 2;
  a.vectors = pointer(vectors, a.num_vectors * a.corpus.dims, "vectors");
  a.vector_bytes = pointer(vector_bytes, a.num_vectors * 2 * a.steps, "vector_bytes");
  a.start = pointer(start, a.num_vectors, "start");
  a.least = pointer(least, a.num_vectors, "least");
  a.num_rows = looked_at.size();
  a.rows = pointer(looked_at, a.num_rows, "looked_at");
  a.sketches = pointer(sketches, (a.num_rows + 31) / 32 * 32 * 2 * a.steps, "sketches");
  a.margin = margin;
  std::vector<Near> found;
  without_gil([&] { found = near_rows(a, isa, num_threads); });
  const std::int64_t count = std::int64_t(found.size());
  Array<std::int64_t> of(count), numbers(count);
  for (std::int64_t i = 0; i < count; ++i) {
    of.mutable_data()[i] = found[std::size_t(i)].vector;
    numbers.mutable_data()[i] = found[std::size_t(i)].row;
  }
  return py::make_tuple(of, numbers);
}

void bind_near(py::module_& m) {
  m.def("near_supported", &near_supported, py::arg("isa"));
  m.def("near", &near, py::arg("corpus"), py::arg("looked_at"), py::arg("sketches"), py::arg("vectors"),
        py::arg("vector_bytes"), py::arg("start"), py::arg("least"), py::arg("margin"), py::arg("isa"),
        py::arg("num_threads"));
}

}  // namespace
}  // namespace rsk
