// Which sessions of a foreign engine are blacklisted, and when each is probed: one failed write
// blacklists, a passed probe lets one write try. The rules of the field's own recovery: a pass is a
// snapshot of what is due, at most one probe of a session runs, the newer failure wins over a probe
// that began before it, and a recovery counts only if the session was still blacklisted. Pure; loop
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "kvmend/foreign.h"
#include "kvmend/status.h"

namespace kvmend::kv {

class ForeignBlacklist {
 public:
  /// `options` outlives it.
  explicit ForeignBlacklist(const ForeignOptions& options) : options_(options) {}

  struct Probe {
    std::string session;
    std::uint64_t failure = 0;  ///< the newest one when the probe began
  };

  /// A request wants the session.
  void on_demand(const std::string& session, Time now);
  void on_write_failed(const std::string& session, Status why, Time now);
  /// Ends the trial of a session that a probe has lifted.
  void on_write_ok(const std::string& session);
  /// The peer has registered anew: true if its session was blacklisted.
  bool lift(const std::string& session);

  /// Begins the probes that are due now, and forgets sessions nobody wanted.
  [[nodiscard]] std::vector<Probe> take_due(Time now);
  /// When `take_due` has something to do; kForever: never.
  [[nodiscard]] Time next_due() const;
  /// `rc` 0: the session is on trial now. True then, and only if it was blacklisted until now.
  bool on_probed(const Probe& probe, int rc, Time now);

  [[nodiscard]] bool blacklisted(const std::string& session) const;
  /// One write at a time may go out.
  [[nodiscard]] bool on_trial(const std::string& session) const;
  /// Why it is blacklisted; OK when it isn't.
  [[nodiscard]] Status reason(const std::string& session) const;
  [[nodiscard]] std::size_t size() const;

  struct Totals {
    std::uint64_t recoveries = 0;
    std::uint64_t relapses = 0;
    std::uint64_t outdated = 0;
    std::uint64_t unavailable = 0;
  };
  [[nodiscard]] const Totals& totals() const { return totals_; }

 private:
  struct Entry {
    Status why;
    std::uint64_t failure = 0;
    bool trial = false;
    bool probing = false;
    Duration interval{};
    Time due = kForever;
    Time wanted;
  };

  const ForeignOptions& options_;
  std::map<std::string, Entry> entries_;
  std::uint64_t failures_ = 0;
  Totals totals_;
};

}  // namespace kvmend::kv
