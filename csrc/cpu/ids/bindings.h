// Ids that are strings, one by one: their UTF-8 end to end, found by the CRC-32 of each (ragsys_kernels/corpus/ids.py).
#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include "binding.h"

namespace rsk {
namespace {

// Table 0 is for a byte, table i for one that i more follow.
constexpr auto kTables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t i = 1; i < 8; ++i)
    for (std::size_t byte = 0; byte < 256; ++byte)
      tables[i][byte] = tables[i - 1][byte] >> 8 ^ tables[0][tables[i - 1][byte] & 255];
  return tables;
}();

// That of zlib.
std::uint32_t crc32(const char* text, std::size_t size) {
  std::uint32_t crc = ~0u;
  const auto* bytes = reinterpret_cast<const unsigned char*>(text);
  for (; size >= 8; bytes += 8, size -= 8) {
    std::uint32_t next = 0;
    for (std::size_t i = 0; i < 4; ++i)
      next ^= kTables[7 - i][(crc >> 8 * i & 255) ^ bytes[i]] ^ kTables[3 - i][bytes[4 + i]];
    crc = next;
  }
  for (; size; ++bytes, --size) crc = crc >> 8 ^ kTables[0][(crc & 255) ^ *bytes];
  return ~crc;
}

struct Text {
  const char* begin;  // null where there is no UTF-8: of a lone surrogate, of what is no string
  Py_ssize_t size;

  std::uint32_t crc() const { return crc32(begin, std::size_t(size)); }
};

Text text_of(PyObject* each) {
  Text text{nullptr, 0};
  if (PyUnicode_Check(each)) text.begin = PyUnicode_AsUTF8AndSize(each, &text.size);
  if (!text.begin) PyErr_Clear();
  return text;
}

// The texts of all ids, as a folder has them.
struct Texts {
  const std::uint8_t* text;
  std::int64_t bytes, rows;
  const std::int64_t* offsets;

  Texts(const py::array& all, const py::array& offsets_) : bytes(all.size()), rows(offsets_.size() - 1) {
    require(rows >= 0, "id_offsets");
    const Optional of_text(all), of_offsets(offsets_);
    text = pointer(of_text, bytes, "id_text");
    offsets = pointer(of_offsets, rows + 1, "id_offsets");
  }
  Text operator[](std::int64_t row) const {
    require(row >= 0 && row < rows, "row of an id");
    const std::int64_t begin = offsets[row], end = offsets[row + 1];
    require(begin >= 0 && begin <= end && end <= bytes, "id_offsets");
    return {reinterpret_cast<const char*>(text) + begin, Py_ssize_t(end - begin)};
  }
};

// Returns text, offsets, CRC-32s, and the first row whose id has no UTF-8, or -1.
py::tuple texts_of(const py::list& given) {
  const py::tuple ids(given);  // another thread may change a list, where there is no GIL
  const py::ssize_t rows = py::ssize_t(ids.size());
  Array<std::int64_t> offsets(rows + 1);
  Array<std::uint32_t> crcs(rows);
  std::int64_t* const ends = offsets.mutable_data();
  ends[0] = 0;
  std::int64_t bad = -1;
  for (py::ssize_t row = 0; row < rows; ++row) {
    const Text text = text_of(PyTuple_GET_ITEM(ids.ptr(), row));
    if (!text.begin && bad < 0) bad = row;
    ends[row + 1] = ends[row] + text.size;
    crcs.mutable_data()[row] = text.crc();
  }
  Array<std::uint8_t> all(ends[rows]);
  for (py::ssize_t row = 0; row < rows; ++row)
    if (const Text text = text_of(PyTuple_GET_ITEM(ids.ptr(), row)); text.size)
      std::memcpy(all.mutable_data() + ends[row], text.begin, std::size_t(text.size));
  return py::make_tuple(all, offsets, crcs, bad);
}

// Returns the row of each id: -1 where there is none, -2 of None.
Array<std::int64_t> find_texts(const py::list& given, const py::array& all, const py::array& offsets,
                               const Optional& keys_, const Optional& order_) {
  const py::tuple wanted(given);
  const Texts texts(all, offsets);
  const std::uint32_t* const keys = pointer(keys_, texts.rows, "id_keys");
  const std::int64_t* const order = pointer(order_, texts.rows, "id_order");
  const py::ssize_t count = py::ssize_t(wanted.size());
  Array<std::int64_t> rows(count);
  for (py::ssize_t i = 0; i < count; ++i) {
    PyObject* const each = PyTuple_GET_ITEM(wanted.ptr(), i);
    std::int64_t row = each == Py_None ? -2 : -1;
    if (const Text text = text_of(each); text.begin) {
      const std::uint32_t key = text.crc();
      for (auto at = std::lower_bound(keys, keys + texts.rows, key); at < keys + texts.rows && *at == key; ++at) {
        const Text found = texts[order[at - keys]];
        if (found.size == text.size && std::memcmp(found.begin, text.begin, std::size_t(text.size)) == 0) {
          row = order[at - keys];
          break;
        }
      }
    }
    rows.mutable_data()[i] = row;
  }
  return rows;
}

// Returns the ids of some rows, None for those below 0.
py::list texts_at(const py::array& rows_, const py::array& all, const py::array& offsets) {
  const Texts texts(all, offsets);
  const Optional of_rows(rows_);
  const std::int64_t* const rows = pointer(of_rows, rows_.size(), "rows");
  py::list found(rows_.size());
  for (py::ssize_t i = 0; i < rows_.size(); ++i) {
    PyObject* each = Py_None;
    if (rows[i] >= 0) {
      const Text text = texts[rows[i]];
      each = PyUnicode_DecodeUTF8(text.begin, text.size, "strict");
      if (!each) throw py::error_already_set();
    } else {
      Py_INCREF(each);
    }
    PyList_SET_ITEM(found.ptr(), i, each);
  }
  return found;
}

void bind_ids(py::module_& m) {
  m.def("texts_of", &texts_of, py::arg("ids"));
  m.def("find_texts", &find_texts, py::arg("wanted"), py::arg("text"), py::arg("offsets"), py::arg("keys"),
        py::arg("order"));
  m.def("texts_at", &texts_at, py::arg("rows"), py::arg("text"), py::arg("offsets"));
}

}  // namespace
}  // namespace rsk
