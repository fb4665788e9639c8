// Each query by itself, in arrays of its items; the rules are those of ragsys_kernels/selection/rules. The loops over
// items are plain: what bounds them is reading the rows of the matrix.
#include "selection/given.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "parallel.h"

namespace rsk {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// The memory of a thread.
struct State {
  std::vector<float> remembered, nearest, value;  // what the rule keeps; the largest similarity to a pick
  std::vector<float> eligible;                    // 1 or 0
  std::vector<std::uint8_t> open;
  std::vector<std::int64_t> items;
  std::vector<std::int64_t> picks;
  std::vector<double> left, first, factor;  // DPP: d, what it was, and the columns of the factor
  // Coverage: the share of each item as an aspect, 0 for what may not be picked; the power of its cover; and
  // how many picks its value knows.
  std::vector<float> share, power;
  std::vector<std::int64_t> renewed;
  // With minima: of each item the place of its group among Quotas::numbers, -1 where it has none, and whether it is
  // held back; of each of `numbers` how many picks it lacks, and of how many a step has found an item.
  std::vector<std::int64_t> quota, lacks, found;
  std::vector<std::uint8_t> held;
};

// Sums in the order of one vector, so that equal rows have equal sums.
constexpr std::int64_t kLanes = 16;

// A similarity counts from 0 to `largest`, which is finite; NaN is 0.
inline float counted(float similarity, float largest) {
  const float positive = similarity > 0.0f ? similarity : 0.0f;
  return positive < largest ? positive : largest;
}

// The sum over aspects of share times what `added` makes of a similarity and an aspect. A sum falls where no term of it
// grows, in floats too.
template <class Added>
float sum_of_gains(const float* row, const float* share, std::int64_t n, float largest, const Added& added) {
  float sums[kLanes] = {};
  std::int64_t a = 0;
  const auto term = [&](std::int64_t at) { return share[at] * added(counted(row[at], largest), at); };
  for (; a + kLanes <= n; a += kLanes)
    for (std::int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += term(a + lane);
  for (std::int64_t lane = 0; a + lane < n; ++lane) sums[lane] += term(a + lane);
  float sum = 0.0f;
  for (const float each : sums) sum += each;
  return sum;
}

struct Query {
  const GivenArgs& a;
  State& s;
  std::int64_t q, n;
  std::int64_t met = 0, columns = 0;  // picks and initial items; of them, those with a column
  double spent = 0;
  bool sound = true;
  std::uint8_t status = 0;

  float v(std::int64_t i) const { return a.values[q * n + i]; }
  const float* row(std::int64_t j) const { return a.similarity + (q * n + j) * n; }
  bool covers() const { return a.rule >= Method::facility; }

  void start() {
    const bool dpp = a.rule == Method::dpp;
    s.open.assign(std::size_t(n), 1);
    s.eligible.assign(std::size_t(n), 1.0f);
    s.value.resize(std::size_t(n));
    const float none = a.rule == Method::mmr ? kNever : a.rule == Method::xquad ? 1.0f : 0.0f;
    s.remembered.assign(std::size_t(n), none);
    s.nearest.assign(a.limits.max_similarity ? std::size_t(n) : 0, kNever);
    s.picks.clear();
    for (std::int64_t i = 0; a.open && i < n; ++i) {
      s.open[std::size_t(i)] = a.open[q * n + i];
      s.eligible[std::size_t(i)] = a.open[q * n + i] ? 1.0f : 0.0f;
    }
    s.left.resize(dpp ? std::size_t(n) : 0);
    s.first.resize(s.left.size());
    s.factor.resize(s.left.size() * std::size_t(a.limits.num_initial + a.k));
    int odd = 0;
    for (std::int64_t i = 0; dpp && i < n; ++i) {
      const double weight = a.weights[q * n + i];
      const float own = row(i)[i];
      s.left[std::size_t(i)] = s.first[std::size_t(i)] = weight * weight * own;
      odd |= int(!(own >= 0.0f)) | int(!(own <= std::numeric_limits<float>::max()));
    }
    if (odd) check_diagonal();
    if (dpp) compare_pairs();
    if (covers()) start_cover();
  }

  // The aspects are the items that may be picked, but for the initial ones.
  void start_cover() {
    s.share.assign(s.eligible.begin(), s.eligible.end());
    for (std::int64_t i = 0; i < a.limits.num_initial; ++i)
      if (const std::int64_t j = a.initial(q * a.limits.num_initial + i); j >= 0) s.share[std::size_t(j)] = 0.0f;
    const auto count = std::count(s.share.begin(), s.share.end(), 1.0f);
    if (a.rule != Method::cover && count > 1)
      for (float& share : s.share) share /= float(count);
    s.power.assign(std::size_t(n), 0.0f);
    s.renewed.assign(std::size_t(n), -1);
  }

  // What is not finite in a row that is read counts where an item may be picked.
  void check(const float* row) {
    const float* const eligible = s.eligible.data();
    float odd = 0.0f;
    for (std::int64_t i = 0; i < n; ++i) odd += eligible[i] != 0.0f ? row[i] - row[i] : 0.0f;
    if (!(odd == 0.0f)) status = 1;
  }

  // Counts item j as picked. Its row is read.
  void take(std::int64_t j, bool initial) {
    const float* const row = this->row(j);
    check(row);
    float* const remembered = s.remembered.data();
    if (a.rule == Method::mmr)
      for (std::int64_t i = 0; i < n; ++i) remembered[i] = row[i] > remembered[i] ? row[i] : remembered[i];
    if (a.rule == Method::msd)
      for (std::int64_t i = 0; i < n; ++i) remembered[i] += row[i];
    if (a.rule == Method::dpp) add_to_window(j, row);
    if (covers()) cover(row);
    for (std::int64_t i = 0; a.limits.max_similarity && i < n; ++i) {
      float& nearest = s.nearest[std::size_t(i)];
      nearest = row[i] > nearest ? row[i] : nearest;
    }
    ++met;
    s.open[std::size_t(j)] = 0;
    if (a.limits.costs && !initial) spent += a.limits.costs[q * n + j];
    s.picks.push_back(j);
    if (a.limits.max_per_group) cap_group(a.limits.groups, j, a.limits.max_per_group);
    const Quotas& quotas = a.limits.quotas;
    for (std::int64_t level = 0; level < quotas.num_levels; ++level) {
      const std::int64_t* const groups = quotas.of_level(level);
      cap_group(groups, j, quotas.cap(level, groups[q * n + j]));
    }
    if (const std::int64_t place = quotas.minima ? s.quota[std::size_t(j)] : -1; place >= 0)
      --s.lacks[std::size_t(place)];
  }

  // Bars the groups with a cap of 0, and finds what groups lack before the first pick.
  void start_quotas() {
    const Quotas& quotas = a.limits.quotas;
    for (std::int64_t level = 0; level < quotas.num_levels; ++level)
      for (std::int64_t i = 0; i < n; ++i)
        if (quotas.cap(level, quotas.of_level(level)[q * n + i]) == 0) s.open[std::size_t(i)] = 0;
    s.held.assign(quotas.minima ? std::size_t(n) : 0, 0);
    if (!quotas.minima) return;
    s.lacks.assign(quotas.minima, quotas.minima + quotas.size());
    s.found.assign(s.lacks.size(), 0);
    s.quota.resize(std::size_t(n));
    for (std::int64_t i = 0; i < n; ++i) s.quota[std::size_t(i)] = quotas.find(0, quotas.groups[q * n + i]);
  }

  // Where groups lack as many picks as are left, or more, holds back the items of all others. A group lacks no more
  // than it has items that may be picked.
  void hold_back(std::int64_t left) {
    std::fill(s.held.begin(), s.held.end(), std::uint8_t(0));
    std::int64_t lacking = 0;
    for (std::size_t i = 0; i < s.held.size(); ++i) {
      if (s.quota[i] < 0 || !may(std::int64_t(i)) || (a.rule == Method::dpp && !is_left(i))) continue;
      const std::size_t place = std::size_t(s.quota[i]);
      lacking += s.found[place]++ < s.lacks[place];
    }
    std::fill(s.found.begin(), s.found.end(), 0);
    for (std::size_t i = 0; i < s.held.size() && lacking >= left; ++i)
      s.held[i] = s.quota[i] < 0 || s.lacks[std::size_t(s.quota[i])] <= 0;
  }

  // DPP: whether something is left of an item.
  bool is_left(std::size_t i) const { return s.left[i] > a.least_left * s.first[i]; }

  bool unequal(float one, float other, double own) const {
    const double difference = double(one) - other;
    return difference * difference > a.unequal * a.unequal * std::fabs(own);
  }

  void check_diagonal() {
    for (std::int64_t i = 0; i < n; ++i) {
      if (s.eligible[std::size_t(i)] == 0.0f) continue;
      if (!std::isfinite(row(i)[i])) status = 1;
      if (row(i)[i] < 0.0f && !status) status = 3;
    }
  }

  // Pairs of items that may be picked, as definite.py has them.
  void compare_pairs() {
    const bool all = !a.open && a.limits.num_initial == 0;
    s.items.clear();
    for (std::int64_t i = 0; i < a.limits.num_initial; ++i)
      if (const std::int64_t j = a.initial(q * a.limits.num_initial + i); j >= 0) s.open[std::size_t(j)] = 0;
    for (std::int64_t i = 0; !all && i < n; ++i)
      if (s.open[std::size_t(i)]) s.items.push_back(i);
    const std::int64_t last = (all ? n : std::int64_t(s.items.size())) - 1;
    const std::int64_t step = std::max<std::int64_t>(1, (last + a.pairs - 1) / a.pairs);
    for (std::int64_t at = 0; at < last; at += step) {
      const std::int64_t i = all ? at : s.items[std::size_t(at)], j = all ? at + 1 : s.items[std::size_t(at + 1)];
      const float one = row(i)[j], other = row(j)[i];
      const double own = double(row(i)[i]) * row(j)[j];
      if (unequal(one, other, own)) status = 2;
      if (double(one) * other > (1.0 + a.negative) * own) status = 3;
    }
  }

  // When an item leaves the window, the columns of those that stay are made anew.
  void add_to_window(std::int64_t j, const float* row) {
    const auto taken = std::int64_t(s.picks.size());
    if (a.window && taken >= a.window) {
      look_at_determinants();
      s.left = s.first;
      columns = 0;
      for (std::int64_t p = taken + 1 - a.window; p < taken; ++p) {
        const std::int64_t pick = s.picks[std::size_t(p)];
        add_column(pick, this->row(pick));
      }
    }
    add_column(j, row);
  }

  void add_column(std::int64_t j, const float* row) {
    const std::size_t at = std::size_t(j), width = std::size_t(n);
    if (!(s.left[at] > a.least_left * s.first[at])) return;  // an initial item that those before it span
    const float* const weights = a.weights + q * n;
    double* const column = s.factor.data() + std::size_t(columns) * width;
    const double own = weights[j], root = std::sqrt(s.left[at]);
    for (std::size_t i = 0; i < width; ++i) column[i] = double(weights[i]) * row[i] * own;
    for (std::int64_t c = 0; c < columns; ++c) {
      const double* const before = s.factor.data() + std::size_t(c) * width;
      const double share = before[at];
      for (std::size_t i = 0; i < width; ++i) column[i] -= before[i] * share;
    }
    if (s.left[at] < a.sound * s.first[at]) look_at_determinants();
    for (std::size_t i = 0; i < width; ++i) {
      column[i] /= root;
      s.left[i] -= column[i] * column[i];
    }
    ++columns;
  }

  // Compares the similarities of the items that were taken with those of the first one to them.
  void compare_taken() {
    std::int64_t leader = -1;
    const auto compare = [&](std::int64_t j) {
      if (leader < 0) leader = j;
      const float* const first = row(leader);
      if (!status && unequal(first[j], row(j)[leader], double(first[leader]) * row(j)[j])) status = 2;
    };
    for (std::int64_t i = 0; i < a.limits.num_initial; ++i)
      if (const std::int64_t j = a.initial(q * a.limits.num_initial + i); j >= 0) compare(j);
    for (std::int64_t slot = 0; slot < a.lengths[q]; ++slot) compare(a.indices[q * a.k + slot]);
  }

  // Whether an item that may be picked has a negative determinant, while all picks were sound. It only falls: one look
  // after the last of these picks shows it.
  void look_at_determinants() {
    if (!sound) return;
    sound = false;
    for (std::int64_t i = 0; i < n && !status; ++i)
      if (s.left[std::size_t(i)] + a.negative * s.first[std::size_t(i)] < 0.0 && s.eligible[std::size_t(i)] != 0.0f)
        status = 3;
  }

  // A pick with these similarities covers the aspects.
  void cover(const float* row) {
    float *const covered = s.remembered.data(), *const power = s.power.data();
    for (std::int64_t i = 0; i < n; ++i) {
      if (s.share[std::size_t(i)] == 0.0f) continue;
      const float similarity = counted(row[i], a.largest), before = covered[i];
      if (a.rule == Method::facility)
        covered[i] = similarity > before ? similarity : before;
      else if (a.rule == Method::xquad)
        covered[i] = before * (1.0f - similarity);
      else
        covered[i] = before + similarity;
    }
    for (std::int64_t i = 0; a.rule == Method::cover && i < n; ++i)
      power[i] = a.gamma == 0.5f ? std::sqrt(covered[i]) : std::pow(covered[i], a.gamma);
  }

  // What an item adds to the cover of the aspects, in one pass over its row.
  float gain(std::int64_t i) const {
    const float *const covered = s.remembered.data(), *const power = s.power.data();
    const auto sum = [&](const auto& added) { return sum_of_gains(row(i), s.share.data(), n, a.largest, added); };
    if (a.rule == Method::facility)
      return sum([=](float x, std::int64_t at) { return std::max(x - covered[at], 0.0f); });
    if (a.rule == Method::xquad) return sum([=](float x, std::int64_t at) { return x * covered[at]; });
    // sqrt(A + S) - sqrt(A) without the difference, which would cancel.
    if (a.gamma == 0.5f)
      return sum([=](float x, std::int64_t at) {
        return x / std::max(std::sqrt(covered[at] + x) + power[at], std::numeric_limits<float>::min());
      });
    return sum([=, gamma = a.gamma](float x, std::int64_t at) {
      return x > 0.0f ? std::pow(covered[at] + x, gamma) - power[at] : 0.0f;
    });
  }

  void renew(std::int64_t i) {
    const std::size_t at = std::size_t(i);
    if (s.renewed[at] < 0) check(row(i));
    s.value[at] = a.lambda_d[q] * v(i) + (1.0f - a.lambda_d[q]) * gain(i);
    s.renewed[at] = met;
  }

  // The first item of the largest value: what an item adds only falls, so that an old value is an upper bound and is
  // renewed only while it is the largest. Other powers than the root may grow by rounding: all are renewed.
  std::int64_t choose_cover(float* best) {
    const bool falls = a.rule != Method::cover || a.gamma == 0.5f;
    for (std::int64_t i = 0; i < n; ++i)
      if ((!falls || s.renewed[std::size_t(i)] < 0) && s.open[std::size_t(i)]) renew(i);
    for (;;) {
      const std::int64_t top = largest_value(best);
      if (top < 0 || s.renewed[std::size_t(top)] == met) return top;
      renew(top);
    }
  }

  // Bars the group of item j, of those of all queries, once it has reached its cap.
  void cap_group(const std::int64_t* of_all, std::int64_t j, std::int64_t cap) {
    const std::int64_t* const groups = of_all + q * n;
    std::int64_t count = 0;
    for (const std::int64_t pick : s.picks) count += groups[pick] == groups[j];
    if (count < cap) return;
    for (std::int64_t i = 0; i < n; ++i)
      if (groups[i] == groups[j]) s.open[std::size_t(i)] = 0;
  }

  bool may(std::int64_t i) const {
    const std::size_t at = std::size_t(i);
    if (!s.open[at] || (a.limits.quotas.minima && s.held[at])) return false;
    if (a.limits.costs && !(spent + a.limits.costs[q * n + i] <= a.limits.budget[q])) return false;
    return !a.limits.max_similarity || s.nearest[at] <= a.limits.max_similarity[q];
  }

  // The first item of the largest value, -1 if none may be picked.
  std::int64_t choose(float* best) {
    const float weight = a.lambda_d[q], rest = 1.0f - weight;
    const float* const remembered = s.remembered.data();
    float* const value = s.value.data();
    const float* const values = a.values + q * n;
    if (a.rule == Method::dpp) return largest_left(best);
    if (met == 0)
      for (std::int64_t i = 0; i < n; ++i) value[i] = values[i];
    else if (a.rule == Method::mmr)
      for (std::int64_t i = 0; i < n; ++i) value[i] = weight * values[i] - rest * remembered[i];
    else
      for (std::int64_t i = 0; i < n; ++i) value[i] = weight * values[i] + rest * (a.one * float(met) - remembered[i]);
    return largest_value(best);
  }

  std::int64_t largest_value(float* best) const {
    std::int64_t found = -1;
    *best = kNever;
    for (std::int64_t i = 0; i < n; ++i)
      if (s.value[std::size_t(i)] > *best && may(i)) {
        found = i;
        *best = s.value[std::size_t(i)];
      }
    return found;
  }

  std::int64_t largest_left(float* best) const {
    const double* const left = s.left.data();
    std::int64_t found = -1;
    *best = kNever;
    for (std::int64_t i = 0; i < n; ++i)
      if (float(left[i]) > *best && is_left(std::size_t(i)) && may(i)) {
        found = i;
        *best = float(left[i]);
      }
    return found;
  }

  float redundancy(std::int64_t i) const {
    const std::size_t at = std::size_t(i);
    if (a.rule == Method::mmr) return met ? s.remembered[at] : 0.0f;
    if (a.rule == Method::msd) return met ? s.remembered[at] / float(met) : 0.0f;
    if (!a.limits.max_similarity) return std::numeric_limits<float>::quiet_NaN();
    return met ? s.nearest[at] : 0.0f;
  }

  void run() {
    start();
    for (std::int64_t slot = 0; slot < a.k; ++slot) {
      const std::int64_t out = q * a.k + slot;
      a.indices[out] = -1;
      a.scores[out] = kNever;
      a.relevance[out] = a.redundancy[out] = std::numeric_limits<float>::quiet_NaN();
    }
    a.lengths[q] = 0;
    start_quotas();
    for (std::int64_t i = 0; i < a.limits.num_initial; ++i)
      if (const std::int64_t j = a.initial(q * a.limits.num_initial + i); j >= 0) take(j, true);
    const std::int64_t wanted = a.ks ? a.ks[q] : a.k;
    for (std::int64_t slot = 0; slot < wanted && !status; ++slot) {
      float best;
      if (a.limits.quotas.minima) hold_back(wanted - slot);
      const std::int64_t i = covers() ? choose_cover(&best) : choose(&best), out = q * a.k + slot;
      if (i < 0 || status) break;
      a.indices[out] = i;
      a.scores[out] = met == 0 && a.rule <= Method::msd ? a.lambda_d[q] * best : best;
      a.relevance[out] = v(i);
      a.redundancy[out] = redundancy(i);
      a.lengths[q] = std::int32_t(slot + 1);
      take(i, false);
    }
    if (a.rule == Method::dpp) {
      compare_taken();
      look_at_determinants();
    }
    a.status[q] = status;
  }
};

}  // namespace

void select_given(const GivenArgs& args, int num_threads) {
  const double rows = args.rule < Method::facility ? double(args.k) : double(args.k + args.pool);
  const double work = double(args.num_queries) * double(args.pool) * rows;
  const int threads = worthwhile_threads(4 * work, args.num_queries, num_threads);
  std::vector<State> states(static_cast<std::size_t>(threads));
  parallel_for(args.num_queries, 4, threads,
               [&](std::int64_t q, int thread) { Query{args, states[std::size_t(thread)], q, args.pool}.run(); });
}

}  // namespace rsk
