// The scoring kernels of every instruction set, and what divides their work among threads.
//
// A row's columns are cut into chunks by V and D alone. A chunk is folded on its own, whoever does it, and the states
// of a row's chunks are merged in their order: the bits of a row depend on no other row and on no number of threads.
#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "isa.h"
#include "parallel.h"
#include "regions.h"
#include "scoring/args.h"

#if RSK_X86_DISPATCH && defined(__linux__) && !defined(RSK_NO_AMX) && (__GNUC__ >= 11 || __clang_major__ >= 12)
#include <sys/syscall.h>
#include <unistd.h>
#define RSK_AMX_UNIT 1
#endif

namespace rsk {
namespace {

constexpr auto better = [](const TopItem& a, const TopItem& b) {
  return a.z > b.z || (a.z == b.z && a.position < b.position);
};

// Keeps the best `size` items, and lets only what is better enter.
void shrink(TopList& list, std::int64_t size) {
  if (list.size < size) return;
  std::nth_element(list.items, list.items + size - 1, list.items + list.size, better);
  list.least = std::max(list.least, std::nextafter(list.items[size - 1].z, std::numeric_limits<float>::infinity()));
  list.size = size;
}

// The rank-th largest of n values, which change their places.
float largest_but(float* values, std::int64_t n, std::int64_t rank) {
  std::nth_element(values, values + rank - 1, values + n, std::greater<float>());
  return values[rank - 1];
}

}  // namespace
}  // namespace rsk

#define RSK_REGION_BODY "scoring/kernels.inl"
#include "each_region.inl"

// avx512 where the processor multiplies bfloat16, which is no instruction set of its own: only for a product of two
// such arrays.
#if RSK_X86_DISPATCH
RSK_REGION("avx512bf16," RSK_AVX512)
namespace rsk::avx512_bf16 {
#define RSK_VEC_BYTES 64
#define RSK_BF16_DOT
#include "scoring/kernels.inl"
#undef RSK_BF16_DOT
#undef RSK_VEC_BYTES
}  // namespace rsk::avx512_bf16
RSK_REGION_END
#endif

// The same where it has a matrix unit for them.
#if RSK_AMX_UNIT
RSK_REGION("amx-tile,amx-bf16," RSK_AVX512)
namespace rsk::amx {
#define RSK_VEC_BYTES 64
#define RSK_AMX
#include "scoring/kernels.inl"
#undef RSK_AMX
#undef RSK_VEC_BYTES
}  // namespace rsk::amx
RSK_REGION_END
#endif

