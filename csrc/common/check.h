// Checks that throw in every build (CPython builds extensions with NDEBUG, so assert() would be silent).
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace mz {

template <typename... Values>
std::string Message(const Values&... values) {
  std::ostringstream text;
  (text << ... << values);
  return text.str();
}

}  // namespace mz

// Throws std::invalid_argument with the values streamed one after the other.
#define MZ_CHECK(condition, ...)                              \
  do {                                                        \
    if (!(condition)) {                                       \
      throw std::invalid_argument(::mz::Message(__VA_ARGS__)); \
    }                                                         \
  } while (false)
