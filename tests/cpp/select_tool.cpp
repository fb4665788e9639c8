// The kernels without Python: reads problems from a file, writes what they return. Runs where Python does not (under
// an emulator, with ThreadSanitizer); select_driver.py beside this file writes the problems and judges the answers.
//
//   select_tool --list
//   select_tool [--isa NAME] [--threads N] [--bounds automatic|dense|pruned|coded|coarse] PROBLEMS ANSWERS
//
// The first prints the instruction sets that run here, of which the second takes the widest unless told; it prints
// the dot products done, the rows read and the products of codes for the selections.
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

#include "selection/top_n.h"
#include "tool.h"

namespace {

constexpr char kMagic[] = "RSKPROB1";

struct Options {
  int isa = 0;
  int threads = 1;
  rsk::Bounds bounds = rsk::Bounds::automatic;
};

// Of all selections so far.
struct Work {
  std::int64_t products = 0;
  std::int64_t rows_read = 0;
  std::int64_t code_products = 0;
};

using tool::Output;
using tool::Problems;
using tool::UsageError;

// Codes of rows, in memory that ends where they end.
class Codes {
 public:
  Codes(const rsk::EncodeArgs& rows, const Options& options) : codes_(rows.num_rows * rsk::code_stride(rows.dims)) {
    rsk::EncodeArgs args = rows;
    args.out = codes_.data();
    rsk::encode(args, options.isa, options.threads);
  }
  Output<std::uint8_t>& output() { return codes_; }
  // Copied, since an Output has canaries behind it, which may be read.
  const std::uint8_t* exact() {
    exact_.reset(new std::uint8_t[codes_.size()]);
    std::memcpy(exact_.get(), codes_.data(), codes_.size());
    return exact_.get();
  }

