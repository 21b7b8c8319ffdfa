// Decode: at which prefill engines this one's layout is registered. Asked for by rooms; repeated
// while a room waits. A layout that can't be mapped stays refused until it is registered anew: with
// another process, when prefill says that it doesn't know us (its manager was replaced), or, since
// that word may be lost, when a room comes more than config::kKvAskRefusedAgain later. Loop thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "env/event_loop.h"
#include "kv/coverage_sums.h"
#include "kv/repeat.h"
#include "kv/role.h"

namespace kvmend::kv {

struct Registration {
  enum class State : std::uint8_t { kNone, kAsked, kAccepted, kRefused };
  Peer peer;  ///< the incarnation is set once the peer has answered
  State state = State::kNone;
  Status refusal;  ///< kIncompatible: kept apart from the session's health
  Time refused{};  ///< when it came
  std::shared_ptr<const WriterCoverage> coverage;  ///< what it writes, once accepted
  Repeat repeat;
  std::uint32_t rooms = 0;  ///< live ones that need the peer
  std::uint64_t last_use = 0;
};

class Registrations {
 public:
  class Host {
   public:
    virtual ~Host() = default;
    /// The peer has accepted or refused; `registration` says which.
    virtual void on_registration(const Registration& registration) = 0;
    /// The peer doesn't know us (any more). Rooms that still need it call `want` again.
    virtual void on_registration_lost(const std::string& session_id) = 0;
  };

  Registrations(const Surroundings& around, Host& host, std::uint64_t first_number);

  /// A room needs the peer: registers unless that is done or under way, and repeats until it is
  /// `release`d. The reference stands until the next call. Errors: kResourceExhausted.
  Result<const Registration*> want(const Peer& peer);
  void release(const std::string& session_id);

  void on_reply(const Peer& from, const wire::KvRegisterReply& message);
  void on_incarnation(const std::string& session_id, Incarnation now);

  [[nodiscard]] const Registration* find(const std::string& session_id) const;
  [[nodiscard]] std::size_t size() const { return peers_.size(); }

 private:
  void ask(Registration& entry);
  void lose(Registration& entry);
  void arm();
  void on_timer();

  const Surroundings& around_;
  Host& host_;
  const std::uint64_t number_;
  std::map<std::string, Registration> peers_;
  std::uint64_t uses_ = 0;
  std::uint64_t answers_ = 0;
  env::ScopedTimer timer_;
};

}  // namespace kvmend::kv
