// The initiator's side of one session: what is queued, what is in flight, and its recovery. Health
// decides, the session acts.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "env/event_loop.h"
#include "health/ejection.h"
#include "health/progress_watch.h"
#include "health/session_health.h"
#include "kvmend/engine.h"
#include "memory/remote_regions.h"
#include "session/control_outbox.h"
#include "session/epoch_lanes.h"
#include "session/events.h"
#include "session/probe.h"
#include "session/self.h"
#include "session/transfer_state.h"

namespace kvmend::session {

class Session;

/// What the sessions of an engine share; the table implements the hooks. Loop thread.
class SessionHost {
 public:
  struct Parts {
    env::EventLoop& loop;
    env::Random& random;
    transport::Transport& transport;
    const Self& self;
    const health::HealthOptions& health_options;
    SessionEvents& events;
  };

  explicit SessionHost(const Parts& parts)
      : loop(parts.loop),
        random(parts.random),
        transport(parts.transport),
        self(parts.self),
        health_options(parts.health_options),
        events(parts.events) {}
  virtual ~SessionHost() = default;

  env::EventLoop& loop;
  env::Random& random;
  transport::Transport& transport;
  const Self& self;
  const health::HealthOptions& health_options;
  SessionEvents& events;

  virtual const health::SelfView& self_view() const = 0;
  virtual void schedule_probe(Session& session, Time when, bool demanded) = 0;
  virtual void unschedule_probe(Session& session) = 0;
  virtual void probe_finished() = 0;
  virtual void blacklisted(Session& session) = 0;
  virtual void lifted(Session& session) = 0;
  virtual void retired(Session& session) = 0;
  /// What all sessions hold of transfers that aren't over.
  struct Load {
    std::size_t transfers = 0;
    std::size_t pieces = 0;
  };
  Load load;

  /// Admits all members of the group that aren't yet, or none, or ends them (kRefuse).
  virtual health::Admission::Verdict admit_group(TransferGroup& group) = 0;
  /// Ends all members that aren't admitted.
  virtual void end_group(TransferGroup& group, const Status& why) = 0;
  /// Why a member of the group isn't admitted: the first blacklisted session among those of its
  /// members that wait; null: there is none.
  [[nodiscard]] virtual const Session* blacklisted_of(const TransferGroup& group) const = 0;

  /// Numbers of chunks are unique per engine.
  virtual ChunkId next_chunk_id() = 0;
};

using TransferPtr = std::shared_ptr<TransferState>;

/// Loop thread throughout.
class Session final : private EpochEvents {
 public:
  Session(SessionHost& host, Address peer, health::SessionKey key);
  ~Session() override;

  [[nodiscard]] const std::string& id() const { return id_; }
  [[nodiscard]] const Address& peer() const { return peer_; }
  [[nodiscard]] health::SessionKey key() const { return key_; }
  [[nodiscard]] health::State state() const { return health_.state(); }
  /// Who answers there; unset before the first handshake.
  [[nodiscard]] Incarnation incarnation() const { return health_.peer(); }
  /// Whom raw users mean: the first incarnation seen, or the one of the last `open`.
  [[nodiscard]] Incarnation pinned() const { return pinned_; }
  /// The peer's regions for raw users; null before they are known. The snapshot may go to any
  /// thread.
  [[nodiscard]] std::shared_ptr<const memory::RemoteRegions> remote_regions() const {
    return regions_;
  }

  /// Queues a transfer; its end comes through `on_done`. Beyond config::kMaxTransfersPerSession,
  /// kMaxTransfers or kMaxPieces that is kResourceExhausted (local) at once.
  void submit(const TransferPtr& transfer);
  /// Ends a transfer; its memory isn't touched after this returns.
  void finish(const TransferPtr& transfer, const Status& status);
  /// Queues a reliable control message; one of the same `key` (not empty) that waits is replaced.
  /// Errors: kResourceExhausted, kPeerRestarted.
  Status send_control(const wire::Control& control, Incarnation target, std::string key = {});

  using Opened = std::move_only_function<void(const Status&)>;
  /// Connects if need be and pins the session to whoever answers; `opened` runs once.
  void open(Time deadline, Opened opened);

  /// Hints, from lanes that somebody opened in the peer's name: they make the session ask.
  void on_peer_hello(Incarnation incarnation);
  void on_new_registration(Incarnation incarnation);

  /// The budget permits a probe now.
  void start_probe();
  /// The loop stood still: forgive silence and look whether the peers are there.
  void on_gap();
  /// Runs timers that are due (called by the table when time was forgiven or options changed).
  void retire();
  /// Ends every transfer that uses local memory in [base, base + length).
  void fail_users_of(const std::byte* base, std::uint64_t length, const Status& why);
  void fail_all(const Status& why);
  void say_goodbye(const std::string& reason);

  /// Whether the session is blacklisted and requests may not wait for it.
  [[nodiscard]] bool refuses();
  /// Why: health's refusal, naming the session.
  [[nodiscard]] Status refusal() const;
  [[nodiscard]] bool idle() const { return transfers_.empty(); }
  [[nodiscard]] std::size_t transfers() const { return transfers_.size(); }
  [[nodiscard]] SessionInfo info() const;
  [[nodiscard]] const health::SessionHealth& health() const { return health_; }

