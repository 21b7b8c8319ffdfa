// One room on the decode side: grants out, pages in, and the only place that decides Success
// (safety rule 2). Loop thread; everything runs to completion.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "env/event_loop.h"
#include "kv/registrations.h"
#include "kv/repeat.h"
#include "kv/role.h"

namespace kvmend::kv {

class DecodeRoom : public std::enable_shared_from_this<DecodeRoom> {
 public:
  class Host {
   public:
    virtual ~Host() = default;
    /// The room is over: its grants are closed and its status is published. `told`: how many
    /// writers have been told of a failure and will acknowledge it.
    virtual void on_room_over(DecodeRoom& room, const Status& result, std::uint32_t told) = 0;
  };

  /// `attempt` is unique among the rooms of this manager.
  DecodeRoom(const Surroundings& around, Host& host, std::shared_ptr<RoomHandle> handle,
             std::uint32_t attempt, const std::vector<Peer>& writers);

  void start();
  void init();
  /// The destination pages, checked. They are announced to every writer that has taken our layout.
  void set_pages(std::vector<wire::KvPages> pages, std::uint64_t prefix_tokens);

  void on_registration(const Registration& registration);
  void on_registration_lost(const std::string& session_id);
  void on_status(const Peer& from, const wire::KvRoomStatus& message);
  void on_done(const Peer& from, const wire::KvRoomDone& message);
  void on_abort(const Peer& from, const wire::KvRoomAbort& message);
  void on_peer_incarnation(const std::string& session_id, Incarnation now);
  void fail(Status why);

  [[nodiscard]] const std::shared_ptr<RoomHandle>& handle() const { return handle_; }
  [[nodiscard]] std::uint32_t attempt() const { return attempt_; }
  [[nodiscard]] std::vector<std::string> writer_sessions() const;

 private:
  struct Writer {
    Peer peer;  ///< the incarnation is set once it has taken our layout
    bool registered = false;
    GrantId grant;      ///< set once the pages are announced to it
    bool done = false;  ///< everything it declared has landed
    bool gone = false;  ///< don't tell it: it said so itself, or is another process now
    Repeat repeat;      ///< of the metadata, until it answers
  };

  Writer* find(const Peer& peer);
  void announce(Writer& writer);
  void send_metadata(Writer& writer);
  [[nodiscard]] memory::Grant make_grant(const Writer& writer) const;
  /// Safety rule 2 and case I8. False when the room has failed over it.
  bool check_declared(const Writer& writer, const wire::KvRoomDone& message);
  void complete_if_done();
  void close_grants(memory::GrantEnd how);
  void arm();
  void on_timer();
  [[nodiscard]] std::string where_it_stands() const;

  const Surroundings& around_;
  Host& host_;
  const std::shared_ptr<RoomHandle> handle_;
  const std::uint32_t attempt_;
  std::vector<Writer> writers_;
  bool has_pages_ = false;
  std::vector<wire::KvPages> pages_;
  std::uint64_t prefix_tokens_ = 0;
  std::vector<std::uint64_t> declared_;  ///< bytes per component, over all writers
  bool over_ = false;
  Time deadline_;
  env::ScopedTimer timer_;
};

}  // namespace kvmend::kv
