// The memory of one simulated process with an oracle beside it: which bytes may change now, to
// what, and which may be read. Knows nothing of the code under test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"
#include "sim/violation.h"
#include "sim/watch.h"

namespace kvmend::sim {

/// Part of a pool, and the pattern that belongs there.
struct Segment {
  std::size_t begin = 0;
  std::size_t length = 0;
  std::uint64_t seed = 0;
};

enum class Use : std::uint8_t {
  kLand,  ///< bytes from the network may land
  kSend,  ///< bytes may be sent
};

/// What the application has allowed at this moment.
struct Permit {
  Use use = Use::kLand;
  std::string what;  ///< for people
  Time expires = kForever;
  bool any_content = false;  ///< the link corrupts: only the place is checked
  std::vector<Segment> segments;
};

using PermitId = std::uint64_t;

/// Single-threaded.
class Pool final : public MemoryWatch {
 public:
  /// `clock`: the process's own time, which decides about expiry.
  Pool(std::string name, std::size_t bytes, std::function<Time()> clock, Verdict& verdict);

  [[nodiscard]] std::byte* base() { return memory_.data(); }
  [[nodiscard]] std::size_t offset_of(const void* at) const {
    return static_cast<std::size_t>(static_cast<const std::byte*>(at) - memory_.data());
  }

  PermitId allow(Permit permit);
  /// From now on nothing of it may happen. Looks first. Unknown: ignored.
  void end(PermitId id);
  [[nodiscard]] bool is_live(PermitId id) const;
  [[nodiscard]] std::size_t permits() const { return permits_.size(); }

  /// The owner writes its own memory.
  void write(std::size_t begin, std::size_t length, std::uint64_t seed);
  /// Whether the bytes are those of the pattern.
  [[nodiscard]] bool matches(const Segment& segment) const;

  /// Compares with what the memory held before: every change needs a permit.
  void look();
  [[nodiscard]] bool dirty() const { return dirty_; }

  void on_received_into(const void* at, std::size_t bytes) override;
  void on_sent_from(const void* at, std::size_t bytes) override;
  void on_activity() override { dirty_ = true; }

 private:
  struct Entry {
    PermitId id;
    Permit permit;
  };
  [[nodiscard]] bool contains(const void* at) const;
  void judge_change(std::size_t at);
  void need(Use use, std::size_t begin, std::size_t length, int rule, const char* doing);
  /// Who was allowed it last.
  [[nodiscard]] std::string history(Use use, std::size_t at) const;
  [[nodiscard]] bool covered(Use use, std::size_t& at, std::size_t end, Time now) const;

  const std::string name_;
  const std::span<std::byte> memory_;  // of the thread's arena
  std::vector<std::byte> before_;
  std::function<Time()> clock_;
  Verdict& verdict_;
  std::vector<Entry> permits_;
  std::deque<std::pair<Time, Permit>> ended_;  // for people: the last ones, newest first
  PermitId last_id_ = 0;
  bool dirty_ = false;
};

}  // namespace kvmend::sim