  // ---- for the table, which admits the transfers of a group
  [[nodiscard]] health::SessionHealth& health_of_group() { return health_; }
  void admitted(const TransferPtr& transfer, health::Ticket ticket);

 private:
  struct InFlight {
    TransferPtr transfer;
    ChunkSpan span;
  };
  struct Opening {
    Time deadline;
    Opened opened;
  };

  // EpochEvents
  void on_epoch_up(const wire::HelloAck& ack) override;
  void on_epoch_rejected(const wire::HelloReject& reject) override;
  void on_epoch_down(const Status& why) override;
  void on_chunk_done(const wire::AckEntry& result) override;
  void on_remnant_over() override { schedule_pump(); }
  void on_control(Bytes body) override;
  void on_goodbye(const std::string& reason);
  void watch_process(const wire::HelloAck& ack);
  void on_control_ack(std::uint64_t seq) override;
  void on_pong() override;

  void apply(const health::Outcome& outcome, const Status& cause = {});
  void failed(const Status& why);
  void note_problem(const Status& why);
  [[nodiscard]] std::string last_error() const;
  void lost_epoch(const Status& why);
  void reconnect_later();
  void handed_on(const std::vector<TransferId>& told);
  void ask_for_regions();
  void await_newer_table(const TransferPtr& transfer, const Status& otherwise);
  void open_epoch();
  void drop_epoch();
  void fail_old_plan();
  void cancel_probes();
  [[nodiscard]] bool puts_probe_off(Time now);
  void unadmit_all();
  void limit_parking();
  void probe_done(Probe* probe, const ProbeResult& result);

  void schedule_pump();
  void pump();
  bool ready_to_send(const TransferPtr& transfer);
  bool admit(const TransferPtr& transfer);
  void park_for_pair(const TransferPtr& transfer);
  void unpark_for_pair(const TransferPtr& transfer);
  bool translate(const TransferPtr& transfer);
  void split_at_regions(TransferState& transfer);
  void enqueue(const TransferPtr& transfer, bool front);
  void data_complete(const TransferPtr& transfer);
  void send_waiting_control();
  void update_parked();
  void update_watch();
  [[nodiscard]] Time silent_at() const;
  void index_deadline(const TransferPtr& transfer, Time when);
  void arm();
  void arm_tick(Time when);
  void on_tick();
  void settle_if_usable();
  void settle_openings(const Status& status);
  [[nodiscard]] Status room_for(const TransferState& transfer) const;
  void hold(TransferState& transfer);
  [[nodiscard]] Status not_the_one_meant() const;
  [[nodiscard]] Status expired(const TransferState& transfer) const;
  [[nodiscard]] Status chunk_error(const InFlight& chunk, const wire::AckEntry& result) const;
  [[nodiscard]] bool window_open() const;
  [[nodiscard]] std::uint32_t bytes_of_next_chunk(const TransferState& transfer) const;

  SessionHost& host_;
  Address peer_;
  std::string id_;
  health::SessionKey key_;
  health::SessionHealth health_;
  health::ProgressWatch control_watch_;  // the epoch watches its data lanes itself
  Incarnation pinned_;
  Incarnation announced_;  // last incarnation reported upward

  std::unique_ptr<transport::ProcessWatch> process_watch_;
  Incarnation watched_;

  std::unique_ptr<EpochLanes> epoch_;
  std::uint64_t next_epoch_ = 1;
  std::uint32_t epoch_attempt_ = 0;
  bool heard_ = false;  // something acknowledged on this epoch
  std::uint64_t control_received_ = 0;
  bool pinging_ = false;
  env::ScopedTimer reconnect_timer_;
  Duration reconnect_delay_{};
  int restarts_in_a_row_ = 0;  // handshakes that met another process

  std::unordered_map<TransferId, TransferPtr> transfers_;
  std::list<TransferPtr> queue_;  // transfers with something unsent, oldest first
  std::list<TransferPtr> urgent_;
  // This session could send them, another one of their group can't: tried again by that one.
  std::list<TransferPtr> pair_parked_;
  std::unordered_map<ChunkId, InFlight> in_flight_;
  std::uint64_t in_flight_bytes_ = 0;
  std::size_t admitted_ = 0;
  std::set<std::pair<Time, TransferId>> deadlines_;
  ControlOutbox outbox_;
  Incarnation outbox_target_;  // whom the waiting messages are for; unset: whoever answers
  std::shared_ptr<const memory::RemoteRegions> regions_;
  memory::RemoteRegionsBuilder regions_builder_;
  std::uint64_t tables_received_ = 0;
  bool table_asked_ = false;   // a question is out, on this epoch
  bool table_wanted_ = false;  // somebody asks again when its answer has come

  std::vector<std::unique_ptr<Probe>> probes_;
  bool probe_anyway_ = false;  // news since the last probe began: the next one isn't put off
  std::vector<Opening> openings_;
  env::ScopedTimer tick_;
  bool pump_scheduled_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

  // For people.
  Status last_problem_;  // of the way to the peer; also what isn't the peer's fault
  std::uint64_t bytes_written_ = 0;
  std::uint64_t bytes_read_ = 0;
  std::uint64_t ok_ = 0;
  std::uint64_t failed_ = 0;
  std::uint64_t retries_ = 0;
  Duration last_detect_{};
  Duration last_recover_{};
};

}  // namespace kvmend::session
