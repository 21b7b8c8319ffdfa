// What all parts of a simulated world share: virtual time with its events, randomness, the trace.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "env/event_loop.h"
#include "env/sim/options.h"

namespace kvmend::env::sim {

/// SplitMix64: every 64-bit seed gives a good sequence, and a stream costs one word of state.
/// Source: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", 2014.
class SimRandom final : public Random {
 public:
  explicit SimRandom(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() override;
  /// 0 ... n-1; n > 0.
  std::uint64_t below(std::uint64_t n) { return next() % n; }
  /// True with that probability.
  bool chance(double probability);
  /// 1 ... n, usually n; with `probability` less, and then often very little.
  std::size_t cut(std::size_t n, double probability);

 private:
  std::uint64_t state_;
};

/// Everything that is to happen, in the order of its time, then of its adding.
class EventQueue {
 public:
  using Key = std::pair<Time, std::uint64_t>;
  static constexpr Key kNone{Time::max(), UINT64_MAX};

  Key add(Time when, Task task);
  /// Forgets an event; `kNone` and events that ran are ignored.
  void cancel(Key key) { events_.erase(key); }
  [[nodiscard]] bool empty() const { return events_.empty(); }
  [[nodiscard]] Time next_time() const { return empty() ? kForever : events_.begin()->first.first; }
  /// Destroys all events; what their destructors add stays.
  void clear() { const auto gone = std::exchange(events_, {}); }
  /// Takes the next event; the queue must not be empty.
  std::pair<Time, Task> pop();

 private:
  std::map<Key, Task> events_;
  std::uint64_t sequence_ = 0;
};

/// A running hash over all that happened: two runs did the same if it is the same.
class Trace {
 public:
  /// Adds one happening. `what` must be a literal; the names only serve the log.
  void note(Time at, const char* what, std::uint64_t a = 0, std::uint64_t b = 0,
            std::uint64_t c = 0);
  [[nodiscard]] static std::uint64_t hash(Bytes bytes);
  [[nodiscard]] static std::uint64_t hash(const std::string& text);
  [[nodiscard]] std::uint64_t value() const { return value_; }
  /// Gets one line for each happening; for looking at a failure.
  void set_sink(std::function<void(const std::string&)> sink) { sink_ = std::move(sink); }

 private:
  std::uint64_t value_ = 0x9e3779b97f4a7c15ULL;
  std::function<void(const std::string&)> sink_;
};

/// Single-threaded, like all of the simulation.
struct SimCore {
  SimCore(std::uint64_t seed, const SimOptions& world_options)
      : options(world_options), random(seed) {}
  void note(const char* what, std::uint64_t a = 0, std::uint64_t b = 0, std::uint64_t c = 0) {
    trace.note(now, what, a, b, c);
  }

  const SimOptions options;
  Time now{};
  EventQueue events;
  SimRandom random;
  Trace trace;
  const EventLoop* running = nullptr;  ///< the loop whose turn it is
};

}  // namespace kvmend::env::sim
