// What the tools share: files of problems and answers, outputs between canaries, instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "isa.h"

namespace tool {

constexpr unsigned char kCanary = 0xA5;
constexpr unsigned char kUnwritten = 0x5A;  // -1, NaN and inf have other bytes, so an element left out shows

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Problems {
 public:
  Problems(const std::string& path, const char* kind) : file_(path, std::ios::binary) {
    char magic[8];
    file_.read(magic, sizeof(magic));
    if (!file_ || std::memcmp(magic, kind, sizeof(magic))) throw UsageError(path + " is not a file of problems");
    count_ = word();
  }
  std::int64_t count() const { return count_; }

  // Forgets the arrays of the problem before. Those of every other problem start one element after what new gives,
  // so that nothing may rely on more alignment than the element's own.
  void next_problem() {
    arrays_.clear();
    shifted_ = !shifted_;
  }

  std::int64_t word() {
    std::int64_t value;
    read(reinterpret_cast<char*>(&value), sizeof(value));
    return value;
  }

  // One allocation per array, ending where the array ends: AddressSanitizer sees a read of one element too many.
  template <class T>
  const T* array(std::int64_t element_bytes = sizeof(T)) {
    const std::int64_t bytes = word();
    if (bytes < 0) return nullptr;
    const std::int64_t shift = shifted_ ? element_bytes : 0;
    arrays_.emplace_back(new char[std::size_t(shift + bytes)]);
    char* data = arrays_.back().get() + shift;
    read(data, bytes);
    return reinterpret_cast<const T*>(data);
  }

 private:
  void read(char* out, std::int64_t bytes) {
    file_.read(out, bytes);
    if (file_.gcount() != bytes) throw UsageError("the file of problems ends too early");
  }
  std::ifstream file_;
  std::int64_t count_ = 0;
  bool shifted_ = true;
  std::vector<std::unique_ptr<char[]>> arrays_;
};

inline void write_array(std::ofstream& file, const void* data, std::int64_t bytes) {
  file.write(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  file.write(static_cast<const char*>(data), bytes);
}

// An output array between canaries.
template <class T>
class Output {
 public:
  explicit Output(std::int64_t count) : memory_(kGuard, kCanary) {
    memory_.resize(kGuard + std::size_t(count) * sizeof(T), kUnwritten);
    memory_.resize(memory_.size() + kGuard, kCanary);
  }
  T* data() { return reinterpret_cast<T*>(memory_.data() + kGuard); }
  std::size_t size() const { return (memory_.size() - 2 * kGuard) / sizeof(T); }
  void check(const char* name) const {
    for (std::size_t i = 0; i < kGuard; ++i)
      if (memory_[i] != kCanary || memory_[memory_.size() - 1 - i] != kCanary)
        throw std::runtime_error(std::string(name) + ": written outside its memory");
  }
  void write(std::ofstream& file, const char* name) {
    check(name);
    write_array(file, data(), std::int64_t(memory_.size() - 2 * kGuard));
  }

 private:
  static constexpr std::size_t kGuard = 512;  // bytes
  std::vector<unsigned char> memory_;
};

inline int find_isa(const std::string& name) {
  for (int isa = 0; isa < rsk::isa_count(); ++isa)
    if (name == rsk::isa_name(isa)) return isa;
  throw UsageError("instruction set " + name + " is not built in");
}

inline int widest_isa() {
  int isa = rsk::isa_count() - 1;
  while (!rsk::isa_supported(isa)) --isa;
  return isa;
}

inline void list_isas() {
  for (int isa = 0; isa < rsk::isa_count(); ++isa)
    if (rsk::isa_supported(isa)) std::puts(rsk::isa_name(isa));
}

}  // namespace tool
