// A small world for the timelines of health's tests: peers that can be stopped, cut off, killed and
// restarted; an owner that does what the outcomes say. Virtual time in steps of 1 ms. Not a
// simulation of the wire (that is sim/): only what health sees of it.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <vector>

#include "health/pair_health.h"
#include "health/probe_schedule.h"
#include "health/progress_watch.h"
#include "health/session_health.h"

namespace kvmend::health::testing {

enum class Peer : std::uint8_t { kUp, kStopped, kBlackHole, kRefusing };

struct Request {
  Time submitted;
  Time deadline;
  Time sent{};
  Ticket ticket{};
};

struct Probe {
  Time started;
  bool arrived;  ///< its connection reached the peer's host (a black hole swallows it)
};

struct Site {
  Peer mode = Peer::kUp;
  Incarnation incarnation{1};
  std::unique_ptr<SessionHealth> health;
  ProgressWatch watch;
  bool lanes_up = false;
  Time connecting_since = kForever;
  bool connect_arrived = false;
  std::deque<Request> flying;
  std::deque<Request> parked;
  std::vector<Probe> probes;
  std::size_t done = 0;
  std::size_t failed = 0;
  Time first_done_after_fault = kForever;
  Time fault_ended = kForever;
  std::vector<Recovery> recoveries;
};

class World {
 public:
  static constexpr Duration kService = 5ms;
  static constexpr Duration kRoundTrip = 1ms;

  explicit World(std::size_t peers, HealthOptions o = {}) : options(o) {
    for (std::size_t i = 0; i < peers; ++i) {
      Site& site = *sites.emplace_back(std::make_unique<Site>());
      site.health = std::make_unique<SessionHealth>(options, ejection.view(), i + 1, now);
      site.connecting_since = now;
      site.connect_arrived = true;
    }
    ejection.set_active(peers, now);
  }

  Site& at(std::size_t i) { return *sites[i]; }
  static SessionKey key_of(std::size_t i) { return SessionKey{i + 1}; }

  void submit(std::size_t i, Duration deadline = 30s) {
    Site& site = at(i);
    act(i, site.health->on_demand(now));
    dispatch(i, Request{now, now + deadline});
  }

  /// The peer changes its ways; what was connected to a killed one is reset.
  void set(std::size_t i, Peer mode) {
    Site& site = at(i);
    if (mode == Peer::kUp) {
      site.fault_ended = now;
      site.first_done_after_fault = kForever;
    }
    site.mode = mode;
    if (mode == Peer::kRefusing) reset(i);
  }

  void restart(std::size_t i) {
    ++at(i).incarnation.value;
    set(i, Peer::kUp);
  }

  /// Every connection of the session breaks once.
  void reset(std::size_t i) {
    Site& site = at(i);
    if (!site.lanes_up) return;
    const std::uint32_t attempt = site.health->attempt();
    for (int lane = 0; lane < 4; ++lane) fail(i, Code::kConnectionReset, attempt);
  }

  void run(Duration length, Duration every = 0ms, std::size_t to = 0) {
    const Time end = now + length;
    Time next_submit = now;
    while (now < end) {
      if (every > 0ms && now >= next_submit) {
        submit(to);
        next_submit += every;
      }
      step();
      now += 1ms;
    }
  }

  HealthOptions options;
  EjectionBudget ejection{options};
  ProbeBudget budget{options};
  Time now = Time{} + 1h;
  std::vector<std::unique_ptr<Site>> sites;

 private:
  void fail(std::size_t i, Code code, std::uint32_t attempt) {
    act(i, at(i).health->on_failure({Status(code, Origin::kPeer, "world"), attempt, now}, now));
  }

  void dispatch(std::size_t i, Request request) {
    Site& site = at(i);
    const Admission admission = site.health->admit();
    switch (admission.verdict) {
      case Admission::Verdict::kDispatch:
        request.sent = now;
        request.ticket = admission.ticket;
        site.flying.push_back(request);
        site.watch.begin(now);
        break;
      case Admission::Verdict::kPark:
        site.parked.push_back(request);
        act(i, site.health->set_parked(site.parked.size(), now));
        break;
      case Admission::Verdict::kRefuse:
        ++site.failed;
        break;
    }
  }

  void act(std::size_t i, const Outcome& out) {
    Site& site = at(i);
    if (out.has(Action::kDropLanes)) {
      site.lanes_up = false;
      site.connecting_since = kForever;
      site.watch.end();
      if (out.to == State::kFailed) park_flying(i);
    }
    if (out.has(Action::kFailOldPlan)) {
      site.failed += site.flying.size();
      for (const Request& r : site.flying) site.health->release(r.ticket);
      site.flying.clear();
    }
    if (out.has(Action::kCancelProbes)) {
      for (std::size_t n = 0; n < site.probes.size(); ++n) budget.finished();
      site.probes.clear();
      budget.remove(key_of(i));
    }
    if (out.has(Action::kReconnect)) {
      site.connecting_since = now;
      site.connect_arrived = site.mode != Peer::kBlackHole;
    }
    if (out.has(Action::kScheduleProbe)) {
      budget.schedule(key_of(i), out.probe_at, out.probe_demanded);
    }
    if (out.has(Action::kHeartbeat)) site.watch.begin(now);
    if (out.has(Action::kAnnounceBlacklisted)) ejection.on_blacklisted(key_of(i), now);
    if (out.has(Action::kAnnounceRecovered)) {
      ejection.on_lifted(key_of(i), now);
      site.recoveries.push_back(*out.recovery);
    }
    if (out.has(Action::kFailParked)) {
      site.failed += site.parked.size();
      site.parked.clear();
      act(i, site.health->set_parked(0, now));
    }
    if (out.has(Action::kReleaseParked)) release_parked(i);
  }

