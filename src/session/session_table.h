// All outgoing sessions of an engine, and what they share: the probe budget and the engine's view
// of itself.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "health/ejection.h"
#include "health/probe_schedule.h"
#include "session/session.h"

namespace kvmend::session {

/// Loop thread.
class SessionTable final : private SessionHost {
 public:
  explicit SessionTable(const SessionHost::Parts& parts);
  ~SessionTable() override;

  /// The session to `peer`, created (and dialled) if need be. Errors: kResourceExhausted.
  Result<Session*> find_or_create(const Address& peer);
  [[nodiscard]] Session* find(const std::string& session_id) const;
  /// Runs a probe of its own, beside health's: for users who ask.
  void probe(const Address& peer, Time deadline, Probe::Done done);

  /// The loop stood still for `gap`.
  void on_gap(Duration gap);
  void for_each(const std::function<void(Session&)>& visit);
  void retire_all();
  [[nodiscard]] std::size_t size() const { return by_id_.size(); }
  [[nodiscard]] bool idle() const;

 private:
  const health::SelfView& self_view() const override { return ejection_.view(); }
  void schedule_probe(Session& session, Time when, bool demanded) override;
  void unschedule_probe(Session& session) override;
  void probe_finished() override;
  void blacklisted(Session& session) override;
  void lifted(Session& session) override;
  void retired(Session& session) override;
  health::Admission::Verdict admit_group(TransferGroup& group) override;
  void end_group(TransferGroup& group, const Status& why) override;
  [[nodiscard]] const Session* blacklisted_of(const TransferGroup& group) const override;
  ChunkId next_chunk_id() override { return ChunkId(++last_chunk_); }

  void run_probes();
  void arm_probes();
  void update_suspicion();

  health::ProbeBudget budget_;
  health::EjectionBudget ejection_;
  env::ScopedTimer probe_timer_;
  env::ScopedTimer suspicion_timer_;
  std::unordered_map<std::string, std::unique_ptr<Session>> by_id_;
  std::unordered_map<health::SessionKey, Session*> by_key_;
  std::vector<std::unique_ptr<Probe>> user_probes_;
  std::uint64_t last_key_ = 0;
  std::uint64_t last_chunk_ = 0;
  bool suspected_ = false;
  bool running_probes_ = false;
};

}  // namespace kvmend::session
