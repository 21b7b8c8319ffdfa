// What must hold after any sequence of events.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>

#include "health/session_health.h"

namespace kvmend::health {
namespace {

enum class Step : std::uint8_t {
  kWait,
  kConnect,
  kConnectOld,
  kLife,
  kTransfer,
  kFinish,
  kCancel,
  kFail,
  kFailLate,
  kMistake,
  kHello,
  kHelloNew,
  kAnswerNew,
  kRegister,
  kProbeStart,
  kProbePass,
  kProbePassNew,
  kProbeFail,
  kDemand,
  kPark,
  kUnpark,
  kTimer,
  kCount
};

/// Drives one session and checks every outcome against a small model.
class Checker {
 public:
  explicit Checker(std::uint64_t seed) : health_(options_, self_, seed, now_) {}

  void apply(Step step, std::uint32_t arg) {
    const State before = health_.state();
    const HealthCounters counted = health_.counters();
    const Outcome out = play(step, arg);
    RC_ASSERT(out.to == health_.state());
    check_moves(step, before, out);
    check_counters(counted, before, out);
    if (out.has(Action::kScheduleProbe)) {
      // One that waits in the budget already may be overdue; it keeps its place.
      RC_ASSERT(out.probe_at >= now_ || out.probe_at == queued_);
      queued_ = out.probe_at;
      RC_ASSERT(out.probe_at <=
                now_ + std::max(options_.probe_max_interval, options_.probe_demand_interval));
      // A healthy session asks only who stands there, when somebody says that it is another.
      RC_ASSERT(is_blacklisted(out.to) || out.event == Event::kPeerClaimed);
    }
    RC_ASSERT(health_.trial_needed() <= options_.trial_max_transfers);
    RC_ASSERT(health_.probation() <= options_.probation_max);
    RC_ASSERT(health_.history().size() <= options_.history_length);
    RC_ASSERT(health_.in_flight() == tickets_.size());
  }

 private:
  Outcome play(Step step, std::uint32_t arg) {
    const Incarnation peer = incarnation_;
    switch (step) {
      case Step::kConnect:
        return health_.on_connected(peer, health_.attempt(), now_);
      case Step::kConnectOld:
        return health_.on_connected(peer, health_.attempt() - 1, now_);
      case Step::kLife:
        return health_.on_life(now_);
      case Step::kTransfer: {
        const Admission admission = health_.admit();
        const State s = health_.state();
        RC_ASSERT(admission.verdict != Admission::Verdict::kDispatch || s == State::kHealthy ||
                  s == State::kSuspect || s == State::kProbing);
        if (admission.verdict == Admission::Verdict::kDispatch) {
          tickets_.push_back(admission.ticket);
        }
        return health_.on_demand(now_);
      }
      case Step::kFinish:
      case Step::kCancel: {
        if (tickets_.empty()) break;
        const Ticket ticket = tickets_[arg % tickets_.size()];
        tickets_.erase(tickets_.begin() + static_cast<std::ptrdiff_t>(arg % tickets_.size()));
        if (step == Step::kFinish) return health_.on_transfer_ok(ticket, now_);
        health_.release(ticket);
        break;
      }
      case Step::kFail:
      case Step::kFailLate:
      case Step::kMistake: {
        const Code code = step == Step::kMistake ? Code::kInvalidArgument
                          : arg % 2 == 0         ? Code::kConnectionReset
                                                 : Code::kPeerSilent;
        const Origin origin = step == Step::kMistake ? Origin::kCaller : Origin::kLink;
        const std::uint32_t attempt = health_.attempt() - (step == Step::kFailLate ? 1 : 0);
        if (step != Step::kMistake) last_failure_ = now_;
        return health_.on_failure({Status(code, origin, "x"), attempt, now_}, now_);
      }
      case Step::kHello:
        return health_.on_peer_hello(peer, now_);
      case Step::kHelloNew: {  // true or not: nothing changes by a word
        const State before = health_.state();
        const Incarnation known = health_.peer();
        const Outcome out = health_.on_peer_hello(Incarnation(++spoofed_), now_);
        RC_ASSERT(health_.state() == before && health_.peer() == known);
        RC_ASSERT(!out.has(Action::kDropLanes) && !out.has(Action::kFailOldPlan));
        return out;
      }
      case Step::kAnswerNew:
        ++incarnation_.value;
        return health_.on_peer_answered(incarnation_, now_);
      case Step::kRegister:
        return health_.on_new_registration(peer, now_);
      case Step::kProbeStart:
        probes_.push_back(now_);
        return health_.on_probe_started(now_);
      case Step::kProbePassNew:
        ++incarnation_.value;
        [[fallthrough]];
      case Step::kProbePass:
      case Step::kProbeFail: {
        if (probes_.empty()) break;
        const Time started = probes_[arg % probes_.size()];
        probes_.erase(probes_.begin() + static_cast<std::ptrdiff_t>(arg % probes_.size()));
        probe_started_ = started;
        if (step == Step::kProbeFail) {
          return health_.on_probe_failed(started, Status(Code::kPeerSilent, Origin::kPeer, "x"),
                                         now_);
        }
        return health_.on_probe_passed(started, incarnation_, now_);
      }
      case Step::kDemand:
        return health_.on_demand(now_);
      case Step::kPark:
        return health_.set_parked(1 + arg % 5, now_);
      case Step::kUnpark:
        return health_.set_parked(0, now_);
      case Step::kTimer:
        return health_.on_timer(now_);
      case Step::kWait:
      case Step::kCount:
        break;
    }
    now_ += std::chrono::milliseconds(arg % 700);
    if (arg % 97 == 0) now_ += options_.idle_timeout;
    return health_.on_timer(now_);
  }

