// The loops that turn a data set into an order of samples: numbers equal to those of Megatron-core's
// builders and of numpy's legacy generator, at the speed of the memory. What the indices mean is in
// megatron_zero/data/sample_index.py and blend.py; slow references are in
// megatron_zero/ops/dataset_index.py, and tests hold the two to equality.
//
// All functions throw CheckError naming the value that breaks a rule; the output is then undefined.
// They take plain memory owned by the caller, and may run at once on disjoint outputs.

#pragma once

#include <cstdint>

namespace mz {

// lengths: [num_sequences] int32, at any alignment (it is a block in the middle of a mapped .idx).
// documents: [num_documents], sequence ids in the order of the token stream.
// out: [num_rows, 2]; row i gets the position in `documents`, and the offset in that sequence, of
// token i * seq_length of the stream. The stream must hold every such token.
// num_threads: parts that are built at once. With more than one every length is read twice, first for
// the sums that the parts begin with. The output does not depend on it; of several faults the first
// is named, and documents behind the last row are checked only with several threads.
template <typename Id, typename Out>
void build_sample_index(const unsigned char* lengths, int64_t num_sequences, const Id* documents,
                        int64_t num_documents, int64_t seq_length, Out* out, int64_t num_rows,
                        int num_threads);

// numpy's MT19937: key[624] and the position in it, as RandomState.get_state() gives them.
struct MersenneTwister {
  uint32_t* key;
  int position;
};

// items: [numel], shuffled in place as numpy.random.RandomState.shuffle does it; the state advances
// likewise. numel is at most 2^32.
template <typename Item>
void shuffle(Item* items, int64_t numel, MersenneTwister& random);

// Greedy blending: entry i of the order goes to the set whose share lags most behind
// weight * max(i, 1), the first one on ties, among those that have not given `limits` samples yet.
// weights, limits: [num_sets].  dataset: [size], the set of each entry.  sample: [size], how many
// that set gave before.  The limits must add up to `size` at least.
void build_blend_index(const double* weights, const int64_t* limits, int64_t num_sets,
                       int64_t size, int16_t* dataset, int64_t* sample);

}  // namespace mz