 private:
  Output<std::uint8_t> codes_;
  std::unique_ptr<std::uint8_t[]> exact_;
};

void read_options(Problems& in, rsk::Options& options) {
  options.quality = in.array<float>();
  options.quality_per_item = in.word() != 0;
  options.aspects = in.array<float>();
  options.weights = in.array<float>();
  options.num_aspects = in.word();
  options.window = in.word();
  options.density = in.word() != 0;
  const float* numbers = in.array<float>();
  if (!numbers) return;
  options.scale = numbers[0];
  options.noise = numbers[1];
  options.min_gain = numbers[2];
  options.gamma = numbers[3];
}

// The fields of SelectArgs that are not outputs.
rsk::SelectArgs read_args(Problems& in) {
  rsk::SelectArgs a{};
  a.method = rsk::Method(in.word());
  a.num_queries = in.word();
  a.num_rows = in.word();
  a.pool = in.word();
  a.dims = in.word();
  a.k = in.word();
  a.limits.num_initial = in.word();
  a.dtype = rsk::DType(in.word());
  a.row_stride = in.word();
  a.norm = rsk::Norm(in.word());
  a.pool_stride = in.word();
  a.unit_queries = in.word() != 0;
  a.unit_rows = in.word() != 0;
  a.id_bytes = int(in.word());
  a.limits.initial_bytes = int(in.word());
  a.bias_per_item = in.word() != 0;
  a.limits.max_per_group = in.word();
  a.rows = in.array<char>(rsk::element_bytes(a.dtype));
  a.scales = in.array<float>();
  a.queries = in.array<float>();
  a.query_signs = in.array<std::uint8_t>();
  a.candidates = in.array<char>(a.id_bytes);
  a.limits.initial = in.array<char>(a.limits.initial_bytes);
  a.relevance = in.array<float>();
  a.bias = in.array<float>();
  a.lambda_d = in.array<float>();
  a.lambda_b = in.array<float>();
  a.ks = in.array<std::int64_t>();
  a.limits.groups = in.array<std::int64_t>();
  a.limits.query_groups = in.array<std::int64_t>();
  a.stage.relevance_error = in.array<float>();
  a.stage.forced = in.array<std::int64_t>();
  a.stage.ceiling = in.array<float>();
  a.stage.outside = in.array<float>();
  const float* max_bias = in.array<float>();
  if (max_bias) a.stage.max_bias = *max_bias;
  a.stage.best_first = in.word() != 0;
  a.limits.costs = in.array<double>();
  a.limits.costs_per_item = in.word() != 0;
  a.limits.budget = in.array<double>();
  a.limits.max_similarity = in.array<float>();
  read_options(in, a.options);
  return a;
}

void run_select(Problems& in, std::ofstream& out, const Options& options, Work& work) {
  rsk::SelectArgs a = read_args(in);
  a.bounds = options.bounds;
  if (a.bounds == rsk::Bounds::coarse) a.shared_items = 64;  // threads share small problems too
  std::unique_ptr<Codes> codes;
  if (in.word()) {
    codes.reset(new Codes({a.rows, a.num_rows, a.dims, a.row_stride, a.dtype, a.scales, nullptr}, options));
    a.codes = codes->exact();
  }
  const std::int64_t picks = a.num_queries * a.k;
  Output<std::int64_t> done(3);
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
  work.code_products += done.data()[2];
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
  in.word();  // codes are not looked at
  Output<std::uint8_t> status(a.pool.num_queries);
  Output<float> values(a.pool.num_queries * a.pool.pool);
  a.pool.status = status.data();
  a.out = values.data();
  rsk::relevance(a, options.isa, options.threads);
  status.write(out, "status");
  values.write(out, "values");
}

void run_search(Problems& in, std::ofstream& out, const Options& options, Work&) {
  rsk::SearchArgs a{};
  a.corpus = read_args(in);
  const rsk::SelectArgs& rows = a.corpus;
  std::unique_ptr<Codes> codes;
  if (in.word()) {
    codes.reset(
        new Codes({rows.rows, rows.num_rows, rows.dims, rows.row_stride, rows.dtype, rows.scales, nullptr}, options));
    a.corpus.codes = codes->exact();
    a.row_error = rsk::largest_code_error(a.corpus.codes, rows.num_rows, rsk::code_stride(rows.dims));
  }
  a.largest_bias = float(in.word());
  a.n = rows.k;
  Output<std::uint8_t> status(rows.num_queries);
  Output<std::int64_t> indices(rows.num_queries * a.n);
  Output<float> scores(rows.num_queries * a.n);
  a.corpus.status = status.data();
  a.indices = indices.data();
  a.scores = scores.data();
  rsk::search(a, options.isa, options.threads);
  status.write(out, "status");
  indices.write(out, "indices");
  scores.write(out, "scores");
}

rsk::EncodeArgs read_rows(Problems& in) {
  rsk::EncodeArgs a{};
  a.num_rows = in.word();
  a.dims = in.word();
  a.row_stride = in.word();
  a.dtype = rsk::DType(in.word());
  a.rows = in.array<char>(rsk::element_bytes(a.dtype));
  a.scales = in.array<float>();
  return a;
}

void run_encode(Problems& in, std::ofstream& out, const Options& options, Work&) {
  Codes codes(read_rows(in), options);
  codes.output().write(out, "codes");
}

// Nothing is written where there is no such scan.
void run_scan(Problems& in, std::ofstream& out, const Options& options, Work&) {
  const rsk::EncodeArgs rows = read_rows(in);
  const std::int64_t num_queries = in.word(), terms = in.word(), n = in.word();
  const bool by_codes = in.word() != 0;
  rsk::ScanArgs a{};
  a.vectors = in.array<float>();
  a.corpus.num_queries = num_queries;
  a.corpus.num_rows = rows.num_rows;
  a.corpus.dims = rows.dims;
  a.corpus.rows = rows.rows;
  a.corpus.dtype = rows.dtype;
  a.corpus.row_stride = rows.row_stride;
  a.corpus.norm = rsk::Norm::scaled;
  a.corpus.scales = rows.scales;
  a.corpus.bias = in.array<float>();
  a.score_weight = in.array<float>();
  a.bias_weight = in.array<float>();
  a.corpus.limits.groups = in.array<std::int64_t>();
  a.corpus.limits.query_groups = in.array<std::int64_t>();
  a.largest_bias = float(in.word());
  a.max_norm = 1.0f;
  a.terms = terms;
  a.corpus.unit_rows = true;
  a.by_codes = by_codes;
  Codes codes(rows, options);
  if (by_codes && rows.dtype != rsk::DType::i8) {
    a.corpus.codes = codes.exact();
    a.row_error = rsk::largest_code_error(a.corpus.codes, rows.num_rows, rsk::code_stride(rows.dims));
  }
  rsk::TopN top(num_queries, n, false);
  const bool supported = !by_codes || rsk::code_scan_supported(options.isa, num_queries * terms, false);
  if (supported && !top.scan(a, options.isa, options.threads)) throw std::runtime_error("a row is no vector");
  const std::int64_t width = supported ? top.width() : 0, queries = supported ? num_queries : 0;
  Output<std::int64_t> found(queries * width);
  Output<float> kept(queries * width), outside(queries), error(queries);
  if (supported) top.get(found.data(), kept.data(), width, outside.data(), error.data());
  found.write(out, "rows");
  kept.write(out, "scores");
  outside.write(out, "outside");
  error.write(out, "error");
}

Work run(const std::string& problems, const std::string& answers, const Options& options) {
  Problems in(problems, kMagic);
  std::ofstream out(answers, std::ios::binary);
  if (!out) throw UsageError("cannot write " + answers);
  constexpr void (*kRun[])(Problems&, std::ofstream&, const Options&, Work&) = {run_select, run_relevance, run_search,
                                                                                run_encode, run_scan};
  Work work;
  for (std::int64_t problem = 0; problem < in.count(); ++problem) {
    in.next_problem();
    const std::int64_t kind = in.word();
    if (kind < 0 || kind > 4) throw UsageError("problem " + std::to_string(problem) + " is of no known kind");
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

rsk::Bounds find_bounds(const std::string& name) {
  if (name == "automatic") return rsk::Bounds::automatic;
  if (name == "dense") return rsk::Bounds::dense;
  if (name == "pruned") return rsk::Bounds::pruned;
  if (name == "coded") return rsk::Bounds::coded;
  if (name == "coarse") return rsk::Bounds::coarse;
  throw UsageError("no bounds are named " + name);
}

void run_command(const std::vector<std::string>& arguments) {
  const char* usage = "usage: select_tool [--isa NAME] [--threads N] [--bounds NAME] PROBLEMS ANSWERS";
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
    else if (option == "--bounds")
      options.bounds = find_bounds(value);
    else
      throw UsageError(usage);
  }
  if (files.size() != 2 || options.threads < 1) throw UsageError(usage);
  const Work work = run(files[0], files[1], options);
  std::printf("%lld %lld %lld\n", static_cast<long long>(work.products), static_cast<long long>(work.rows_read),
              static_cast<long long>(work.code_products));
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