namespace rsk {
namespace {

constexpr const ScoreKernels* kIsas[] = {RSK_OF_EACH_REGION(kScoreKernels)};

#if RSK_AMX_UNIT
// Whether there is a matrix unit and the system permits its use, which a process asks for once.
bool find_amx() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // of <asm/prctl.h>, which older headers lack
  return has_tiles() && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool amx_supported() {
  static const bool supported = find_amx();
  return supported;
}
#endif

const ScoreKernels& kernels_for([[maybe_unused]] const ScoreArgs& args, int isa) {
  const ScoreKernels& kernels = kernels_of(kIsas, isa);
#if RSK_X86_DISPATCH
  const bool bf16 = args.form == Form::hidden && args.hidden_dtype == DType::bf16 && args.weight_dtype == DType::bf16;
  const char* unit = bf16 ? bf16_unit(isa) : nullptr;
#if RSK_AMX_UNIT
  if (unit && !std::strcmp(unit, "amx")) return amx::kScoreKernels;
#endif
  if (unit) return avx512_bf16::kScoreKernels;
#endif
  return kernels;
}

constexpr std::int64_t kLogitsChunk = 32768;  // columns
constexpr std::int64_t kLinearChunks = 64;    // of a row, at most
constexpr std::int64_t kLinearSlots = 512;    // slots of a batch, whose states are kept at a time
constexpr double kSerialLogits = 2e5;         // elements; fewer are no work for a second thread

constexpr ScoreState kNothing = {0.0, 0.0, -std::numeric_limits<float>::infinity(),
                                 -std::numeric_limits<float>::infinity()};

// Makes the sums those with another reference.
void rebase(ScoreState& state, float ref) {
  const double change = double(state.ref) - double(ref), factor = std::exp(change);
  state.weighted = (state.weighted + change * state.sum) * factor;
  state.sum *= factor;
  state.ref = ref;
}

void merge(ScoreState& total, ScoreState part) {
  if (part.ref == kNothing.ref || total.ref == kNothing.ref) {
    const double strange = total.ref == kNothing.ref ? total.sum : part.sum;  // 0 or NaN
    if (total.ref == kNothing.ref) total = part;
    total.sum += strange;
    return;
  }
  if (part.ref > total.ref)
    rebase(total, part.ref);
  else
    rebase(part, total.ref);
  total.sum += part.sum;
  total.weighted += part.weighted;
  total.max = std::max(total.max, part.max);
}

void write(const ScoreArgs& args, std::int64_t slot, const ScoreState& state) {
  const bool strange = std::isnan(state.sum);
  args.ref[slot] = state.ref;
  args.max[slot] = strange ? std::numeric_limits<float>::quiet_NaN() : state.max;
  args.sum[slot] = state.sum;
  if (args.weighted) args.weighted[slot] = strange ? state.sum : state.weighted;
}

// The largest z of slots: each thread has a list for each of them. Which thread had which columns does not show, since
// no two items of a slot are equal.
class Tops {
 public:
  Tops(const ScoreArgs& args, std::int64_t slots, int num_threads) : args_(args), slots_(slots), threads_(num_threads) {
    if (!args.top) return;
    const std::int64_t room = 2 * args.top, most = room + kTopStep;
    items_.resize(std::size_t(threads_ * slots * most));
    for (std::int64_t i = 0; i < threads_ * slots; ++i) lists_.push_back({-FLT_MAX, 0, room, items_.data() + i * most});
  }
  // The first of a thread's lists, which lie one after the other; null if nothing is wanted.
  TopList* list(int thread, std::int64_t slot) {
    return args_.top ? &lists_[std::size_t(thread * slots_ + slot)] : nullptr;
  }
  // Writes what is best in the lists of a slot as that of slot `number` of the call, and empties them.
  void write(std::int64_t slot, std::int64_t number) {
    if (!args_.top) return;
    std::vector<TopItem> found;
    for (int thread = 0; thread < threads_; ++thread) {
      TopList& part = *list(thread, slot);
      found.insert(found.end(), part.items, part.items + part.size);
      part.least = -FLT_MAX;
      part.size = 0;
    }
    const std::int64_t count = std::min(args_.top, std::int64_t(found.size()));
    std::partial_sort(found.begin(), found.begin() + count, found.end(), better);
    float* const z = args_.top_z + number * args_.top;
    std::int64_t* const columns = args_.top_columns + number * args_.top;
    for (std::int64_t i = 0; i < count; ++i) {
      const TopItem& item = found[std::size_t(i)];
      z[i] = item.z;
      columns[i] = args_.allowed ? args_.allowed[item.position] : item.position;
    }
    std::fill(z + count, z + args_.top, -std::numeric_limits<float>::infinity());
    std::fill(columns + count, columns + args_.top, -1);
  }

 private:
  const ScoreArgs& args_;
  std::int64_t slots_;
  int threads_;
  std::vector<TopItem> items_;
  std::vector<TopList> lists_;
};

void score_logits(const ScoreArgs& args, const ScoreKernels& kernels, std::int64_t positions, int num_threads) {
  const std::int64_t chunks = (positions + kLogitsChunk - 1) / kLogitsChunk;
  const auto chunk = [&](std::int64_t slot, std::int64_t c, TopList* top) {
    ScoreState state = kNothing;
    kernels.logits(args, slot, c * kLogitsChunk, std::min(positions, (c + 1) * kLogitsChunk), state, top);
    return state;
  };
  const int threads = worthwhile_threads(double(args.num_slots) * double(positions), args.num_slots * chunks,
                                         num_threads, kSerialLogits);
  if (threads == 1 || args.num_slots >= 4 * threads) {
    Tops tops(args, threads, 1);  // a slot of each thread
    parallel_for(args.num_slots, 1, threads, [&](std::int64_t slot, int thread) {
      kernels.logits_targets(args, slot, nullptr);
      ScoreState total = kNothing;
      for (std::int64_t c = 0; c < chunks; ++c) merge(total, chunk(slot, c, tops.list(0, thread)));
      write(args, slot, total);
      tops.write(thread, slot);
    });
    return;
  }
  for (std::int64_t slot = 0; slot < args.num_slots; ++slot) kernels.logits_targets(args, slot, nullptr);
  std::vector<ScoreState> states(std::size_t(args.num_slots * chunks));
  Tops tops(args, args.num_slots, threads);
  parallel_for(args.num_slots * chunks, 1, threads, [&](std::int64_t item, int thread) {
    states[std::size_t(item)] = chunk(item / chunks, item % chunks, tops.list(thread, item / chunks));
  });
  for (std::int64_t slot = 0; slot < args.num_slots; ++slot) {
    ScoreState total = kNothing;
    for (std::int64_t c = 0; c < chunks; ++c) merge(total, states[std::size_t(slot * chunks + c)]);
    write(args, slot, total);
    tops.write(slot, slot);
  }
}

// Scratch memory of the threads, zeros on cache lines of their own. Only the pages that are used take memory.
class Scratch {
 public:
  Scratch(std::size_t bytes, int num_threads) {
    for (int thread = 0; thread < num_threads; ++thread) {
      blocks_.emplace_back(static_cast<char*>(std::calloc(bytes + kLine, 1)), &std::free);
      if (!blocks_.back()) throw std::bad_alloc();
    }
  }
  void* operator[](int thread) {
    char* block = blocks_[std::size_t(thread)].get();
    return block + (kLine - reinterpret_cast<std::uintptr_t>(block) % kLine) % kLine;
  }

