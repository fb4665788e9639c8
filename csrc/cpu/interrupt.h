// Ends a call that the user has interrupted, or that nobody waits for any more. The kernels know no Python: whoever
// calls them leaves a Watch with the question, which is asked on the calling thread ten times a second, and with a
// number that another thread may set, which all threads of the call look at.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace rsk {

struct Interrupted {};

class Watch {
 public:
  // `asked` says whether the call is to end, and so does a number at `stop` other than 0. The watch holds while it
  // lives, for calls of the thread that made it.
  Watch(bool (*asked)(), const std::int32_t* stop) : asked_(asked), stop_(stop), next_(Clock::now() + kPeriod) {
    current() = {this, true};
  }
  ~Watch() { current() = {}; }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  struct Current {
    Watch* watch = nullptr;
    bool calling = false;  // the thread that may ask
  };
  static Current& current() {
    static thread_local Current current;
    return current;
  }

  void look(bool calling) {
    if (ended_.load(std::memory_order_relaxed)) throw Interrupted();
    if (stop_ && __atomic_load_n(stop_, __ATOMIC_RELAXED) != 0) throw Interrupted();
    if (!calling || Clock::now() < next_) return;
    if (asked_()) {
      ended_.store(true, std::memory_order_relaxed);
      throw Interrupted();
    }
    next_ = Clock::now() + kPeriod;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kPeriod{100};

  bool (*asked_)();
  const std::int32_t* stop_;  // none: nullptr
  Clock::time_point next_;
  std::atomic<bool> ended_{false};
};

// Throws Interrupted if the call is to end. About 30 ns: for places that are reached every few microseconds at most.
inline void interrupt_point() {
  const Watch::Current current = Watch::current();
  if (current.watch) current.watch->look(current.calling);
}

}  // namespace rsk
