// The floor of building a sample index: every length gathered through the shuffled order, and the
// output written, by two plain loops. No result depends on another; the sum keeps the loads alive.

#include <cstdint>
#include <cstring>

extern "C" int64_t gather_and_write(const unsigned char* lengths, const int32_t* documents,
                                    int64_t num_documents, int32_t* out, int64_t out_numel) {
  int64_t sum = 0;
  for (int64_t i = 0; i < num_documents; ++i) {
    int32_t length;
    std::memcpy(&length, lengths + 4 * static_cast<int64_t>(documents[i]), 4);
    sum += length;
  }
  for (int64_t i = 0; i < out_numel; ++i) out[i] = static_cast<int32_t>(sum + i);
  return sum;
}
