// run_parts(parts, body): body(0) to body(parts - 1), each once, on a thread of its own, the last on
// the caller; returns when all are done. If the system refuses a thread, the caller does its part and
// all after it. body must not throw.
//
// parallel_for(numel, num_threads, body): body(begin, end) over disjoint ranges that cover [0,
// numel), on up to num_threads threads (the caller's included). A thread gets at least
// kMinNumelPerThread elements, so small ranges stay on the caller. Inner boundaries are multiples of
// kBoundaryNumel elements, so no two threads share a cache line of aligned data.

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
void run_parts(int64_t parts, const Body& body) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(std::max<int64_t>(0, parts - 1)));
  int64_t started = 0;
  try {
    for (; started < parts - 1; ++started) {
      threads.emplace_back([&body, part = started] { body(part); });
    }
  } catch (const std::system_error&) {
    // No more threads to be had: parts from `started` on are left to the caller.
  }
  for (int64_t part = started; part < parts; ++part) body(part);
  for (std::thread& thread : threads) thread.join();
}

template <typename Body>
void parallel_for(int64_t numel, int num_threads, const Body& body) {
  const int64_t shares =
      std::max<int64_t>(1, std::min<int64_t>(num_threads, numel / kMinNumelPerThread));
  const int64_t blocks = (numel + kBoundaryNumel - 1) / kBoundaryNumel;
  const auto boundary = [=](int64_t share) {
    return std::min(numel, blocks * share / shares * kBoundaryNumel);
  };
  run_parts(shares, [&](int64_t share) { body(boundary(share), boundary(share + 1)); });
}

}  // namespace mz
