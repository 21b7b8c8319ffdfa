// Pages whose room is over, but that a write (or a read of their source) may still reach, because
// the transport can't be stopped by a grant: they rest here until that is proven to be impossible.
// Silence proves nothing, and neither does time (safety rule 3). Pure; loop thread.
//
//   hold ---> every holder has drained / is another process / is fenced off ---> released: proven
//        \--> `unproven_at` has come, if there is such a time ----------------> released: unproven
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "kvmend/ids.h"
#include "kvmend/status.h"

namespace kvmend::memory {

/// What a transport's own events prove. Declared once by whoever drives it (kv/engine_port.h).
struct LandingRules {
  /// Every byte asks the grant before it lands (tcp, local): a grant that has ended frees the pages
  /// at once. False: writes go past it (RDMA put, foreign engines).
  bool grants_are_checked = true;
  /// A write that ended, well or not, touches neither side's memory any more. False: after a
  /// failure it may go on for as long as it likes (Mooncake's -1).
  bool failed_writes_rest = true;
};

/// Why pages left the quarantine.
enum class Release : std::uint8_t {
  kDrained = 0,  ///< the last holder said that it has nothing under way
  kGone,         ///< the last holder's process is dead, or has registered anew
  kFenced,       ///< the endpoint to the last holder was destroyed
  kUnproven,     ///< time: the page may still be touched
};
[[nodiscard]] std::string_view release_name(Release how);

class Quarantine {
 public:
  using Id = std::uint64_t;
  /// A process that may still touch the pages.
  struct Holder {
    std::string session_id;
    Incarnation incarnation;
  };
  struct Held {
    std::uint64_t pages = 0;
    std::vector<Holder> holders;  ///< at least one
    Time fence_at = kForever;     ///< from then on holders may be fenced off (the room's deadline)
    Time unproven_at = kForever;
    /// Runs inside the call that released them; may call `hold`.
    std::move_only_function<void(Release)> on_released;
  };

  /// `share` (0 to 1) of `pool_pages` may be held.
  Quarantine(std::uint64_t pool_pages, double share);

  /// Whether new rooms may use pages: kResourceExhausted, with both figures, when more than the
  /// share is held.
  [[nodiscard]] Status admits() const;

  /// Never refused: the pages are what they are. Only `admits` tells of too many.
  Id hold(Held held);
  /// False: it holds nothing of that.
  bool on_drained(Id id, const std::string& session_id, Incarnation incarnation);
  /// Another process than `now` answers there no more; `now` unset: none does.
  void on_incarnation(const std::string& session_id, Incarnation now);
  /// The process has registered anew: what it had begun before is void, by its own word.
  void on_registered_anew(const std::string& session_id);

  /// Holders that may be fenced off now, each session once.
  [[nodiscard]] std::vector<std::string> fences_due(Time now) const;
  /// The last id given out: what a fence that begins now will prove.
  [[nodiscard]] Id last() const { return last_id_; }
  /// The endpoint to `session_id` is gone; it was destroyed after `last` had been held.
  void on_fenced(const std::string& session_id, Id last);
  /// Releases everything: the memory itself is out of everybody's reach.
  void release_all(Release how);
  /// Releases what has waited for its time.
  void expire(Time now);
  /// The next moment of `fences_due` (after `now`) or `expire`; kForever: none.
  [[nodiscard]] Time next_due(Time now) const;

  [[nodiscard]] std::size_t size() const { return held_.size(); }
  [[nodiscard]] std::uint64_t pages() const { return pages_; }
  [[nodiscard]] std::uint64_t cap() const { return cap_; }
  [[nodiscard]] bool over_cap() const { return pages_ > cap_; }

 private:
  using All = std::map<Id, Held>;
  template <class Leaves>
  void drop_holders(Release how, const Leaves& leaves);
  All::iterator release(All::iterator at, Release how);

  const std::uint64_t pool_pages_;
  const std::uint64_t cap_;
  All held_;
  std::uint64_t pages_ = 0;
  Id last_id_ = 0;
};

}  // namespace kvmend::memory
