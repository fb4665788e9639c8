// parallel_for over independent items: std::thread per call, so that nothing outlives the call (a forked child has
// no lost pool) and no setting of the process changes.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "interrupt.h"

namespace rsk {

// Calls f(item, thread) for every item in [0, items), `grain` consecutive items at a time. The calling thread works
// too. The first exception is rethrown once all threads have ended; an interrupt is one.
template <class F>
void parallel_for(std::int64_t items, std::int64_t grain, int num_threads, const F& f) {
  std::atomic<std::int64_t> next{0};
  std::exception_ptr error;
  std::mutex error_mutex;
  Watch* const watch = Watch::current().watch;
  const auto work = [&](int thread) {
    try {
      if (thread > 0) Watch::current().watch = watch;
      for (;;) {
        interrupt_point();
        const std::int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= items) return;
        const std::int64_t end = std::min(items, begin + grain);
        for (std::int64_t item = begin; item < end; ++item) f(item, thread);
      }
    } catch (...) {
      next.store(items, std::memory_order_relaxed);
      const std::lock_guard<std::mutex> lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(std::size_t(std::max(0, num_threads - 1)));
  try {
    for (int thread = 1; thread < num_threads; ++thread) threads.emplace_back(work, thread);
  } catch (const std::system_error&) {
    // No further thread to be had: those that run share the work.
  }
  work(0);
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

// How many threads a call gets that has so much work in so many items. Spawning and joining one costs about 25 us;
// below this many multiply-adds, or `serial` of another kind of work, a call stays on its own thread.
constexpr double kSerialProducts = 4e6;
inline int worthwhile_threads(double work, std::int64_t items, int num_threads, double serial = kSerialProducts) {
  if (work < serial) return 1;
  return int(std::min<std::int64_t>(num_threads, std::max<std::int64_t>(items, 1)));
}

}  // namespace rsk
