// Detects silence: outstanding work, no acknowledged byte.
#pragma once

#include <algorithm>

#include "base/time.h"
#include "health/options.h"

namespace kvmend::health {

/// One per session (or lane): says when a peer with outstanding work counts as silent. Report it as
/// `Status(kPeerSilent, kPeer, …)`. One owner thread.
class ProgressWatch {
 public:
  /// Something is outstanding from now on; without effect if something already was.
  void begin(Time now) {
    if (since_ == kForever) since_ = now;
  }
  /// A byte was acknowledged.
  void progress(Time now) {
    if (since_ != kForever) since_ = std::max(since_, now);
  }
  /// Nothing is outstanding any more.
  void end() { since_ = kForever; }
  /// We stood still ourselves: what the peer said meanwhile is only now read, so its
  /// time starts again.
  void forgive(Time now) { progress(now); }

  /// When silence is established (`kForever`: nothing outstanding). `stretch` is
  /// `SelfView::stretch`.
  [[nodiscard]] Time deadline(const HealthOptions& options, std::uint32_t stretch) const {
    return since_ == kForever ? kForever
                              : saturating_add(since_, options.progress_deadline * stretch);
  }

 private:
  Time since_ = kForever;
};

}  // namespace kvmend::health
