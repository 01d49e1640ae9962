// parallel_for(numel, num_threads, body): body(begin, end) over disjoint ranges that cover [0,
// numel), on up to num_threads threads (the caller's included); returns when all are done.
//
// A thread gets at least kMinNumelPerThread elements, so small ranges stay on the caller. Inner
// boundaries are multiples of kBoundaryNumel elements, so no two threads share a cache line of
// aligned data. If the system refuses a thread, the caller does that share itself: an elementwise
// body gives the same result for every cut. body must not throw.

#pragma once

#include <algorithm>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

namespace mz {

constexpr int64_t kMinNumelPerThread = 1 << 16;
constexpr int64_t kBoundaryNumel = 1024;

template <typename Body>
void parallel_for(int64_t numel, int num_threads, const Body& body) {
  const int64_t shares =
      std::max<int64_t>(1, std::min<int64_t>(num_threads, numel / kMinNumelPerThread));
  const int64_t blocks = (numel + kBoundaryNumel - 1) / kBoundaryNumel;
  const auto boundary = [=](int64_t share) {
    return std::min(numel, blocks * share / shares * kBoundaryNumel);
  };

  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(shares - 1));
  int64_t started = 0;
  try {
    for (; started < shares - 1; ++started) {
      threads.emplace_back(
          [&body, begin = boundary(started), end = boundary(started + 1)] { body(begin, end); });
    }
  } catch (const std::system_error&) {
    // No more threads to be had; [boundary(started), numel) is left to the caller.
  }
  body(boundary(started), numel);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace mz
