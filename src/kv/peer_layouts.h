// Prefill: the decode engines that have registered, each with the plan that fills its pools, or
// with the reason why there is none. Loop thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "kv/plan.h"
#include "kv/role.h"

namespace kvmend::kv {

struct PeerLayout {
  Peer peer;
  Incarnation before;  ///< the process it replaced: its late words are void
  std::uint64_t registration = 0;
  Status verdict;                            ///< kIncompatible: apart from the session's health
  std::shared_ptr<const TransferPlan> plan;  ///< when the verdict is OK
  std::uint64_t last_use = 0;
};

class PeerLayouts {
 public:
  /// `data_session`: of our foreign engine, or "" (EnginePort::data_session).
  PeerLayouts(const KvLayout& here, std::string data_session, Counters& counters)
      : here_(here), data_session_(std::move(data_session)), counters_(counters) {}

  /// Takes a registration (the same one twice is harmless) and returns it with its verdict;
  /// nullptr when it comes from a process that another one has replaced there. Beyond
  /// config::kMaxKvPeers the longest unused peer is forgotten: it will be asked to register again.
  const PeerLayout* add(const Peer& from, const wire::KvRegister& message);

  /// The registration of exactly this process, or nullptr.
  [[nodiscard]] const PeerLayout* find(const Peer& peer);
  /// Whether another process has replaced this one at its address.
  [[nodiscard]] bool replaced(const Peer& peer) const;
  /// The process that is registered at this address; unset when none is.
  [[nodiscard]] Incarnation incarnation_at(const std::string& session_id) const;

  /// Forgets what another process than `now` registered.
  void on_incarnation(const std::string& session_id, Incarnation now);
  [[nodiscard]] const std::map<std::string, PeerLayout>& all() const { return peers_; }

 private:
  void make_room();

  const KvLayout& here_;
  const std::string data_session_;
  Counters& counters_;
  std::map<std::string, PeerLayout> peers_;
  std::uint64_t uses_ = 0;
};

}  // namespace kvmend::kv
