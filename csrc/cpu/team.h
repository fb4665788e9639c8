// Threads that share the work of one query. It comes in thousands of parts of microseconds, between which they wait for
// the next: for a while they spin, then they sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace rsk {

class Team {
 public:
  // One block of a job, on one of the threads; it does not throw.
  using Part = void(void* job, std::int64_t block, int thread);

  // The thread that shares counts. The others start with the first job that has parts for them.
  explicit Team(int num_threads) : num_threads_(num_threads) {}
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int num_threads() const { return num_threads_; }
  // Calls part(job, block, thread) for all blocks in [0, blocks), fewer than 2^32, and returns once all are done. Which
  // thread does which block is left to chance. Throws Interrupted if the call is to end, once no part runs any more.
  void share(std::int64_t blocks, Part* part, void* job);

 private:
  void start();
  void work(int thread);
  bool do_next(int thread);
  void wait_for_parts() const;

  const int num_threads_;
  std::vector<std::thread> threads_;
  bool started_ = false;

  // Of the job that is shared: written before its blocks are offered, and read by who has taken one.
  std::int64_t blocks_ = 0;
  Part* part_ = nullptr;
  void* job_ = nullptr;

  // The number of the job and, in the lower half, how many of its blocks nobody has taken yet: to take one is to
  // replace the value, so that none is taken by the number of an earlier job.
  alignas(64) std::atomic<std::uint64_t> offer_{0};
  alignas(64) std::atomic<std::int64_t> undone_{0};  // blocks
  alignas(64) std::atomic<int> asleep_{0};
  std::atomic<bool> ended_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace rsk
