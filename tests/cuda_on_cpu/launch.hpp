// Launches of the kernels of one source by name: for Python through emu_launch, and from files in a process of its own,
// which sanitizers need. Included after the kernels; RSK_KERNELS lists them as EMU_KERNEL(name, blocks of a cluster),
// ...
#pragma once
#include <fstream>
#include <iterator>
#include <memory>

namespace emu {
// Arguments as the CUDA driver takes them, a pointer to each, with what each is: p(ointer), i(nteger), f(loat) or
// s(truct by value), and its size.
struct Kernel {
  const char* name;
  std::string kinds;
  std::function<void(const Launch&, void**)> launch;
};

template <class T>
std::string kind() {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_enum_v<T>);
  const char* letter = std::is_pointer_v<T>          ? "p"
                       : std::is_integral_v<T>       ? "i"
                       : std::is_floating_point_v<T> ? "f"
                                                     : "s";
  return letter + std::to_string(sizeof(T));
}

template <class... A, std::size_t... I>
void call(void (*function)(A...), void** arguments, std::index_sequence<I...>) {
  function(*static_cast<std::remove_const_t<A>*>(arguments[I])...);
}
template <class... A>
Kernel kernel(const char* name, void (*function)(A...), std::size_t cluster) {
  const auto launch = [=](Launch how, void** arguments) {
    how.cluster = cluster;
    run(how, [=] { call(function, arguments, std::index_sequence_for<A...>()); });
  };
  return {name, (std::string() + ... + kind<A>()), launch};
}
#define EMU_KERNEL(name, cluster) emu::kernel(#name, name, cluster)

const std::vector<Kernel>& kernels() {
  static const std::vector<Kernel> all = {RSK_KERNELS};
  return all;
}

void launch(const std::string& name, const std::string& kinds, const Launch& how, void** arguments) {
  for (const Kernel& k : kernels()) {
    if (name != k.name) continue;
    if (kinds != k.kinds) throw std::runtime_error(name + " takes arguments " + k.kinds + ", got " + kinds);
    return k.launch(how, arguments);
  }
  throw std::runtime_error("no kernel " + name);
}
}  // namespace emu

// numbers: grid, block (3 each), shared memory, its limit, seed, removed barrier.
extern "C" int emu_launch(const char* name, const char* kinds, const long long* numbers, void** arguments, char* error,
                          long long error_size) {
  emu::Launch how;
  const auto size = [&](int i) {
    return dim3{unsigned(numbers[i]), unsigned(numbers[i + 1]), unsigned(numbers[i + 2])};
  };
  how.grid = size(0);
  how.block = size(3);
  how.shared = std::size_t(numbers[6]);
  how.max_shared = std::size_t(numbers[7]);
  how.seed = unsigned(numbers[8]);
  how.removed = int(numbers[9]);
  try {
    emu::launch(name, kinds, how, arguments);
  } catch (const std::exception& e) {
    std::snprintf(error, std::size_t(error_size), "%s", e.what());
    return 1;
  }
  return 0;
}

// Counts what is read of an array from here on; what has been read of it so far.
extern "C" void emu_count(const void* array, long long bytes) {
  emu::reads.begin = reinterpret_cast<std::uintptr_t>(array);
  emu::reads.end = emu::reads.begin + std::uintptr_t(bytes);
  emu::reads.bytes = 0;
}
extern "C" long long emu_counted() { return emu::reads.bytes; }

#ifdef EMU_MAIN
// launch FILE: runs the launch that FILE describes and writes the arrays back into it. Little-endian int64 words; a
// text or an array is a word with its size in bytes, then the bytes. The file has the name, the ten numbers, and how
// many arguments there are; for each argument its kind and a scalar's bytes as a text, or for a pointer -1 (null) or
// its address modulo 16 and the array, or for a struct how many members it has, and each one's place and what an
// argument has. Exit status 1: the launch failed; 2: the file cannot be read.
namespace {
struct Input {
  std::vector<char> bytes;
  std::size_t at = 0;
  const char* take(std::size_t n) {
    if (n > bytes.size() - at) std::exit(2);
    at += n;
    return bytes.data() + at - n;
  }
  long long word() {
    long long x;
    std::memcpy(&x, take(8), 8);
    return x;
  }
  std::string text() {
    const std::size_t n = std::size_t(word());
    return {take(n), n};
  }
};
// Ends where its allocation ends, and is aligned as the original was.
struct Array {
  std::unique_ptr<char[]> memory;
  char* data;
  std::size_t size, where;
};
}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::ifstream file(argv[1], std::ios::binary);
  Input in{{std::istreambuf_iterator<char>(file), {}}};
  const std::string name = in.text();
  long long numbers[10];
  for (long long& x : numbers) x = in.word();
  std::vector<Array> arrays;
  // What an argument of this kind has, or a member of a struct, to where it belongs.
  const auto read = [&](char letter, char* to) {
    if (letter != 'p') {
      const std::string bytes = in.text();
      std::memcpy(to, bytes.data(), bytes.size());
      return;
    }
    char* data = nullptr;
    const long long offset = in.word();
    if (offset >= 0) {
      const std::size_t size = std::size_t(in.word());
      Array a{std::unique_ptr<char[]>(new char[size + std::size_t(offset)]), nullptr, size, in.at};
      a.data = data = a.memory.get() + offset;
      std::memcpy(a.data, in.take(size), size);
      arrays.push_back(std::move(a));
    }
    std::memcpy(to, &data, sizeof data);
  };
  std::string kinds;
  std::vector<std::unique_ptr<char[]>> memory;
  std::vector<void*> arguments;
  for (long long n = in.word(); n > 0; --n) {
    const std::string kind = in.text();
    kinds += kind;
    memory.emplace_back(new char[std::stoul(kind.substr(1))]);
    char* const to = memory.back().get();
    arguments.push_back(to);
    if (kind[0] != 's') {
      read(kind[0], to);
      continue;
    }
    for (long long members = in.word(); members > 0; --members) {
      const long long place = in.word();
      read(in.text()[0], to + place);
    }
  }
  char error[1000];
  if (emu_launch(name.c_str(), kinds.c_str(), numbers, arguments.data(), error, sizeof error)) {
    std::fprintf(stderr, "%s\n", error);
    return 1;
  }
  for (const Array& a : arrays) std::memcpy(in.bytes.data() + a.where, a.data, a.size);
  std::ofstream(argv[1], std::ios::binary).write(in.bytes.data(), std::streamsize(in.bytes.size()));
  return 0;
}
#endif
