// The index builders against walks over single tokens and samples, without Python, for sanitizer
// builds. Prints one line, or throws at the first difference.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <limits>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "common/check.h"
#include "dataset/index_builders.h"

namespace mz {
namespace {

template <typename Id, typename Out>
void check_sample_index(std::mt19937_64& random, int64_t num_sequences, int64_t num_documents,
                        int64_t seq_length) {
  // One byte in front: lengths have no alignment in a mapped .idx.
  std::vector<unsigned char> block(static_cast<size_t>(1 + 4 * num_sequences));
  std::vector<int32_t> lengths(static_cast<size_t>(num_sequences));
  for (auto& length : lengths) length = static_cast<int32_t>(random() % 40);
  std::memcpy(block.data() + 1, lengths.data(), lengths.size() * 4);
  std::vector<Id> documents(static_cast<size_t>(num_documents));
  for (auto& id : documents) {
    id = static_cast<Id>(random() % static_cast<uint64_t>(num_sequences));
  }

  std::vector<Out> wanted;
  int64_t token = 0;
  for (size_t i = 0; i < documents.size(); ++i) {
    for (int32_t offset = 0; offset < lengths[static_cast<size_t>(documents[i])]; ++offset) {
      if (token++ % seq_length == 0) {
        wanted.push_back(static_cast<Out>(i));
        wanted.push_back(static_cast<Out>(offset));
      }
    }
  }
  const auto rows = static_cast<int64_t>(wanted.size() / 2);
  for (int num_threads : {1, 2, 3, 8}) {
    std::vector<Out> found(wanted.size());  // exactly as large as it must be: an overrun is seen
    build_sample_index(block.data() + 1, num_sequences, documents.data(), num_documents, seq_length,
                       found.data(), rows, num_threads);
    MZ_CHECK(found == wanted, "sample index of ", num_documents, " documents, sequence length ",
             seq_length, ", ", num_threads, " threads");

    std::vector<Out> first(2 * static_cast<size_t>(rows / 2));
    build_sample_index(block.data() + 1, num_sequences, documents.data(), num_documents, seq_length,
                       first.data(), rows / 2, num_threads);
    MZ_CHECK(std::equal(first.begin(), first.end(), wanted.begin()), "the first rows only");

    std::vector<Out> more(found.size() + 2);
    bool refused = false;
    try {
      build_sample_index(block.data() + 1, num_sequences, documents.data(), num_documents,
                         seq_length, more.data(), rows + 1, num_threads);
    } catch (const CheckError&) {
      refused = true;
    }
    MZ_CHECK(refused, "a stream that ends too early was not refused");
  }
}

// std::mt19937 is the generator of numpy's RandomState; the draws below are those of its shuffle.
template <typename Item>
void check_shuffle(uint32_t seed, int64_t numel) {
  std::mt19937 reference(seed);
  std::vector<uint32_t> key(624);
  key[0] = seed;
  for (uint32_t i = 1; i < 624; ++i) {
    key[i] = 1812433253u * (key[i - 1] ^ (key[i - 1] >> 30)) + i;
  }
  MersenneTwister random{key.data(), 624};

  std::vector<Item> found(static_cast<size_t>(numel)), wanted(static_cast<size_t>(numel));
  for (int round = 0; round < 3; ++round) {
    std::iota(found.begin(), found.end(), Item{0});
    std::iota(wanted.begin(), wanted.end(), Item{0});
    for (int64_t last = numel - 1; last >= 1; --last) {
      uint64_t mask = 1;
      while (mask < static_cast<uint64_t>(last)) mask = 2 * mask + 1;
      uint64_t place = reference() & mask;
      while (place > static_cast<uint64_t>(last)) place = reference() & mask;
      std::swap(wanted[static_cast<size_t>(last)], wanted[static_cast<size_t>(place)]);
    }
    shuffle(found.data(), numel, random);
    MZ_CHECK(found == wanted, "shuffle of ", numel, " items, round ", round);
  }
}

struct Blend {
  std::vector<int16_t> dataset;
  std::vector<int64_t> sample;
  bool operator==(const Blend& other) const {
    return dataset == other.dataset && sample == other.sample;
  }
};

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// An entry at a time, as data/blend.py says it: the set that lags most, the first one on ties, of
// those that have any left. Each product and difference is rounded by itself.
Blend walk_blend(const std::vector<double>& weights, const std::vector<int64_t>& limits,
                 int64_t size) {
  Blend walked;
  std::vector<int64_t> given(weights.size(), 0);
  for (int64_t entry = 0; entry < size; ++entry) {
    std::vector<size_t> open;
    for (size_t set = 0; set < weights.size(); ++set) {
      if (given[set] < limits[set]) open.push_back(set);
    }
    const double position = entry == 0 ? 1.0 : static_cast<double>(entry);
    const auto lag = [&](size_t set) {
      const double share = weights[set] * position;
      return share - static_cast<double>(given[set]);
    };
    // max_element gives the first one of equals.
    const size_t chosen = *std::max_element(
        open.begin(), open.end(), [&](size_t one, size_t other) { return lag(one) < lag(other); });
    walked.dataset.push_back(static_cast<int16_t>(chosen));
    walked.sample.push_back(given[chosen]++);
  }
  return walked;
}

Blend built_blend(const std::vector<double>& weights, const std::vector<int64_t>& limits,
                  int64_t size) {
  // Exactly as large as it must be: an overrun is seen.
  Blend built{std::vector<int16_t>(static_cast<size_t>(size)),
              std::vector<int64_t>(static_cast<size_t>(size))};
  build_blend_index(weights.data(), limits.data(), static_cast<int64_t>(weights.size()), size,
                    built.dataset.data(), built.sample.data());
  return built;
}

int64_t sum_of(const std::vector<int64_t>& limits) {
  return std::accumulate(limits.begin(), limits.end(), int64_t{0});
}

std::vector<double> shares_of(std::vector<double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (auto& weight : weights) weight /= sum;
  return weights;
}

// most: the largest weight drawn; 1 makes all of them equal, so that every entry is decided by ties.
void check_blend(std::mt19937_64& random, int64_t num_sets, uint64_t most) {
  std::vector<double> weights(static_cast<size_t>(num_sets));
  for (auto& weight : weights) weight = static_cast<double>(1 + random() % most);
  weights = shares_of(weights);
  const auto check = [&](const std::vector<int64_t>& limits, int64_t size, const char* what) {
    MZ_CHECK(built_blend(weights, limits, size) == walk_blend(weights, limits, size), "blend of ",
             num_sets, " sets, ", size, " entries, ", what);
  };

  check(std::vector<int64_t>(weights.size(), kNoLimit), 3000, "no limits");

  std::vector<int64_t> limits(weights.size());
  for (auto& limit : limits) limit = static_cast<int64_t>(random() % 50);  // some are 0
  limits.front() += 1;
  const int64_t all = sum_of(limits);
  check(limits, all, "every set used up");
  check(limits, all / 2, "limits, half of the samples");
  check(limits, 0, "nothing asked for");
  check(limits, std::min(all, *std::max_element(limits.begin(), limits.end()) + 1), "all limited");

  std::vector<int64_t> some(weights.size(), kNoLimit);
  some[static_cast<size_t>(random() % static_cast<uint64_t>(num_sets))] = 3;
  if (num_sets > 1) check(some, 500, "one set limited");

  bool refused = false;
  try {
    built_blend(weights, limits, all + 1);
  } catch (const CheckError&) {
    refused = true;
  }
  MZ_CHECK(refused, "a blend of more samples than the sets hold was not refused");
}

// The contract: builds may run at once on disjoint outputs. All inputs are shared, so that
// ThreadSanitizer sees a write to any of them, and to anything the builders would share.
void check_builds_at_once(std::mt19937_64& random) {
  const std::vector<double> weights = shares_of({3.0, 1.0, 2.0, 5.0, 1.0});
  const std::vector<int64_t> limits = {4000, 100, 3000, 100, 3000};
  const int64_t size = sum_of(limits);
  std::vector<int32_t> lengths(1000);
  for (auto& length : lengths) length = static_cast<int32_t>(1 + random() % 40);
  std::vector<int32_t> documents(20000);
  for (auto& id : documents) id = static_cast<int32_t>(random() % lengths.size());
  const int64_t seq_length = 17;
  int64_t tokens = 0;
  for (int32_t id : documents) tokens += lengths[static_cast<size_t>(id)];
  const int64_t rows = (tokens - 1) / seq_length + 1;
  std::vector<uint32_t> key(624);
  std::iota(key.begin(), key.end(), 1u);

  struct Result {
    Blend blend;
    std::vector<int32_t> rows;
    std::vector<uint32_t> order;
  };
  const auto build = [&](int num_threads) {
    Result result;
    result.blend = built_blend(weights, limits, size);
    result.rows.resize(static_cast<size_t>(2 * rows));
    build_sample_index(reinterpret_cast<const unsigned char*>(lengths.data()),
                       static_cast<int64_t>(lengths.size()), documents.data(),
                       static_cast<int64_t>(documents.size()), seq_length, result.rows.data(),
                       rows, num_threads);
    std::vector<uint32_t> own_key = key;
    MersenneTwister generator{own_key.data(), 624};
    result.order.resize(20000);
    std::iota(result.order.begin(), result.order.end(), 0u);
    shuffle(result.order.data(), static_cast<int64_t>(result.order.size()), generator);
    return result;
  };

  const Result alone = build(1);
  std::vector<Result> together(2);
  std::atomic<int> waiting{2};
  std::vector<std::thread> threads;
  for (auto& result : together) {
    threads.emplace_back([&] {
      // Both have started before either builds. Relaxed: it must not order the builds for tsan.
      waiting.fetch_sub(1, std::memory_order_relaxed);
      while (waiting.load(std::memory_order_relaxed) > 0) std::this_thread::yield();
      result = build(2);
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& result : together) {
    MZ_CHECK(result.blend == alone.blend && result.rows == alone.rows &&
                 result.order == alone.order,
             "two builds at once differ from one alone");
  }
}

}  // namespace
}  // namespace mz

namespace mz {
namespace {

// An id that names no sequence is refused wherever it stands, also where it is only fetched ahead.
void check_bad_ids() {
  const std::vector<int32_t> lengths(10, 3);
  const auto* block = reinterpret_cast<const unsigned char*>(lengths.data());
  for (int64_t bad : {int64_t{-1}, int64_t{10}, int64_t{1} << 62}) {
    for (size_t place : {0, 127, 128, 129, 299}) {
      for (int num_threads : {1, 4}) {
        std::vector<int64_t> documents(300, 1), out(2 * 300);
        documents[place] = bad;
        bool refused = false;
        try {
          build_sample_index(block, 10, documents.data(), 300, 3, out.data(), 300, num_threads);
        } catch (const CheckError&) {
          refused = true;
        }
        MZ_CHECK(refused, "id ", bad, " at place ", static_cast<int64_t>(place),
                 " was not refused");
      }
    }
  }
}

}  // namespace
}  // namespace mz

int main() {
  mz::check_bad_ids();
  std::mt19937_64 random(7);
  for (int64_t documents : {1, 2, 127, 128, 129, 130, 1000}) {
    for (int64_t seq_length : {1, 3, 17, 500}) {
      mz::check_sample_index<int32_t, int32_t>(random, 50, documents, seq_length);
      mz::check_sample_index<int32_t, int64_t>(random, 50, documents, seq_length);
      mz::check_sample_index<int64_t, int32_t>(random, 50, documents, seq_length);
      mz::check_sample_index<int64_t, int64_t>(random, 50, documents, seq_length);
    }
  }
  for (int64_t numel : {0, 1, 2, 3, 256, 257, 258, 1000, 70000}) {
    mz::check_shuffle<uint32_t>(static_cast<uint32_t>(numel) + 5, numel);
    mz::check_shuffle<uint64_t>(static_cast<uint32_t>(numel) + 6, numel);
  }
  for (int64_t sets : {1, 2, 7, 100}) {
    for (uint64_t most : {1, 3, 1000}) mz::check_blend(random, sets, most);
  }
  mz::check_builds_at_once(random);
  std::cout << "index builders equal their walks\n";
}
