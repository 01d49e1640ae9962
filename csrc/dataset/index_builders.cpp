#include "dataset/index_builders.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <vector>

#include "common/check.h"
#include "common/parallel_for.h"

namespace mz {
namespace {

// Lengths are met in shuffled order, so nearly each is a cache miss. Asking for them this far ahead
// keeps all the memory's channels busy across mispredicted branches; 64 is too few on some machines,
// 256 no better on any.
constexpr int64_t kPrefetchDistance = 128;

int32_t load_length(const unsigned char* lengths, int64_t index) {
  int32_t length;
  std::memcpy(&length, lengths + index * static_cast<int64_t>(sizeof(length)), sizeof(length));
  return length;
}

// The token stream: sequence documents[i] of lengths[] after sequence documents[i - 1].
template <typename Id>
struct Stream {
  const unsigned char* lengths;
  int64_t num_sequences;
  const Id* documents;
  int64_t num_documents;

  // Where the length of document i stands, to be fetched ahead. The id is not checked yet, so it is an
  // address and not a place: fetching from a wrong one does nothing. (The fetch itself stays in the
  // loops: g++ takes a function that does nothing else for one without effect, and drops its calls.)
  const void* address(int64_t i) const {
    const auto id = static_cast<uint64_t>(documents[std::min(i, num_documents - 1)]);
    return reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(lengths) +
                                         static_cast<uintptr_t>(id * 4));
  }

  int64_t length(int64_t i) const {
    const int64_t id = documents[i];
    MZ_CHECK(id >= 0 && id < num_sequences, "document index entry ", i, " is ", id, "; there are ",
             num_sequences, " sequences");
    const int64_t found = load_length(lengths, id);
    MZ_CHECK(found >= 0, "sequence ", id, " has length ", found);
    return found;
  }

  int64_t num_tokens(int64_t begin, int64_t end) const {
    int64_t sum = 0;
    for (int64_t i = begin; i < end; ++i) {
      __builtin_prefetch(address(i + kPrefetchDistance));
      sum += length(i);
    }
    return sum;
  }
};

// Writes rows [row, end_row) as far as they begin in documents [begin, end); the first of them lies
// `ahead` tokens behind the start of document `begin`. Returns the row that would be next.
template <typename Id, typename Out>
int64_t write_rows(const Stream<Id>& stream, int64_t begin, int64_t end, int64_t seq_length,
                   int64_t row, int64_t ahead, int64_t end_row, Out* out) {
  for (int64_t i = begin; i < end && row < end_row; ++i) {
    __builtin_prefetch(stream.address(i + kPrefetchDistance));
    const int64_t length = stream.length(i);
    // Written whether or not a row begins here: a store is cheaper than a branch nobody can
    // predict. It is within bounds because row < end_row, and overwritten if row stays.
    out[2 * row] = static_cast<Out>(i);
    out[2 * row + 1] = static_cast<Out>(ahead);
    ahead -= length;  // now from this document's end
    const int64_t begins = ahead >> 63;  // -1 or 0
    row -= begins;
    ahead += begins & seq_length;
    while (ahead < 0 && row < end_row) {  // further rows in the same document
      out[2 * row] = static_cast<Out>(i);
      out[2 * row + 1] = static_cast<Out>(ahead + length);
      ++row;
      ahead += seq_length;
    }
  }
  return row;
}

constexpr int kTwisterWords = 624;
constexpr int kTwisterShift = 397;

uint32_t twist(uint32_t high, uint32_t low) {
  const uint32_t mixed = (high & 0x80000000u) | (low & 0x7fffffffu);
  return (mixed >> 1) ^ ((mixed & 1u) ? 0x9908b0dfu : 0u);
}

void refill(MersenneTwister& random) {
  uint32_t* key = random.key;
  for (int i = 0; i < kTwisterWords - kTwisterShift; ++i) {
    key[i] = key[i + kTwisterShift] ^ twist(key[i], key[i + 1]);
  }
  for (int i = kTwisterWords - kTwisterShift; i < kTwisterWords - 1; ++i) {
    key[i] = key[i + kTwisterShift - kTwisterWords] ^ twist(key[i], key[i + 1]);
  }
  key[kTwisterWords - 1] = key[kTwisterShift - 1] ^ twist(key[kTwisterWords - 1], key[0]);
  random.position = 0;
}

uint32_t next_word(MersenneTwister& random) {
  if (random.position == kTwisterWords) refill(random);
  uint32_t word = random.key[random.position++];
  word ^= word >> 11;
  word ^= (word << 7) & 0x9d2c5680u;
  word ^= (word << 15) & 0xefc60000u;
  return word ^ (word >> 18);
}

}  // namespace

