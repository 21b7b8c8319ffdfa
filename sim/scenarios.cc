#include "sim/scenarios.h"

#include <array>
#include <memory>

#include "sim/chaos.h"
#include "sim/content.h"
#include "sim/ghost.h"
#include "sim/grant_rooms.h"
#include "sim/kv_rooms.h"
#include "sim/monitor.h"
#include "sim/raw_load.h"
#include "sim/reach.h"
#include "sim/scenario_run.h"

namespace kvmend::sim {
namespace {

using namespace std::chrono_literals;
using enum Trouble;

const std::vector<Trouble> kLinks{kDelay,  kLoss,      kLoss,      kSlow,   kReset, kReset,
                                  kOneWay, kBlackHole, kSilentSyn, kRefuse, kPause};
const std::vector<Trouble> kEverything{kDelay,     kLoss,        kSlow,          kReset, kOneWay,
                                       kBlackHole, kSilentSyn,   kRefuse,        kPause, kClockJump,
                                       kCrash,     kHoldAccepts, kFewDescriptors};
const std::vector<Trouble> kDeaths{kCrash, kCrash, kPause, kBlackHole, kReset, kOneWay};
const std::vector<Trouble> kSilences{kOneWay, kOneWay, kBlackHole, kBlackHole,
                                     kPause,  kReset,  kSlow};

Report kv(std::uint64_t seed) {
  Run run("kv", seed, {.prefill = 2, .decode = 2, .pool = KvRooms::pool_bytes()});
  KvRooms& rooms = run.add_kv({});
  run.add_chaos(kLinks);
  return run.finish(rooms);
}

Report kv_storm(std::uint64_t seed) {
  const std::size_t prefill = 1 + mix(seed, 1) % 3;
  const std::size_t decode = 1 + mix(seed, 2) % 4;
  Run run("kv_storm", seed, {.prefill = prefill, .decode = decode, .pool = KvRooms::pool_bytes()});
  KvRooms& rooms = run.add_kv({});
  run.add_chaos(kEverything);
  run.add_ghost();
  return run.finish(rooms);
}

Report kv_restart(std::uint64_t seed) {
  Run run("kv_restart", seed, {.prefill = 1, .decode = 2, .pool = KvRooms::pool_bytes()});
  KvRooms& rooms = run.add_kv({});
  run.add_chaos(kDeaths);
  return run.finish(rooms);
}

Report kv_abort(std::uint64_t seed) {
  Run run("kv_abort", seed, {.prefill = 2, .decode = 1, .pool = KvRooms::pool_bytes()});
  KvRoomsOptions options;
  options.abort_share = 0.7;
  options.gap = 45ms;
  KvRooms& rooms = run.add_kv(options);
  run.add_chaos({kSlow, kSlow, kDelay, kPause, kReset, kOneWay});
  return run.finish(rooms);
}

// Every room is aborted by decode, most while their bytes crawl over a throttled link (case I2):
// nothing may land in a page that has been given away, and it is given away at once.
Report throttled_abort(std::uint64_t seed) {
  Run run("throttled_abort", seed,
          {.prefill = 2,
           .decode = 2,
           .pool = KvRooms::pool_bytes(),
           .slow_link = 3e5 * static_cast<double>(1 + mix(seed, 3) % 5)});
  KvRoomsOptions options;
  options.abort_share = 1;
  options.abort_within = 60ms;
  options.decode_aborts = true;
  options.no_sender_share = 0;
  options.gap = 6ms;
  options.late = 2ms;
  KvRooms& rooms = run.add_kv(options);
  Report report = run.finish(rooms);
  report.aborted_midway = rooms.aborted_midway();
  return report;
}

// As many deaths and aborts as possible while bytes are under way.
Report churn(std::uint64_t seed) {
  Run run("churn", seed, {.prefill = 2, .decode = 2, .pool = KvRooms::pool_bytes()});
  KvRoomsOptions options;
  options.abort_share = 0.7;
  options.gap = 15ms;
  KvRooms& rooms = run.add_kv(options);
  run.add_chaos({kCrash, kCrash, kCrash, kSlow}, 60ms, 300ms);
  return run.finish(rooms);
}

// Writes land past the grants, up to seconds after they were given up; endpoints can be destroyed.
Report one_sided(std::uint64_t seed) {
  Run run("one_sided", seed, {.prefill = 2, .decode = 2, .pool = KvRooms::pool_bytes()});
  KvRoomsOptions options;
  options.abort_share = 0.5;
  options.one_sided = OneSidedOptions{};
  options.kv.quarantine_share = 0.5;
  KvRooms& rooms = run.add_kv(options);
  run.add_chaos({kDelay, kLoss, kReset, kOneWay, kBlackHole, kPause, kCrash, kSlow});
  return run.finish(rooms);
}

// A foreign engine: a failed write says nothing, and nothing but a time or a death ends the wait.
Report foreign(std::uint64_t seed) {
  Run run("foreign", seed, {.prefill = 2, .decode = 2, .pool = KvRooms::pool_bytes()});
  KvRoomsOptions options;
  options.abort_share = 0.5;
  options.one_sided = OneSidedOptions{.tells_the_truth = false};
  options.kv.quarantine_share = 0.5;
  options.kv.quarantine_unproven_after = 10s;
  KvRooms& rooms = run.add_kv(options);
  run.add_chaos({kDelay, kReset, kCrash});
  return run.finish(rooms);
}

// No fault at all, but the smallest windows and buffers: everything must succeed (case R10).
Report kv_tight(std::uint64_t seed) {
  Run run("kv_tight", seed,
          {.prefill = 2, .decode = 2, .pool = KvRooms::pool_bytes(), .tight = true});
  KvRoomsOptions options;
  options.abort_share = 0;
  options.no_sender_share = 0;
  options.gap = 40ms;
  KvRooms& rooms = run.add_kv(options);
  return run.finish(rooms, /*all_must_succeed=*/true);
}

// One prefill with two or three decode ranks, or two prefill stages with one decode: while the
// session to one of them is down, new rooms wait as one (case R11).
Report pair(std::uint64_t seed) {
  const std::size_t shape = mix(seed, 5) % 3;
  const std::size_t prefill = shape == 2 ? 2 : 1;
  const std::size_t decode = shape == 2 ? 1 : 2 + shape;
  Run run("pair", seed, {.prefill = prefill, .decode = decode, .pool = KvRooms::pool_bytes()});
  PairRooms& rooms = run.add_pairs();
  run.add_chaos({kOneWay, kOneWay, kBlackHole, kBlackHole, kPause, kReset, kDelay}, 500ms, 15s);
  return run.finish(rooms);
}

Report rooms(std::uint64_t seed) {
  Run run("rooms", seed, {.prefill = 3, .pool = GrantRooms::pool_bytes()});
  GrantRooms& load = run.add_grant_rooms({.gap = 55ms});
  run.add_chaos(kSilences);
  return run.finish(load);
}

Report rooms_storm(std::uint64_t seed) {
  Run run("rooms_storm", seed, {.prefill = 3, .pool = GrantRooms::pool_bytes()});
  GrantRooms& load = run.add_grant_rooms({});
  run.add_chaos(kEverything);
  return run.finish(load);
}

// Bytes land and the word of it is lost, again and again (case I9).
Report lost_acks(std::uint64_t seed) {
  Run run("lost_acks", seed, {.prefill = 2, .pool = GrantRooms::pool_bytes()});
  GrantRoomOptions options;
  options.gap = 36ms;
  options.abort_share = 0.02;
  options.thief_share = 0;
  options.deadline_min = 5s;
  GrantRooms& load = run.add_grant_rooms(options);
  run.add_chaos({kReset, kReset, kReset, kReset, kReset, kReset, kOneWay, kOneWay, kDelay}, 100ms);
  return run.finish(load);
}

Report corrupt(std::uint64_t seed) {
  Run run("corrupt", seed, {.prefill = 3, .pool = GrantRooms::pool_bytes()});
  GrantRoomOptions options;
  options.checksum = true;
  options.corrupt_links = true;
  GrantRooms& load = run.add_grant_rooms(options);
  run.add_chaos({kCorrupt, kCorrupt, kReset, kDelay});
  return run.finish(load);
}

// Both at once: a chunk that has landed comes again, and that copy is corrupt.
Report corrupt_retries(std::uint64_t seed) {
  Run run("corrupt_retries", seed, {.prefill = 2, .pool = GrantRooms::pool_bytes()});
  GrantRoomOptions options;
  options.gap = 25ms;
  options.abort_share = 0.1;
  options.thief_share = 0;
  options.deadline_min = 5s;
  options.checksum = true;
  options.corrupt_links = true;
  GrantRooms& load = run.add_grant_rooms(options);
  run.add_chaos({kReset, kReset, kReset, kOneWay, kDelay, kCorrupt, kCorrupt}, 100ms);
  return run.finish(load);
}

Report raw(std::uint64_t seed) {
  Run run("raw", seed, {.prefill = 2, .pool = RawLoad::pool_bytes()});
  RawLoad& load = run.add_raw({});
  run.add_chaos(kSilences);
  return run.finish(load);
}

Report raw_restart(std::uint64_t seed) {
  Run run("raw_restart", seed, {.prefill = 3, .pool = RawLoad::pool_bytes()});
  RawLoad& load = run.add_raw({});
  run.add_chaos(kDeaths);
  return run.finish(load);
}

Report raw_tight(std::uint64_t seed) {
  Run run("raw_tight", seed, {.prefill = 3, .pool = RawLoad::pool_bytes(), .tight = true});
  RawOptions options;
  options.cancel_share = 0;
  options.deadline_min = 20s;
  options.deadline_max = 20s;
  RawLoad& load = run.add_raw(options);
  return run.finish(load, /*all_must_succeed=*/true);
}

Report reregister(std::uint64_t seed) {
  Run run("reregister", seed, {.prefill = 2, .pool = RawLoad::pool_bytes()});
  RawOptions options;
  options.reregister_share = 0.1;
  RawLoad& load = run.add_raw(options);
  run.add_chaos({kSlow, kDelay, kReset, kPause});
  return run.finish(load);
}

Report hello(std::uint64_t seed) {
  Run run("hello", seed, {.prefill = 3, .pool = RawLoad::pool_bytes()});
  RawLoad& load = run.add_raw({});
  run.add_chaos({kHoldAccepts, kPause, kReset, kSilentSyn, kBlackHole});
  run.add_ghost();
  return run.finish(load);
}

// Small packets pass, large ones vanish: a control port that answers proves nothing.
Report small_only(std::uint64_t seed) {
  Run run("small_only", seed, {.prefill = 2, .pool = RawLoad::pool_bytes()});
  RawLoad& load = run.add_raw({});
  run.add_chaos({kSmallOnly, kSmallOnly, kSmallOnly, kReset}, 700ms, 20s);
  return run.finish(load);
}

Report starved(std::uint64_t seed) {
  Run run("starved", seed, {.prefill = 3, .pool = RawLoad::pool_bytes()});
  RawLoad& load = run.add_raw({});
  run.add_chaos({kFewDescriptors, kFewDescriptors, kReset, kClockJump, kPause});
  return run.finish(load);
}

constexpr std::array kScenarios{
    Scenario{"kv", "rooms through the KV manager; troubled links and stops", kv},
    Scenario{"kv_storm", "1-3 prefill, 1-4 decode processes; every trouble, and a stranger",
             kv_storm},
    Scenario{"kv_restart", "processes die and restart at the same address", kv_restart},
    Scenario{"kv_abort", "most rooms are aborted while bytes are under way", kv_abort},
    Scenario{"throttled_abort", "decode aborts every room in the middle of a throttled write",
             throttled_abort},
    Scenario{"churn", "a death every 60 ms, and most rooms are aborted", churn},
    Scenario{"one_sided", "writes land past the grants; aborts, restarts, silences", one_sided},
    Scenario{"foreign", "the same over an engine whose failed writes go on unseen", foreign},
    Scenario{"kv_tight", "no fault, smallest windows and buffers: all must succeed", kv_tight},
    Scenario{"pair", "rooms of several ranks, some of them out of reach", pair},
    Scenario{"rooms", "one grant per room, decided by landed bytes; silent peers", rooms},
    Scenario{"rooms_storm", "the same; every trouble", rooms_storm},
    Scenario{"lost_acks", "acknowledgements get lost: retries of what has landed", lost_acks},
    Scenario{"corrupt", "flipped bits under checksums", corrupt},
    Scenario{"corrupt_retries", "flipped bits in what is sent again", corrupt_retries},
    Scenario{"raw", "the raw API; silent peers: old epochs must stay out", raw},
    Scenario{"raw_restart", "the raw API; restarts: old plans must stay out", raw_restart},
    Scenario{"raw_tight", "no fault, smallest windows and buffers: all must succeed", raw_tight},
    Scenario{"reregister", "regions go and come while writes are under way", reregister},
    Scenario{"hello", "old hellos in backlogs, a stranger with stale ones", hello},
    Scenario{"small_only", "handshakes pass, data doesn't", small_only},
    Scenario{"starved", "few descriptors, clock jumps", starved},
    Scenario{"returning", "a dozen black holes, one comes back", run_returning},
};

}  // namespace

std::span<const Scenario> scenarios() {
  return kScenarios;
}

const Scenario* find_scenario(std::string_view name) {
  for (const Scenario& scenario : kScenarios)
    if (scenario.name == name) return &scenario;
  return nullptr;
}

}  // namespace kvmend::sim
