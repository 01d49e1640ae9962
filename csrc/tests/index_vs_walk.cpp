// The index builders against walks over single tokens and samples, without Python, for sanitizer
// builds. Prints one line, or throws at the first difference.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <numeric>
#include <random>
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

void check_blend(std::mt19937_64& random, int64_t num_sets) {
  std::vector<double> weights(static_cast<size_t>(num_sets));
  for (auto& weight : weights) weight = static_cast<double>(1 + random() % 1000);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (auto& weight : weights) weight /= sum;
  std::vector<int64_t> limits(weights.size());
  for (auto& limit : limits) limit = static_cast<int64_t>(random() % 50);
  const int64_t size = std::accumulate(limits.begin(), limits.end(), int64_t{0});

  std::vector<int16_t> dataset(static_cast<size_t>(size));
  std::vector<int64_t> sample(static_cast<size_t>(size));
  build_blend_index(weights.data(), limits.data(), num_sets, size, dataset.data(), sample.data());
  std::vector<int64_t> given(limits.size(), 0);
  for (size_t i = 0; i < dataset.size(); ++i) {
    MZ_CHECK(sample[i] == given[static_cast<size_t>(dataset[i])]++, "blend entry ",
             static_cast<int64_t>(i), ": samples of a set are not in order");
  }
  MZ_CHECK(given == limits, "a blend of ", num_sets, " sets does not use up every set");
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
  for (int64_t sets : {1, 2, 7, 100}) mz::check_blend(random, sets);
  std::cout << "index builders equal their walks\n";
}