template <typename Id, typename Out>
void build_sample_index(const unsigned char* lengths, int64_t num_sequences, const Id* documents,
                        int64_t num_documents, int64_t seq_length, Out* out, int64_t num_rows,
                        int num_threads) {
  MZ_CHECK(seq_length >= 1, "a sequence length of ", seq_length, "; it is at least 1");
  MZ_CHECK(num_documents <= std::numeric_limits<Out>::max(), num_documents,
           " documents cannot be numbered in the element type of the sample index");
  MZ_CHECK(num_threads >= 1, num_threads, " threads; it takes at least 1");
  const Stream<Id> stream{lengths, num_sequences, documents, num_documents};
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(num_threads, num_documents));
  const auto boundary = [=](int64_t part) {
    return num_documents / parts * part + std::min(part, num_documents % parts);
  };
  std::vector<std::exception_ptr> errors(static_cast<size_t>(parts));
  const auto run = [&](const auto& body) {
    run_parts(parts, [&](int64_t part) {
      try {
        body(part);
      } catch (...) {
        errors[static_cast<size_t>(part)] = std::current_exception();
      }
    });
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);  // of the first document with a fault
    }
  };

  // What a part needs of those before it is their number of tokens, so these are counted first.
  std::vector<int64_t> before(static_cast<size_t>(parts + 1), 0);
  if (parts > 1) {
    run([&](int64_t part) {
      before[static_cast<size_t>(part + 1)] = stream.num_tokens(boundary(part), boundary(part + 1));
    });
    for (size_t part = 0; part < before.size() - 1; ++part) before[part + 1] += before[part];
  }
  const auto first_row = [&](int64_t part) {
    const int64_t tokens = before[static_cast<size_t>(part)];
    return std::min(num_rows, tokens / seq_length + (tokens % seq_length != 0));
  };
  // A part ends where the next one's rows begin, so no two write one row.
  std::vector<int64_t> reached(static_cast<size_t>(parts), 0);
  run([&](int64_t part) {
    const int64_t row = first_row(part);
    const int64_t end_row = part + 1 < parts ? first_row(part + 1) : num_rows;
    reached[static_cast<size_t>(part)] =
        write_rows(stream, boundary(part), boundary(part + 1), seq_length, row,
                   row * seq_length - before[static_cast<size_t>(part)], end_row, out);
  });
  MZ_CHECK(reached.back() == num_rows, "the documents hold the first tokens of ", reached.back(),
           " rows only, not of ", num_rows);
}

template void build_sample_index(const unsigned char*, int64_t, const int32_t*, int64_t, int64_t,
                                 int32_t*, int64_t, int);
template void build_sample_index(const unsigned char*, int64_t, const int32_t*, int64_t, int64_t,
                                 int64_t*, int64_t, int);
template void build_sample_index(const unsigned char*, int64_t, const int64_t*, int64_t, int64_t,
                                 int32_t*, int64_t, int);
template void build_sample_index(const unsigned char*, int64_t, const int64_t*, int64_t, int64_t,
                                 int64_t*, int64_t, int);

template <typename Item>
void shuffle(Item* items, int64_t numel, MersenneTwister& random) {
  MZ_CHECK(numel <= (int64_t{1} << 32), numel, " items; places are drawn from 32-bit words");
  MZ_CHECK(random.position >= 0 && random.position <= kTwisterWords, "generator position ",
           random.position, " is not 0 to ", kTwisterWords);
  // The places of a block of swaps depend on random words alone: draw them first and fetch what
  // they name, then swap in order.
  constexpr int kBlock = 256;
  uint32_t places[kBlock];
  uint64_t mask = 1;
  while (mask < static_cast<uint64_t>(numel)) mask = mask * 2 + 1;
  for (int64_t last = numel - 1; last >= 1;) {
    const int block = static_cast<int>(std::min<int64_t>(kBlock, last));
    for (int drawn = 0; drawn < block;) {
      const auto bound = static_cast<uint64_t>(last - drawn);
      while ((mask >> 1) >= bound) mask >>= 1;  // smallest 2^k - 1 that is not below bound
      const uint32_t place = next_word(random) & static_cast<uint32_t>(mask);
      places[drawn] = place;
      __builtin_prefetch(items + place, 1);
      drawn += place <= bound;  // else drawn again
    }
    for (int drawn = 0; drawn < block; ++drawn, --last) std::swap(items[last], items[places[drawn]]);
  }
}

template void shuffle(uint32_t*, int64_t, MersenneTwister&);
template void shuffle(uint64_t*, int64_t, MersenneTwister&);

namespace {

template <bool kLimited>
void blend(const double* weights, const int64_t* limits, int64_t num_sets, int64_t size,
           int16_t* dataset, int64_t* sample) {
  std::vector<int64_t> given(static_cast<size_t>(num_sets), 0);
  for (int64_t i = 0; i < size; ++i) {
    const double position = std::max(static_cast<double>(i), 1.0);
    int64_t chosen = -1;
    double largest = -std::numeric_limits<double>::infinity();
    for (int64_t set = 0; set < num_sets; ++set) {
      const double lag = weights[set] * position - static_cast<double>(given[set]);
      if (lag > largest && (!kLimited || given[set] < limits[set])) {
        largest = lag;
        chosen = set;
      }
    }
    MZ_CHECK(chosen >= 0, "the data sets hold ", i, " samples together, not ", size);
    dataset[i] = static_cast<int16_t>(chosen);
    sample[i] = given[chosen]++;
  }
}

}  // namespace

void build_blend_index(const double* weights, const int64_t* limits, int64_t num_sets,
                       int64_t size, int16_t* dataset, int64_t* sample) {
  MZ_CHECK(num_sets >= 1 && num_sets <= std::numeric_limits<int16_t>::max(), num_sets,
           " data sets; a blend has 1 to ", std::numeric_limits<int16_t>::max());
  const bool limited = std::any_of(limits, limits + num_sets, [=](int64_t most) { return most < size; });
  if (limited) {
    blend<true>(weights, limits, num_sets, size, dataset, sample);
  } else {
    blend<false>(weights, limits, num_sets, size, dataset, sample);
  }
}

}  // namespace mz
