// Whom can whom reach, and since when: the truth about the simulated links that the checkers of
// recovery compare sessions with.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "env/sim/options.h"
#include "sim/cluster.h"

namespace kvmend::sim {

/// All link faults go through it. Single-threaded.
class Reach final : public Part {
 public:
  explicit Reach(Cluster& cluster);

  using Token = std::uint64_t;
  /// Puts a fault on the packets from `a` to `b`; replaces what was there.
  Token set_fault(Node& a, Node& b, const env::sim::Fault& fault);
  /// Ends that fault, unless another has replaced it.
  void clear_fault(Node& a, Node& b, Token token);
  void clear_all();
  /// The listener of `node` is held: nobody can open a connection to it.
  void set_impaired(Node& node, bool on);
  /// `node` is short of descriptors: neither can it be connected to, nor can it connect.
  void set_starved(Node& node, bool on);

  /// Since when `b` has been perfectly reachable from `a` and back (in the world's time); kForever
  /// while it isn't.
  [[nodiscard]] Time clean_since(Node& a, Node& b) const;
  /// When bytes could last go from `a` to the process at `b` and back.
  [[nodiscard]] Time last_possible(Node& a, Node& b) const;
  /// When a connection from `a` to `b` could last be opened. A stopped process's kernel accepts
  /// too.
  [[nodiscard]] Time last_connectable(Node& a, Node& b) const;

  void on_reach_changed() override;

 private:
  struct Link {
    env::sim::Fault fault;
    Token token = 0;
  };
  struct Pair {
    bool clean = true;
    bool possible = true;
    bool connectable = true;
    Time clean_since{};
    Time last_possible{};     // while not possible
    Time last_connectable{};  // while not connectable
  };
  using Key = std::pair<std::size_t, std::size_t>;
  [[nodiscard]] const env::sim::Fault* fault_of(std::size_t a, std::size_t b) const;

  Cluster& cluster_;
  std::map<Key, Link> links_;
  std::map<Key, Pair> pairs_;
  std::map<std::size_t, bool> impaired_;
  std::map<std::size_t, bool> starved_;
  Token last_token_ = 0;
};

}  // namespace kvmend::sim
