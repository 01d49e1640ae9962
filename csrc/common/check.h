// MZ_CHECK(condition, values...): throws CheckError in every build (CPython compiles extensions
// with NDEBUG, so an assert would vanish). The message is the values streamed one after the other;
// name the thing, its value and the rule. pybind11 turns CheckError into Python's ValueError.

#pragma once

#include <sstream>
#include <stdexcept>

namespace mz {

class CheckError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

template <typename... Values>
[[noreturn]] void throw_check_error(const Values&... values) {
  std::ostringstream message;
  (message << ... << values);
  throw CheckError(message.str());
}

}  // namespace mz

#define MZ_CHECK(condition, ...)            \
  do {                                      \
    if (!(condition)) {                     \
      ::mz::throw_check_error(__VA_ARGS__); \
    }                                       \
  } while (false)
