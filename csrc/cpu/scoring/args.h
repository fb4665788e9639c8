// Arguments and entry points of the scoring kernels: one pass over logits, or over a product that is never stored.
//
// Sizes: R slots (a row at a temperature), M targets of all slots, V columns, D dimensions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dtype.h"

namespace rsk {

enum class Form : int { logits = 0, hidden = 1 };

// z = softcap(logit_scale * x) * inverse_temperature, of x = logits[row, v] or hidden[row] . weight[v] + head_bias[v].
struct ScoreArgs {
  Form form;
  std::int64_t num_slots;
  const std::int64_t* rows;          // (R,)
  const float* inverse_temperature;  // (R,)
  float logit_scale;
  float softcap;  // 0: none

  const void* logits;  // (T, V) of dtype; consecutive rows are row_stride elements apart.
  DType dtype;
  std::int64_t row_stride;

  const void* hidden;  // (T, D)
  DType hidden_dtype;
  std::int64_t hidden_stride;
  const void* weight;  // (V, D)
  DType weight_dtype;
  std::int64_t weight_stride;
  const float* head_bias;  // (V,) or null
  std::int64_t dims;

  std::int64_t num_columns;     // V: columns from here on never enter
  const std::int64_t* allowed;  // (num_allowed,) the only columns that enter, or null: all
  std::int64_t num_allowed;

  const std::int64_t* pair_begin;  // (R + 1,): targets of a slot
  const std::int64_t* columns;     // (M,) column of a target, -1: z is minus infinity
  const float* target_logits;      // (M,) z that ranks are counted against, or null: the target's own

  std::int64_t top;  // how many of the largest z of a slot are wanted; at most the columns that enter

  // Outputs, every element written.
  float* ref;                 // (R,) finite; minus infinity where every z is
  float* max;                 // (R,)
  double* sum;                // (R,) of exp(z - ref); NaN where a z is NaN or infinity
  double* weighted;           // (R,) of (z - ref) exp(z - ref); or null
  float* target;              // (M,) z of the target
  std::int64_t* rank;         // (M,) how many z are greater; or null
  float* top_z;               // (R, top) from the largest on, of equal ones that of the lowest column first
  std::int64_t* top_columns;  // (R, top); -1 where fewer z are above minus infinity
};

// The state of a slot after some of its columns; see ScoreArgs.
struct ScoreState {
  double sum, weighted;
  float ref, max;
};

// One of the largest z of a slot.
struct TopItem {
  float z;
  std::int64_t position;
};

// Values of a slot, the largest among them, that one thread has seen.
struct TopList {
  float least;              // what is less is not among the largest; what enters is at least this
  std::int64_t size, room;  // items, and after how many `shrink` is to be called: kTopStep more always fit
  TopItem* items;
};
constexpr std::int64_t kTopStep = 64;  // values that enter at once, at most

// Consecutive slots first + at, .., first + at + count - 1 of a batch that begins with slot `first`.
struct Slots {
  std::int64_t first, at, count;
  const void* packed;  // the hidden rows of the batch as `pack` leaves them, or null
  Slots part(std::int64_t begin, std::int64_t most) const {
    return {first, at + begin, count - begin < most ? count - begin : most, packed};
  }
};

// One entry per instruction set. Positions are columns, or indices of `allowed`.
struct ScoreKernels {
  // z of the targets of a slot, by the arithmetic of the pass itself.
  void (*logits_targets)(const ScoreArgs&, std::int64_t slot, void* scratch);
  // Folds positions [begin, end) of a slot into its state, and into the list of its largest z if that is not null.
  void (*logits)(const ScoreArgs&, std::int64_t slot, std::int64_t begin, std::int64_t end, ScoreState&, TopList*);
  // The same for hidden states, and for consecutive slots at once, whose lists lie one after the other; scratch is
  // aligned to a cache line.
  void (*hidden_targets)(const ScoreArgs&, const Slots&, void* scratch);
  void (*hidden)(const ScoreArgs&, const Slots&, std::int64_t begin, std::int64_t end, ScoreState*, TopList* tops,
                 void* scratch);
  std::size_t scratch_bytes;
  std::int64_t (*linear_block)(const ScoreArgs&);  // positions that `hidden` takes at a time
  // Null, or packs hidden rows, kPackedSlots at a time, before the two functions above read them.
  void (*pack)(const ScoreArgs&, const Slots&, void* packed);
  std::size_t (*packed_bytes)(const ScoreArgs&, std::int64_t num_slots);
};
constexpr std::int64_t kPackedSlots = 16;

// `isa` is one of isa.h; num_threads >= 1. Throws std::invalid_argument for an instruction set that is not built or not
// supported by this processor, std::bad_alloc if the scratch memory does not fit.
void score(const ScoreArgs& args, int isa, int num_threads);

// The unit that multiplies two bfloat16 arrays on this processor: "amx", "avx512_bf16", or null: they are widened.
const char* bf16_unit(int isa);

}  // namespace rsk
