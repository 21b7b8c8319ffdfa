// One room on the decode side: grants out, pages in, and the only place that decides Success
// (safety rule 2). Loop thread; everything runs to completion.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kv/coverage_sums.h"
#include "kv/registrations.h"
#include "kv/repeat.h"
#include "kv/room_base.h"

namespace kvmend::kv {

/// A prefill engine of a room (KvSource, checked).
struct Source {
  Peer peer;
  std::uint32_t destinations = 1;
  bool dummy = false;
};

class DecodeRoom final : public RoomBase {
 public:
  class Host {
   public:
    virtual ~Host() = default;
    /// The room is over: its grants are closed and its status is published. `tell`: the writers
    /// that must hear of a failure.
    virtual void on_room_over(DecodeRoom& room, const Status& result,
                              const std::vector<Peer>& tell) = 0;
    virtual CoverageSums& coverage_sums() = 0;
  };

  /// `attempt` is unique among the rooms of this manager.
  DecodeRoom(const Surroundings& around, Host& host, std::shared_ptr<RoomHandle> handle,
             std::uint32_t attempt, const std::vector<Source>& writers);

  void init();
  /// The destination pages, checked. They are announced to every writer that has taken our layout.
  void set_pages(std::vector<wire::KvPages> pages, std::uint64_t prefix_tokens);

  void on_registration(const Registration& registration);
  void on_registration_lost(const std::string& session_id);
  void on_status(const Peer& from, const wire::KvRoomStatus& message);
  void on_done(const Peer& from, const wire::KvRoomDone& message);
  void on_abort(const Peer& from, const wire::KvRoomAbort& message);
  void on_peer_incarnation(const std::string& session_id, Incarnation now);
  void on_session_usable(const std::string& session_id);
  void on_session_refused(const std::string& session_id);
  void fail(Status why) override;

  [[nodiscard]] std::uint32_t attempt() const { return attempt_; }
  [[nodiscard]] std::vector<std::string> writer_sessions() const;
  /// Engines that may still write into the room's pages, unless the grants say no to them.
  [[nodiscard]] std::vector<Peer> possible_writers() const;
  [[nodiscard]] Time deadline() const { return deadline_; }
  /// Announced pages of the kv pools.
  [[nodiscard]] std::uint64_t kv_pages() const;

 private:
  struct Writer {
    Peer peer;  ///< the incarnation is set once it has taken our layout
    std::uint32_t destinations = 1;
    bool dummy = false;  ///< writes nothing: no grant, done when it has answered
    bool registered = false;
    std::shared_ptr<const WriterCoverage> coverage;  ///< once registered
    bool announced = false;
    GrantId grant;      ///< set once the pages are announced to it
    bool done = false;  ///< everything it declared has landed
    bool gone = false;  ///< needn't be told: it said so itself, or is another process now
    bool dead = false;  ///< is another process now: nothing of it lands any more
    Repeat repeat;      ///< of the metadata, until it answers
  };

  Writer* find(const Peer& peer);
  void announce(Writer& writer);
  /// Whether the prefill instance isn't whole: the session of a writer is down. That writer's own
  /// message waits in its session; those to the others wait here, so that none of them begins. The
  /// room has failed when requests may not wait.
  bool pair_is_down(const Writer& writer);
  [[nodiscard]] std::optional<Blacklisted> down(const Writer& writer) const;
  void send_metadata(Writer& writer);
  [[nodiscard]] memory::Grant make_grant(const Writer& writer) const;
  /// Safety rule 2 and case I8. False when the room has failed over it.
  bool check_declared(const Writer& writer, const wire::KvRoomDone& message);
  /// Whether the writers together bring every byte. False when the room has failed over it.
  bool check_coverage();
  void complete_if_done();
  /// What has landed of a room that fails, for its metrics; before the grants are closed.
  void count_landed();
  void close_grants(memory::GrantEnd how);
  [[nodiscard]] Time next_due() const override;
  void on_due(Time now) override;
  [[nodiscard]] bool ended() const override { return over_; }
  [[nodiscard]] std::string where_it_stands() const override;

  Host& host_;
  const std::uint32_t attempt_;
  std::vector<Writer> writers_;
  bool has_pages_ = false;
  std::vector<wire::KvPages> pages_;
  std::uint64_t prefix_tokens_ = 0;
  std::shared_ptr<const CoverageSum> coverage_;  ///< once all are registered
  std::vector<std::uint64_t> declared_;          ///< bytes per component, over all writers
  std::optional<std::uint32_t> source_pages_;    ///< of the kv pool at prefill, as declared
  bool pair_waits_ = false;                      ///< it began while the session to a rank was down
  Time pair_wait_until_ = kForever;  ///< how long it may wait for a writer's blacklisted session
  bool over_ = false;
};

}  // namespace kvmend::kv
