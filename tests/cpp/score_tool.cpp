// The scoring kernels without Python, in the manner of select_tool.cpp; score_problems.py has the problems and judges
// the answers.
//
//   score_tool --list
//   score_tool [--isa NAME] [--threads N] PROBLEMS ANSWERS
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "scoring/args.h"
#include "tool.h"

namespace {

using tool::Output;
using tool::Problems;
using tool::UsageError;

void run_score(Problems& in, std::ofstream& out, int isa, int threads) {
  constexpr std::int64_t kElementBytes[] = {4, 2, 2};
  rsk::ScoreArgs a{};
  a.form = rsk::Form(in.word());
  a.num_slots = in.word();
  a.num_columns = in.word();
  a.num_allowed = in.word();
  a.dims = in.word();
  a.dtype = rsk::DType(in.word());
  a.row_stride = in.word();
  a.hidden_dtype = rsk::DType(in.word());
  a.hidden_stride = in.word();
  a.weight_dtype = rsk::DType(in.word());
  a.weight_stride = in.word();
  const bool entropy = in.word() != 0, rank = in.word() != 0;
  const std::int64_t pairs = in.word();
  a.top = in.word();
  const float* numbers = in.array<float>();
  a.logit_scale = numbers[0];
  a.softcap = numbers[1];
  a.rows = in.array<std::int64_t>();
  a.inverse_temperature = in.array<float>();
  a.logits = in.array<char>(kElementBytes[int(a.dtype)]);
  a.hidden = in.array<char>(kElementBytes[int(a.hidden_dtype)]);
  a.weight = in.array<char>(kElementBytes[int(a.weight_dtype)]);
  a.head_bias = in.array<float>();
  a.allowed = in.array<std::int64_t>();
  a.pair_begin = in.array<std::int64_t>();
  a.columns = in.array<std::int64_t>();
  a.target_logits = in.array<float>();
  Output<float> ref(a.num_slots), max(a.num_slots), target(pairs);
  Output<double> sum(a.num_slots), weighted(entropy ? a.num_slots : 0);
  Output<std::int64_t> ranks(rank ? pairs : 0), top_columns(a.num_slots * a.top);
  Output<float> top_z(a.num_slots * a.top);
  a.ref = ref.data();
  a.max = max.data();
  a.sum = sum.data();
  a.weighted = entropy ? weighted.data() : nullptr;
  a.target = target.data();
  a.rank = rank ? ranks.data() : nullptr;
  a.top_z = top_z.data();
  a.top_columns = top_columns.data();
  rsk::score(a, isa, threads);
  ref.write(out, "ref");
  max.write(out, "max");
  sum.write(out, "sum");
  weighted.write(out, "weighted");
  target.write(out, "target");
  ranks.write(out, "rank");
  top_z.write(out, "top");
  top_columns.write(out, "top columns");
}

void run_command(const std::vector<std::string>& arguments) {
  const char* usage = "usage: score_tool [--isa NAME] [--threads N] PROBLEMS ANSWERS";
  int isa = tool::widest_isa(), threads = 1;
  std::vector<std::string> files;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--list") return tool::list_isas();
    if (arguments[i].compare(0, 2, "--")) {
      files.push_back(arguments[i]);
      continue;
    }
    const std::string& option = arguments[i];
    if (++i == arguments.size()) throw UsageError(usage);
    if (option == "--isa")
      isa = tool::find_isa(arguments[i]);
    else if (option == "--threads")
      threads = std::atoi(arguments[i].c_str());
    else
      throw UsageError(usage);
  }
  if (files.size() != 2 || threads < 1) throw UsageError(usage);
  Problems in(files[0], "RSKSCOR1");
  std::ofstream out(files[1], std::ios::binary);
  if (!out) throw UsageError("cannot write " + files[1]);
  for (std::int64_t problem = 0; problem < in.count(); ++problem) {
    in.next_problem();
    run_score(in, out, isa, threads);
  }
  out.close();
  if (!out) throw UsageError("cannot write " + files[1]);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run_command(std::vector<std::string>(argv + 1, argv + argc));
    return 0;
  } catch (const UsageError& error) {
    std::fprintf(stderr, "score_tool: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "score_tool: %s\n", error.what());
    return 1;
  }
}