 private:
  static constexpr std::size_t kLine = 64;
  std::vector<std::unique_ptr<char, decltype(&std::free)>> blocks_;
};

void score_hidden(const ScoreArgs& args, const ScoreKernels& kernels, std::int64_t positions, int num_threads) {
  const std::int64_t block = kernels.linear_block(args), blocks = (positions + block - 1) / block;
  const std::int64_t chunks = std::min(blocks, kLinearChunks);
  const double products = double(args.num_slots) * double(positions) * double(args.dims);
  const int threads = worthwhile_threads(products, std::max(chunks, args.num_slots), num_threads);
  const std::int64_t most_slots = std::min(args.num_slots, kLinearSlots);
  Scratch scratch(kernels.scratch_bytes, threads);
  Scratch packed(kernels.pack ? kernels.packed_bytes(args, most_slots) : 0, 1);
  std::vector<ScoreState> states(std::size_t(most_slots * chunks));
  Tops tops(args, most_slots, threads);
  for (std::int64_t first = 0; first < args.num_slots; first += kLinearSlots) {
    const Slots batch = {first, 0, std::min(kLinearSlots, args.num_slots - first), packed[0]};
    const std::int64_t slots = batch.count;
    parallel_for((slots + kPackedSlots - 1) / kPackedSlots, 1, threads, [&](std::int64_t item, int thread) {
      const Slots part = batch.part(item * kPackedSlots, kPackedSlots);
      if (kernels.pack) kernels.pack(args, part, packed[0]);
      kernels.hidden_targets(args, part, scratch[thread]);
    });
    std::fill(states.begin(), states.end(), kNothing);
    parallel_for(chunks, 1, threads, [&](std::int64_t c, int thread) {
      kernels.hidden(args, batch, blocks * c / chunks * block, std::min(positions, blocks * (c + 1) / chunks * block),
                     &states[std::size_t(c * slots)], tops.list(thread, 0), scratch[thread]);
    });
    for (std::int64_t slot = 0; slot < slots; ++slot) {
      ScoreState total = kNothing;
      for (std::int64_t c = 0; c < chunks; ++c) merge(total, states[std::size_t(c * slots + slot)]);
      write(args, first + slot, total);
      tops.write(slot, first + slot);
    }
  }
}

}  // namespace

const char* bf16_unit([[maybe_unused]] int isa) {
#if RSK_AMX_UNIT
  if (isa == 2 && amx_supported()) return "amx";
#endif
#if RSK_X86_DISPATCH
  if (isa == 2 && has_bf16()) return "avx512_bf16";
#endif
  return nullptr;
}

void score(const ScoreArgs& args, int isa, int num_threads) {
  const ScoreKernels& kernels = kernels_for(args, isa);
  const std::int64_t positions = args.allowed ? args.num_allowed : args.num_columns;
  if (args.rank) std::fill(args.rank, args.rank + args.pair_begin[args.num_slots], std::int64_t(0));
  (args.form == Form::logits ? score_logits : score_hidden)(args, kernels, positions, num_threads);
}

}  // namespace rsk
