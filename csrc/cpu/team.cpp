#include "team.h"

#include <system_error>

#include "interrupt.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rsk {
namespace {

constexpr std::uint64_t kLeft = 0xffffffffu;  // of an offer, the blocks
// Looks at an offer before a thread sleeps, 50 to 150 us: longer than what lies between two parts of a query, and about
// what it takes to wake a thread.
constexpr int kLooks = 4000;
// The last blocks of a job are done by others: soon, or by a thread that waits for a processor.
constexpr int kLooksAtOthers = 1000;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

}  // namespace

Team::~Team() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_.store(true);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::start() {
  started_ = true;
  threads_.reserve(std::size_t(num_threads_ - 1));
  try {
    for (int thread = 1; thread < num_threads_; ++thread) threads_.emplace_back(&Team::work, this, thread);
  } catch (const std::system_error&) {
    // No further thread to be had: those that run share the work.
  }
}

void Team::share(std::int64_t blocks, Part* part, void* job) {
  if (num_threads_ == 1 || blocks < 2) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      if (block > 0) interrupt_point();
      part(job, block, 0);
    }
    return;
  }
  if (!started_) start();
  blocks_ = blocks;
  part_ = part;
  job_ = job;
  undone_.store(blocks, std::memory_order_relaxed);
  // Whoever falls asleep counts itself first and looks at the offer then; one of the two sees the other.
  offer_.store(((offer_.load(std::memory_order_relaxed) | kLeft) + 1) | std::uint64_t(blocks));
  if (asleep_.load() > 0) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
    }
    wake_.notify_all();
  }
  try {
    while (do_next(0)) interrupt_point();
  } catch (const Interrupted&) {
    const std::uint64_t number = offer_.load(std::memory_order_relaxed) & ~kLeft;
    undone_.fetch_sub(std::int64_t(offer_.exchange(number) & kLeft), std::memory_order_relaxed);
    wait_for_parts();
    throw;
  }
  wait_for_parts();
}

void Team::wait_for_parts() const {
  for (int look = 0; undone_.load(std::memory_order_acquire) > 0; ++look)
    look < kLooksAtOthers ? pause() : std::this_thread::yield();
}

// Takes a block and does it; false: there is none.
bool Team::do_next(int thread) {
  std::uint64_t offer = offer_.load(std::memory_order_acquire);
  do {
    if ((offer & kLeft) == 0) return false;
  } while (!offer_.compare_exchange_weak(offer, offer - 1, std::memory_order_acq_rel, std::memory_order_acquire));
  part_(job_, blocks_ - std::int64_t(offer & kLeft), thread);
  undone_.fetch_sub(1, std::memory_order_acq_rel);
  return true;
}

void Team::work(int thread) {
  for (int look = 0; !ended_.load(std::memory_order_relaxed);) {
    if (do_next(thread)) {
      look = 0;
    } else if (++look < kLooks) {
      pause();
    } else {
      std::unique_lock<std::mutex> lock(mutex_);
      asleep_.fetch_add(1);
      wake_.wait(lock, [this] { return ended_.load() || (offer_.load() & kLeft) > 0; });
      asleep_.fetch_sub(1);
      look = 0;
    }
  }
}

}  // namespace rsk
