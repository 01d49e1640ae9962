// bfloat16 and float16 as bit patterns <-> float. Round to nearest, ties to even; NaN stays NaN.
// Plain integer arithmetic, so that every compiler and SIMD level gives the same bits.
#pragma once

#include <cstdint>
#include <cstring>

namespace mz {

inline uint32_t FloatBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float BitsFloat(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct BFloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

inline float ToFloat(float value) { return value; }

inline float ToFloat(BFloat16 value) { return BitsFloat(static_cast<uint32_t>(value.bits) << 16); }

inline float ToFloat(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  // Move exponent and mantissa into place and rescale by 2^112: exact for normal and denormal alike.
  const float scaled = BitsFloat(magnitude << 13) * BitsFloat(0x77800000u);
  const uint32_t special = BitsFloat(0x47800000u) <= scaled ? 0x7f800000u : 0u;  // infinity, NaN
  return BitsFloat(sign | FloatBits(scaled) | special);
}

inline void FromFloat(float value, float* out) { *out = value; }

inline void FromFloat(float value, BFloat16* out) {
  const uint32_t bits = FloatBits(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  out->bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

inline void FromFloat(float value, Float16* out) {
  const uint32_t bits = FloatBits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t result;
  if (magnitude > 0x7f800000u) {
    result = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // rounds to 65536 or more
    result = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: the sum's lowest bits are the denormal's
    result = FloatBits(BitsFloat(magnitude) + 0.5f) - FloatBits(0.5f);
  } else {
    result = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  }
  out->bits = static_cast<uint16_t>(sign | result);
}

}  // namespace mz
