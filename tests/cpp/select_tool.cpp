// The kernels without Python: reads problems from a file, writes what they return. Runs where Python does not (under
// an emulator, with ThreadSanitizer); driver.py beside this file writes the problems and judges the answers.
//
//   select_tool --list
//   select_tool [--isa NAME] [--threads N] [--rule automatic|dense|pruned] PROBLEMS ANSWERS
//
// The first prints the instruction sets that run here, of which the second takes the widest unless told; it prints
// the dot products done and the rows read for the selections.
//
// Both files are little-endian: a word is an int64, an array a word with its size in bytes (-1: null) and the bytes.
// Exit status 1: a kernel wrote outside its outputs, or threw; 2: bad arguments or files.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "api.h"
#include "tool.h"

namespace {

constexpr char kMagic[] = "RSKPROB1";

struct Options {
  int isa = 0;
  int threads = 1;
  rsk::Rule rule = rsk::Rule::automatic;
};

// Of all selections so far.
struct Work {
  std::int64_t products = 0;
  std::int64_t rows_read = 0;
};

using tool::Output;
using tool::Problems;
using tool::UsageError;

// The fields of SelectArgs that are not outputs.
rsk::SelectArgs read_args(Problems& in) {
  rsk::SelectArgs a{};
  a.method = rsk::Method(in.word());
  a.num_queries = in.word();
  a.num_rows = in.word();
  a.pool = in.word();
  a.dims = in.word();
  a.k = in.word();
  a.num_initial = in.word();
  a.dtype = rsk::DType(in.word());
  a.row_stride = in.word();
  a.norm = rsk::Norm(in.word());
  a.pool_stride = in.word();
  a.unit_queries = in.word() != 0;
  a.unit_rows = in.word() != 0;
  a.id_bytes = int(in.word());
  a.initial_bytes = int(in.word());
  a.bias_per_item = in.word() != 0;
  a.max_per_group = in.word();
  constexpr std::int64_t kElementBytes[] = {4, 2, 2, 1};
  a.rows = in.array<char>(kElementBytes[int(a.dtype)]);
  a.scales = in.array<float>();
  a.queries = in.array<float>();
  a.candidates = in.array<char>(a.id_bytes);
  a.initial = in.array<char>(a.initial_bytes);
  a.relevance = in.array<float>();
  a.bias = in.array<float>();
  a.lambda_d = in.array<float>();
  a.lambda_b = in.array<float>();
  a.ks = in.array<std::int64_t>();
  a.groups = in.array<std::int64_t>();
  a.query_groups = in.array<std::int64_t>();
  a.relevance_error = in.array<float>();
  a.forced = in.array<std::int64_t>();
  a.ceiling = in.array<float>();
  a.outside = in.array<float>();
  const float* max_bias = in.array<float>();
  if (max_bias) a.max_bias = *max_bias;
  return a;
}

void run_select(Problems& in, std::ofstream& out, const Options& options, Work& work) {
  rsk::SelectArgs a = read_args(in);
  a.rule = options.rule;
  const std::int64_t picks = a.num_queries * a.k;
  Output<std::int64_t> done(2);
  Output<std::uint8_t> status(a.num_queries);
  Output<std::int32_t> lengths(a.num_queries);
  Output<std::int64_t> indices(picks);
  Output<float> scores(picks), relevance(picks), redundancy(picks);
  a.status = status.data();
  a.lengths = lengths.data();
  a.indices = indices.data();
  a.scores = scores.data();
  a.out_relevance = relevance.data();
  a.redundancy = redundancy.data();
  a.work = done.data();
  rsk::select(a, options.isa, options.threads);
  done.check("work");
  work.products += done.data()[0];
  work.rows_read += done.data()[1];
  status.write(out, "status");
  lengths.write(out, "lengths");
  indices.write(out, "indices");
  scores.write(out, "scores");
  relevance.write(out, "relevance");
  redundancy.write(out, "redundancy");
}

void run_relevance(Problems& in, std::ofstream& out, const Options& options, Work&) {
  rsk::RelevanceArgs a{};
  a.pool = read_args(in);
  Output<std::uint8_t> status(a.pool.num_queries);
  Output<float> values(a.pool.num_queries * a.pool.pool);
  a.pool.status = status.data();
  a.out = values.data();
  rsk::relevance(a, options.isa, options.threads);
  status.write(out, "status");
  values.write(out, "values");
}

void run_top_n(Problems& in, std::ofstream& out, const Options& options, Work&) {
  const std::int64_t num_queries = in.word(), columns = in.word(), block = in.word(), n = in.word();
  const std::int64_t score_stride = in.word(), cap = in.word();
  const float* scores = in.array<float>();
  const float* bias = in.array<float>();
  const float* score_weight = in.array<float>();
  const float* bias_weight = in.array<float>();
  const float* margin = in.array<float>();
  const std::int64_t* groups = in.array<std::int64_t>();
  const std::int64_t* query_groups = in.array<std::int64_t>();
  rsk::TopN top(num_queries, n);
  for (std::int64_t first = 0; first < columns; first += block) {
    rsk::TopNArgs a{};
    a.num_queries = num_queries;
    a.block = columns - first < block ? columns - first : block;
    a.n = n;
    a.scores = scores + first;
    a.score_stride = score_stride;
    a.first_row = first;
    a.bias = bias ? bias + first : nullptr;
    a.score_weight = score_weight;
    a.bias_weight = bias_weight;
    a.margin = margin;
    a.groups = groups ? groups + first : nullptr;
    a.query_groups = query_groups;
    top.fold(a, options.isa, options.threads);
  }
  const std::int64_t width = top.width(cap);
  Output<std::int64_t> rows(num_queries * width);
  Output<float> kept(num_queries * width), outside(num_queries);
  top.get(rows.data(), kept.data(), width, outside.data());
  rows.write(out, "rows");
  kept.write(out, "scores");
  outside.write(out, "outside");
}

Work run(const std::string& problems, const std::string& answers, const Options& options) {
  Problems in(problems, kMagic);
  std::ofstream out(answers, std::ios::binary);
  if (!out) throw UsageError("cannot write " + answers);
  constexpr void (*kRun[])(Problems&, std::ofstream&, const Options&, Work&) = {run_select, run_relevance, run_top_n};
  Work work;
  for (std::int64_t problem = 0; problem < in.count(); ++problem) {
    in.next_problem();
    const std::int64_t kind = in.word();
    if (kind < 0 || kind > 2) throw UsageError("problem " + std::to_string(problem) + " is of no known kind");
    try {
      kRun[kind](in, out, options, work);
    } catch (const UsageError&) {
      throw;
    } catch (const std::exception& error) {
      throw std::runtime_error("problem " + std::to_string(problem) + ": " + error.what());
    }
  }
  out.close();
  if (!out) throw UsageError("cannot write " + answers);
  return work;
}

rsk::Rule find_rule(const std::string& name) {
  if (name == "automatic") return rsk::Rule::automatic;
  if (name == "dense") return rsk::Rule::dense;
  if (name == "pruned") return rsk::Rule::pruned;
  throw UsageError("no rule is named " + name);
}

void run_command(const std::vector<std::string>& arguments) {
  const char* usage = "usage: select_tool [--isa NAME] [--threads N] [--rule NAME] PROBLEMS ANSWERS";
  Options options;
  options.isa = tool::widest_isa();
  std::vector<std::string> files;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--list") return tool::list_isas();
    if (arguments[i].compare(0, 2, "--")) {
      files.push_back(arguments[i]);
      continue;
    }
    if (i + 1 == arguments.size()) throw UsageError(usage);
    const std::string& option = arguments[i];
    const std::string& value = arguments[++i];
    if (option == "--isa")
      options.isa = tool::find_isa(value);
    else if (option == "--threads")
      options.threads = std::atoi(value.c_str());
    else if (option == "--rule")
      options.rule = find_rule(value);
    else
      throw UsageError(usage);
  }
  if (files.size() != 2 || options.threads < 1) throw UsageError(usage);
  const Work work = run(files[0], files[1], options);
  std::printf("%lld %lld\n", static_cast<long long>(work.products), static_cast<long long>(work.rows_read));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run_command(std::vector<std::string>(argv + 1, argv + argc));
    return 0;
  } catch (const UsageError& error) {
    std::fprintf(stderr, "select_tool: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "select_tool: %s\n", error.what());
    return 1;
  }
}