  void check_moves(Step step, State before, const Outcome& out) {
    if (before == out.to) return;
    if (before == State::kFailed) {
      const bool probe = step == Step::kProbePass || step == Step::kProbePassNew;
      const bool idle = out.to == State::kRetired;
      RC_ASSERT(probe || step == Step::kRegister || idle);
      if (probe && !idle) RC_ASSERT(probe_started_ > last_failure_);
      if (!idle) RC_ASSERT(out.to == State::kProbing);
    }
    if (before == State::kProbing && out.to == State::kHealthy) {
      RC_ASSERT(step == Step::kFinish || step == Step::kProbePass);
    }
    RC_ASSERT(step != Step::kMistake);
  }

  void check_counters(const HealthCounters& was, State before, const Outcome& out) {
    const HealthCounters& is = health_.counters();
    const bool recovered = before == State::kProbing && out.to == State::kHealthy;
    RC_ASSERT(is.recoveries == was.recoveries + (recovered ? 1 : 0));
    RC_ASSERT(out.recovery.has_value() == recovered);
    if (recovered) {
      RC_ASSERT(out.recovery->time_to_recover >= Duration::zero());
      RC_ASSERT(out.recovery->time_to_detect >= Duration::zero());
      RC_ASSERT(!out.recovery->first_cause.is_ok());
    }
    RC_ASSERT(is.recoveries <= is.blacklistings);
  }

  HealthOptions options_;
  SelfView self_;
  Time now_ = Time{} + 1h;
  SessionHealth health_;
  Incarnation incarnation_{1};
  std::uint64_t spoofed_ = 1U << 20;
  std::vector<Ticket> tickets_;
  std::vector<Time> probes_;
  Time last_failure_ = Time::min();
  Time queued_ = kForever;
  Time probe_started_ = Time::min();
};

TEST(HealthInvariants, HoldAfterAnySequenceOfEvents) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    Checker checker(seed);
    JitterSource random(seed);
    const int length = *rc::gen::inRange(1, 400);
    for (int i = 0; i < length; ++i) {
      const std::uint64_t r = random.next();
      const auto step = static_cast<Step>(r % static_cast<std::uint64_t>(Step::kCount));
      checker.apply(step, static_cast<std::uint32_t>(r >> 32U));
      // Time moves between most events.
      if (r % 3 != 0) checker.apply(Step::kWait, 1 + static_cast<std::uint32_t>(r >> 40U) % 96);
    }
  }));
}

TEST(HealthInvariants, ProbationLengthensWithEveryRelapseUpToItsMaximum) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    const HealthOptions options;
    const SelfView self;
    Time now = Time{} + 1h;
    SessionHealth health(options, self, seed, now);
    health.on_connected(Incarnation{1}, 1, now);
    std::uint32_t needed = 0;
    Duration probation{};
    const int relapses = *rc::gen::inRange(1, 60);
    for (int i = 0; i < relapses; ++i) {
      health.on_failure({Status(Code::kPeerSilent, Origin::kPeer, "x"), health.attempt(), now},
                        now);
      RC_ASSERT(health.state() == State::kFailed);
      RC_ASSERT(health.trial_needed() >= needed && health.probation() >= probation);
      needed = health.trial_needed();
      probation = health.probation();
      now += 1s;
      health.on_probe_started(now);
      health.on_probe_passed(now, Incarnation{1}, now);
      RC_ASSERT(health.state() == State::kProbing);
      now += 1ms;
    }
    RC_ASSERT(needed <= options.trial_max_transfers && probation <= options.probation_max);
  }));
}

}  // namespace
}  // namespace kvmend::health
