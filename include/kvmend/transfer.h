// What is moved: slices, their options, and the result.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvmend/ids.h"
#include "kvmend/status.h"

namespace kvmend {

enum class Opcode : std::uint8_t {
  kRead = 0,   ///< from the peer's memory into ours
  kWrite = 1,  ///< from our memory into the peer's
};

/// One contiguous run of bytes. `local` is an address in a region registered here, `remote` an
/// address in a region that the peer registered for remote access.
struct Slice {
  void* local = nullptr;
  std::uint64_t remote = 0;
  std::uint64_t length = 0;
};

/// A message that the peer can fetch after the data of a transfer has landed.
struct Notification {
  std::string name;     ///< at most 1,024 bytes
  std::string message;  ///< at most 1 MiB
};

struct TransferOptions {
  /// From now until the transfer fails with `kDeadlineExceeded`. Zero: the engine's default.
  std::chrono::nanoseconds deadline{};
  /// XXH3-64 over every chunk's payload, checked where it arrives.
  bool checksum = false;
  /// Small urgent transfers overtake bulk that hasn't been sent yet.
  bool urgent = false;
  /// Fail with `kPeerRestarted` unless this incarnation answers. Unset: the one the session is
  /// pinned to.
  Incarnation target{};
  std::optional<Notification> notify;
  /// `submit` may return so much later, the transfer perhaps being over: where the engine's thread
  /// sleeps, the caller's does its work meanwhile, which saves a short transfer two wake-ups.
  std::chrono::nanoseconds linger{};
  /// Called once with the result, from the engine's loop thread: must return quickly and must not
  /// wait for other transfers. Called inline from `submit` never.
  std::move_only_function<void(const Status&)> on_done;
};

/// Buffers of pages: page i of buffer b begins at `bases[b] + i * stride`. A pool of KV pages, with
/// a buffer for each layer.
struct PageLayout {
  std::vector<std::uint64_t> bases;  ///< addresses; the peer's own in a remote layout
  std::uint64_t page_bytes = 0;
  std::uint64_t stride = 0;  ///< from page to page; 0: page_bytes
  std::uint64_t pages = 0;   ///< in each buffer
};

/// A local and a remote layout that go together. Made by `Engine::prepare`; constant, any thread.
class PreparedPages {
 public:
  virtual ~PreparedPages() = default;
};
using PreparedHandle = std::shared_ptr<const PreparedPages>;

/// A submitted batch. Any thread. Destroying the handle does not cancel the transfer.
class Transfer {
 public:
  virtual ~Transfer() = default;
  [[nodiscard]] virtual TransferId id() const = 0;
  /// Nothing while it runs, then the final result. Never blocks.
  [[nodiscard]] virtual std::optional<Status> poll() const = 0;
  /// Blocks until the transfer is over or `timeout` has passed (then nothing is returned).
  [[nodiscard]] virtual std::optional<Status> wait(std::chrono::nanoseconds timeout) const = 0;
  /// Ends the transfer with `kCancelled` unless it was over already. When this and the terminal
  /// status are known, nothing reads or writes local memory any more.
  virtual void cancel() = 0;
};

using TransferHandle = std::shared_ptr<Transfer>;

}  // namespace kvmend
