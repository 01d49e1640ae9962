// bf16 and fp16 <-> fp32. To the narrow type: round to nearest, ties to even; what rounds beyond
// the largest finite value becomes infinity; a NaN stays a NaN of the same sign (made quiet). To
// fp32: exact. Denormals of both sides are honoured.
//
// Every function is straight-line code with selects, so that the loop around it can be vectorised.
// The rounding of fp16 denormals is done by one fp32 addition and relies on the default rounding
// mode (float_mode.h).

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__GNUC__)
// Inlined even into functions compiled for a wider instruction set, whose instructions it then
// uses.
#define MZ_ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define MZ_ALWAYS_INLINE inline
#endif

namespace mz {

MZ_ALWAYS_INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

MZ_ALWAYS_INLINE float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Distinct types of the same 16 bits, so that overloads tell them apart.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

MZ_ALWAYS_INLINE float to_float(float value) { return value; }

MZ_ALWAYS_INLINE float to_float(BFloat16 value) {
  return float_of(static_cast<uint32_t>(value.bits) << 16);
}

MZ_ALWAYS_INLINE float to_float(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  const uint32_t rebias = 112u << 23;  // exponent bias 127 against 15
  // Infinity and NaN have exponent 31, which must become 255: the bias once more.
  const uint32_t special = magnitude >= 0x7c00u ? rebias : 0u;
  const uint32_t normal = (magnitude << 13) + rebias + special;
  const float denormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
  return float_of(sign | (magnitude < 0x0400u ? bits_of(denormal) : normal));
}

MZ_ALWAYS_INLINE void from_float(float value, float& out) { out = value; }

MZ_ALWAYS_INLINE void from_float(float value, BFloat16& out) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x0040u;
  out.bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}

MZ_ALWAYS_INLINE void from_float(float value, Float16& out) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0x0fffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  // Below 2^-14 the result is a multiple of 2^-24, which is the last place of a float in [0.5, 1):
  // the addition rounds.
  const uint32_t denormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t result = magnitude < 0x38800000u ? denormal : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;  // from 65520 on, the nearest is infinity
  result = magnitude > 0x7f800000u ? (0x7e00u | ((magnitude >> 13) & 0x01ffu)) : result;
  out.bits = static_cast<uint16_t>(sign | result);
}

}  // namespace mz