  void park_flying(std::size_t i) {
    Site& site = at(i);
    for (const Request& r : site.flying) {
      site.health->release(r.ticket);
      site.parked.push_back(r);
    }
    site.flying.clear();
    act(i, site.health->set_parked(site.parked.size(), now));
  }

  void release_parked(std::size_t i) {
    Site& site = at(i);
    while (!site.parked.empty()) {
      const Admission admission = site.health->admit();
      if (admission.verdict != Admission::Verdict::kDispatch) break;
      Request r = site.parked.front();
      site.parked.pop_front();
      r.sent = now;
      r.ticket = admission.ticket;
      site.flying.push_back(r);
      site.watch.begin(now);
    }
    act(i, site.health->set_parked(site.parked.size(), now));
  }

  void step() {
    while (const auto key = budget.take(now)) start_probe(key->value - 1);
    for (std::size_t i = 0; i < sites.size(); ++i) {
      step_probes(i);
      step_connect(i);
      step_transfers(i);
      expire(i);
      if (now >= at(i).health->next_timer()) act(i, at(i).health->on_timer(now));
    }
    ejection.on_timer(now);
  }

  void start_probe(std::size_t i) {
    Site& site = at(i);
    site.probes.push_back({now, site.mode != Peer::kBlackHole});
    act(i, site.health->on_probe_started(now));
  }

  void step_probes(std::size_t i) {
    Site& site = at(i);
    for (std::size_t n = 0; n < site.probes.size();) {
      const Probe probe = site.probes[n];
      const bool answered =
          site.mode == Peer::kUp && probe.arrived && now >= probe.started + 2 * kRoundTrip;
      const bool refused = site.mode == Peer::kRefusing && now >= probe.started + kRoundTrip;
      const bool late = now >= probe.started + options.probe_deadline;
      if (!answered && !refused && !late) {
        ++n;
        continue;
      }
      site.probes.erase(site.probes.begin() + static_cast<std::ptrdiff_t>(n));
      budget.finished();
      SessionHealth& h = *site.health;
      if (answered) {
        act(i, h.on_probe_passed(probe.started, site.incarnation, now));
      } else {
        const Code code = refused ? Code::kConnectionRefused : Code::kPeerSilent;
        act(i, h.on_probe_failed(probe.started, Status(code, Origin::kPeer, "probe"), now));
      }
      n = 0;  // the outcome may have cancelled the others
    }
  }

  void step_connect(std::size_t i) {
    Site& site = at(i);
    if (site.connecting_since == kForever || now < site.connecting_since + kRoundTrip) return;
    const std::uint32_t attempt = site.health->attempt();
    if (site.mode == Peer::kRefusing) {
      fail(i, Code::kConnectionRefused, attempt);
    } else if (site.mode == Peer::kUp && site.connect_arrived) {
      site.connecting_since = kForever;
      site.lanes_up = true;
      for (Request& r : site.flying) r.sent = now;  // again, on the new epoch
      if (!site.flying.empty()) site.watch.begin(now);
      act(i, site.health->on_connected(site.incarnation, attempt, now));
    } else if (now >= site.connecting_since + options.probe_deadline) {
      fail(i, Code::kPeerSilent, attempt);
    }
  }

  void step_transfers(std::size_t i) {
    Site& site = at(i);
    if (site.lanes_up && site.mode == Peer::kUp) {
      if (site.flying.empty()) {
        if (site.watch.deadline(options, 1) != kForever) {
          site.watch.end();
          act(i, site.health->on_life(now));  // the heartbeat's answer
        }
      }
      while (!site.flying.empty() && now >= site.flying.front().sent + kService) {
        const Request r = site.flying.front();
        site.flying.pop_front();
        ++site.done;
        if (site.fault_ended != kForever) {
          site.first_done_after_fault = std::min(site.first_done_after_fault, now);
        }
        site.watch.progress(now);
        if (site.flying.empty()) site.watch.end();
        act(i, site.health->on_transfer_ok(r.ticket, now));
      }
    }
    if (site.lanes_up && now >= site.watch.deadline(options, ejection.view().stretch)) {
      fail(i, Code::kPeerSilent, site.health->attempt());
    }
  }

  void expire(std::size_t i) {
    Site& site = at(i);
    const std::size_t before = site.parked.size();
    std::erase_if(site.parked, [&](const Request& r) { return now >= r.deadline; });
    std::size_t gone = before - site.parked.size();
    if (gone > 0) act(i, site.health->set_parked(site.parked.size(), now));
    bool room = false;
    std::erase_if(site.flying, [&](const Request& r) {
      if (now < r.deadline) return false;
      room = site.health->release(r.ticket) || room;
      ++gone;
      return true;
    });
    site.failed += gone;
    if (room) release_parked(i);
  }
};

}  // namespace kvmend::health::testing
