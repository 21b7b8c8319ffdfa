// The side channel between two engines of one host: an abstract unix socket that carries small
// messages and descriptors.
//
//   receiver of writes                          sender
//     hello {address of its own} + its board  ->
//                                             <-  welcome {nonce and where it lies} + its board
//     ready {whether the nonce could be read} ->
//                                             <-  segment {id, bytes} + memfd     (for each pool)
//     mapped {id, whether}                    ->
//                                             <-  retire {id}
//     bell {}: look at your ring              <->
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/unique_fd.h"
#include "kvmend/status.h"

namespace kvmend::transport::local {

enum class LinkKind : std::uint32_t {
  kHello = 1,
  kWelcome = 2,
  kReady = 3,
  kSegment = 4,
  kMapped = 5,
  kRetire = 6,
  kBell = 7,
};

/// Both ends are kvmend on the same machine: a plain layout, checked by magic and size.
struct LinkMessage {
  static constexpr std::uint64_t kMagic = 0x324B4E494C4D564BULL;  // "KVMLINK2"
  std::uint64_t magic = kMagic;
  LinkKind kind{};
  /// segment, mapped, retire; hello and welcome: number of the ring in the board, from 1; 0: none
  std::uint32_t id = 0;
  std::uint64_t a = 0;  ///< welcome: address of the nonce; segment: bytes; ready, mapped: 0 or 1
  std::uint64_t b = 0;  ///< welcome: the nonce
  std::array<char, 112> address{};  ///< hello: zero-terminated

  void set_address(std::string_view text);
  [[nodiscard]] std::string get_address() const;
};

struct Credentials {
  pid_t pid = 0;
  uid_t uid = 0;
};

/// A listener at the abstract address `name`, non-blocking. Errors: kResourceExhausted.
Result<UniqueFd> listen_at(std::string_view name);
/// Connects at once or not at all. Errors: kUnavailable.
Result<UniqueFd> connect_to(std::string_view name);
/// A waiting connection, if there is one; if not, errno says why: EAGAIN, or a shortage while one
/// waits.
std::optional<UniqueFd> accept_from(int listener);
/// Whoever is on the other side, as the kernel knows it.
Result<Credentials> credentials_of(int fd);

/// False: the other side doesn't take it (then the link is of no use).
[[nodiscard]] bool send_message(int fd, const LinkMessage& message, int passed_fd = -1);

struct Received {
  enum class Kind : std::uint8_t { kMessage, kNothing, kClosed } kind = Kind::kNothing;
  LinkMessage message;
  UniqueFd fd;
};
/// The next message. What isn't one of ours counts as closed.
Received receive_message(int fd);

}  // namespace kvmend::transport::local
