// What the processes of `./dev bench recovery` share: a clock, commands by line, canary memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace kvmend::bench {

/// Ends the process with a message. Any thread.
[[noreturn]] void give_up(const std::string& what);

/// CLOCK_MONOTONIC in seconds: comparable between processes of one machine.
[[nodiscard]] double monotonic_seconds();

/// One JSON object per line on standard output. Any thread.
void say(const nlohmann::json& event);

/// Memory that is mapped at the same address in every life of a process, filled with a canary that
/// no writer of the benchmark sends.
class CanaryPool {
 public:
  static constexpr std::byte kCanary{0xC5};
  static constexpr std::byte kPayload{0x3A};

  /// `base` 0: anywhere. Gives up when the address is taken.
  CanaryPool(std::uint64_t base, std::size_t bytes);
  CanaryPool(const CanaryPool&) = delete;
  CanaryPool& operator=(const CanaryPool&) = delete;
  ~CanaryPool();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(data_); }
  void fill(std::size_t from, std::size_t count) const;
  /// Bytes in [from, from + count) that aren't the canary any more.
  [[nodiscard]] std::uint64_t changed(std::size_t from, std::size_t count) const;

 private:
  std::byte* data_;
  std::size_t size_;
};

struct RecoverySettings {
  std::string host = "127.0.0.1";
  bool local = false;                ///< else by tcp, as between machines
  std::vector<std::uint16_t> ports;  ///< one engine each; 0: any
  std::uint64_t base = 0;            ///< of the first pool; further ones follow
  std::size_t pool_kib = 64;
  std::size_t page_bytes = 4096;
  double period_ms = 20;   ///< between requests of a session
  std::uint32_t cap = 64;  ///< unfinished requests of a session
  double deadline_s = 30;
  std::string log;  ///< where the load writes its records
  // target
  std::size_t registered_mib = 0;  ///< further touched memory, registered with the first engine
  bool huge_pages = false;
  bool fork_child = false;  ///< a living child that holds what it inherited
  // kv
  std::string prefill;           ///< session id
  std::string board;             ///< the file both sides map
  std::uint32_t generation = 0;  ///< life of the decode process
  std::uint32_t room_pages = 16;
  std::uint32_t abort_percent = 0;
  std::uint32_t engines = 0;
};

int run_target(const RecoverySettings& settings);
int run_load(const RecoverySettings& settings);
int run_decode(const RecoverySettings& settings);
int run_prefill(const RecoverySettings& settings);

}  // namespace kvmend::bench
