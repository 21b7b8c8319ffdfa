// Where exceptions end. Nothing of ours throws on purpose, but memory runs out in the middle of
// anything: that ends what was being done, never a thread and with it the process.
#pragma once

#include <cxxabi.h>

#include <cstdint>
#include <exception>
#include <string_view>

namespace kvmend {

/// Times that `contain` caught something, of the whole process. Any thread.
[[nodiscard]] std::uint64_t contained_exceptions();

namespace internal {
void note_contained(std::string_view what, const char* error) noexcept;
}

/// Runs `work` and returns true. What it throws is counted and logged with `what` (the 1st, 2nd,
/// 4th, 8th... time: whoever provokes it mustn't fill a disk), and false is returned; the caller
/// then ends whatever the work was about. Only the end of a thread by pthread_exit passes.
template <class Work>
bool contain(std::string_view what, Work&& work) {
  try {
    work();
    return true;
  } catch (abi::__forced_unwind&) {
    throw;
  } catch (const std::exception& error) {
    internal::note_contained(what, error.what());
  } catch (...) {
    internal::note_contained(what, "an unknown exception");
  }
  return false;
}

}  // namespace kvmend
