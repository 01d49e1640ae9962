// IeeeFloatMode: for its lifetime this thread rounds to nearest even and neither flushes denormal
// results nor reads denormal inputs as zero; the thread's former mode comes back at the end.
// Another library in the process may have set those modes (a shared object linked with -ffast-math
// does so on loading, torch.set_flush_denormal on demand), and results must not depend on it.
// Nothing to do on architectures other than x86-64 and arm64.

#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace mz {

class IeeeFloatMode {
 public:
  IeeeFloatMode() : saved_(read()) { write(saved_ & ~kChanging); }
  ~IeeeFloatMode() { write(saved_); }
  IeeeFloatMode(const IeeeFloatMode&) = delete;
  IeeeFloatMode& operator=(const IeeeFloatMode&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kChanging =
      0x8000u | 0x6000u | 0x0040u;  // MXCSR: FTZ, rounding control, DAZ
  static uint64_t read() { return _mm_getcsr(); }
  static void write(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__) && defined(__GNUC__)
  static constexpr uint64_t kChanging =
      (1u << 24) | (3u << 22) | (1u << 19);  // FPCR: FZ, RMode, FZ16
  static uint64_t read() {
    uint64_t mode;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(uint64_t mode) { __asm__ __volatile__("msr fpcr, %0" : : "r"(mode)); }
#else
  static constexpr uint64_t kChanging = 0;
  static uint64_t read() { return 0; }
  static void write(uint64_t) {}
#endif

  const uint64_t saved_;
};

}  // namespace mz
