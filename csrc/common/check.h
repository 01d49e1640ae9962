// MZ_CHECK(condition, values...): throws CheckError in every build (CPython compiles extensions
// with NDEBUG, so an assert would vanish). The message is the values one after the other; name the
// thing, its value and the rule. pybind11 turns CheckError into Python's ValueError.
//
// No iostreams here or in any extension: where g++ links libstdc++ statically, a second libstdc++
// in the process (numpy's, torch's) takes over part of its locale symbols, and printing a number
// into a stream jumps to a wrong function (seen with g++ 13.3: a segmentation fault).

#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>

namespace mz {

class CheckError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

template <typename Value>
std::string as_text(const Value& value) {
  if constexpr (std::is_arithmetic_v<Value>) {
    return std::to_string(value);
  } else {
    return std::string(value);
  }
}

template <typename... Values>
[[noreturn]] void throw_check_error(const Values&... values) {
  std::string message;
  (message.append(as_text(values)), ...);
  throw CheckError(message);
}

}  // namespace mz

#define MZ_CHECK(condition, ...)            \
  do {                                      \
    if (!(condition)) {                     \
      ::mz::throw_check_error(__VA_ARGS__); \
    }                                       \
  } while (false)
