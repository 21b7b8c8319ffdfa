// For unit tests only: engines that live on one hand-driven loop with virtual time. Real region and
// grant tables, so a write lands only where the receiver's grant lets it; everything else is
// steered by the test: messages can be lost or written by hand, writes held back, processes
// replaced.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kv/engine_port.h"
#include "wire/kv_messages.h"

namespace kvmend::kv {

class FakeLoop final : public env::EventLoop {
 public:
  [[nodiscard]] Time now() const override { return now_; }
  void post(env::Task task) override { posted_.push_back(std::move(task)); }
  env::TimerId add_timer(Time when, env::Task task) override {
    timers_.emplace(std::pair{when, ++last_timer_}, std::move(task));
    when_[last_timer_] = when;
    return {last_timer_};
  }
  void cancel_timer(env::TimerId timer) override {
    const auto at = when_.find(timer.value);
    if (at == when_.end()) return;
    timers_.erase({at->second, timer.value});
    when_.erase(at);
  }
  void at_end_of_turn(env::Task task) override { post(std::move(task)); }
  [[nodiscard]] bool in_loop_thread() const override { return true; }

  /// Runs the next posted task. False when there is none.
  bool step() {
    if (posted_.empty()) return false;
    env::Task task = std::move(posted_.front());
    posted_.pop_front();
    task();
    return true;
  }
  void settle() {
    while (step()) {
    }
  }
  /// Lets time pass, running timers and tasks in order.
  void advance(Duration by) {
    const Time until = now_ + by;
    settle();
    while (!timers_.empty() && timers_.begin()->first.first <= until) {
      const auto at = timers_.begin();
      now_ = std::max(now_, at->first.first);
      env::Task task = std::move(at->second);
      when_.erase(at->first.second);
      timers_.erase(at);
      task();
      settle();
    }
    now_ = until;
  }
  [[nodiscard]] std::size_t timers() const { return timers_.size(); }

 private:
  Time now_{std::chrono::seconds{1'000}};
  std::deque<env::Task> posted_;
  std::map<std::pair<Time, std::uint64_t>, env::Task> timers_;
  std::map<std::uint64_t, Time> when_;
  std::uint64_t last_timer_ = 0;
};

class FakeNet;

/// One engine process.
struct FakeEngine {
  FakeEngine(FakeNet& of, std::string name, Incarnation drawn)
      : net(of), session_id(std::move(name)), incarnation(drawn), grants(regions, drawn.value) {
    grants.set_on_first_use([this](const memory::Grant& grant) {
      if (observer != nullptr) observer->on_grant_used(grant.room, grant.attempt);
    });
  }

  FakeNet& net;
  const std::string session_id;
  const Incarnation incarnation;
  memory::RegionTable regions;
  memory::GrantTable grants;
  PortObserver* observer = nullptr;
  bool dead = false;
  std::set<Incarnation> writers;     ///< whose writes have reached it
  std::map<WriteId, Write> running;  ///< own writes, in order
  std::uint64_t messages_sent = 0;
  std::vector<std::string> keys_sent;
  std::map<std::string, Blacklisted> blacklisted;  ///< its sessions, as the test says
  std::vector<Incarnation> registered;             ///< `on_peer_registered` was told of
};

/// The network between the engines of a test.
class FakeNet {
 public:
  using Filter = std::function<bool(const std::string& to, const wire::KvMessage&)>;

  FakeLoop loop;
  Filter lost;                 ///< true: the message is lost
  bool hold_writes = false;    ///< writes wait for `land_next`
  memory::LandingRules rules;  ///< of every engine; one-sided writes go past the grants
  bool can_fence = false;

  /// Starts an engine; an earlier one at this address dies, and the others learn of it.
  FakeEngine& start(const std::string& session_id) {
    const Incarnation drawn(0x1000 + ++started_);
    std::unique_ptr<FakeEngine>& slot = engines_[session_id];
    if (slot) {
      slot->dead = true;
      graveyard_.push_back(std::move(slot));
    }
    slot = std::make_unique<FakeEngine>(*this, session_id, drawn);
    if (!graveyard_.empty() && graveyard_.back()->session_id == session_id)
      for (auto& [name, other] : engines_)
        if (name != session_id && other->observer != nullptr)
          loop.post(
              [engine = other.get(), session_id, drawn, before = graveyard_.back()->incarnation] {
                if (engine->observer != nullptr)
                  engine->observer->on_peer_incarnation(session_id, before, drawn);
              });
    return *slot;
  }
  /// Kills an engine; `proven`: the others' kernel says so.
  void kill(FakeEngine& engine, bool proven) {
    engine.dead = true;
    if (!proven) return;
    for (auto& [name, other] : engines_)
      if (other.get() != &engine && other->observer != nullptr)
        loop.post([to = other.get(), at = engine.session_id, who = engine.incarnation] {
          if (to->observer != nullptr) to->observer->on_peer_died(at, who);
        });
  }
  [[nodiscard]] std::unique_ptr<EnginePort> port(FakeEngine& engine);
  [[nodiscard]] FakeEngine* at(const std::string& session_id) {
    const auto found = engines_.find(session_id);
    return found == engines_.end() ? nullptr : found->second.get();
  }

  /// Hands a message over as if the engine had sent it.
  void deliver(const FakeEngine& from, const std::string& to, Incarnation target,
               const std::string& body) {
    loop.post([this, sender = from.session_id, incarnation = from.incarnation, to, target, body] {
      FakeEngine* engine = at(to);
      if (engine == nullptr || engine->observer == nullptr || engine->dead) return;
      if (target.is_set() && engine->incarnation != target) return;
      const auto parsed = wire::parse_kv(bytes_of(body));
      if (parsed && lost && lost(to, *parsed)) return;
      engine->observer->on_message(sender, incarnation, bytes_of(body));
    });
  }
  void inject(const FakeEngine& from, const FakeEngine& to, const wire::KvMessage& message) {
    deliver(from, to.session_id, to.incarnation, wire::encode_kv(message));
  }

  /// Carries out the oldest write that runs, of anybody. False when there is none.
  bool land_next() {
    for (auto& [name, engine] : engines_) {
      if (engine->running.empty() || engine->dead) continue;
      finish(*engine, engine->running.begin()->first);
      return true;
    }
    return false;
  }
  void finish(FakeEngine& from, WriteId id) {
    const auto found = from.running.find(id);
    if (found == from.running.end()) return;  // cancelled meanwhile
    Write write = std::move(found->second);
    from.running.erase(found);
    begin(write);
    const Status result = land(from, write);
    std::uint64_t bytes = 0;
    for (const transport::Piece& piece : write.pieces) bytes += piece.length;
    if (write.on_done) write.on_done(result, {.bytes = result.is_ok() ? bytes : 0});
  }
  static void begin(Write& write) {
    if (write.on_begun) std::exchange(write.on_begun, nullptr)();
  }
  /// One-sided: carries out the oldest write that was cancelled and hasn't drained. False: none.
  bool land_late() {
    if (late_.empty()) return false;
    Late late = std::move(late_.front());
    late_.pop_front();
    const Status landed = land(*late.from, late.write);
    static_cast<void>(landed);  // the one who waited for it knows the cause already
    if (late.write.on_done) late.write.on_done(late.why, {});
    return true;
  }
  [[nodiscard]] std::size_t late_writes() const { return late_.size(); }
  /// A write is given up: from now on it is late, where nothing can stop it.
  void give_up(FakeEngine& from, Write write, const Status& why) {
    if (rules.grants_are_checked) return write.on_done(why, {});
    auto on_done = std::move(write.on_done);
    if (rules.failed_writes_rest) {
      write.on_done = std::move(on_done);
      late_.push_back({&from, std::move(write), why});
      return;
    }
    write.on_done = nullptr;
    late_.push_back({&from, std::move(write), why});
    on_done(why, {});
  }
  /// `here` destroys its endpoint to the peer: what is late between them never lands.
  void fence(FakeEngine& here, const std::string& peer, std::move_only_function<void()> done) {
    loop.post([this, at = here.session_id, peer, done = std::move(done)]() mutable {
      std::deque<Late> kept;
      std::deque<Late> ended;
      for (Late& late : late_) {
        const std::string to = late.write.peer.to_string();
        const bool between = (to == at && late.from->session_id == peer) ||
                             (to == peer && late.from->session_id == at);
        (between ? ended : kept).push_back(std::move(late));
      }
      late_ = std::move(kept);
      for (Late& late : ended)
        if (late.write.on_done) late.write.on_done(late.why, {});
      done();
    });
  }
  std::size_t running_writes() {
    std::size_t sum = 0;
    for (const auto& [name, engine] : engines_) sum += engine->running.size();
    return sum;
  }
  static Bytes bytes_of(const std::string& body) {
    return {reinterpret_cast<const std::byte*>(body.data()), body.size()};
  }

 private:
  Status land(FakeEngine& from, const Write& write) {
    FakeEngine* to = at(write.peer.to_string());
    if (to == nullptr) return {Code::kConnectionRefused, Origin::kLink, "nobody listens"};
    if (to->incarnation != write.target)
      return {Code::kPeerRestarted, Origin::kPeer, "peer restarted"};
    to->writers.insert(from.incarnation);
    for (const transport::Piece& piece : write.pieces) {
      if (!rules.grants_are_checked) {
        const memory::Region* region = to->regions.find(piece.region);
        if (region == nullptr) return {Code::kNotRegistered, Origin::kPeer, "no such region"};
        std::memcpy(region->base + piece.offset, piece.local, piece.length);
        continue;
      }
      const wire::WireSlice slice{piece.region, piece.offset,
                                  static_cast<std::uint32_t>(piece.length)};
      std::vector<iovec> where;
      const Status allowed = to->grants.resolve(write.grant, Access::kRemoteWrite, from.incarnation,
                                                {&slice, 1}, loop.now(), where);
      if (!allowed.is_ok()) return allowed;
      std::memcpy(where[0].iov_base, piece.local, piece.length);
      to->grants.note_landed(write.grant, {&slice, 1});
    }
    return {};
  }

  struct Late {
    FakeEngine* from;
    Write write;
    Status why;
  };
  std::deque<Late> late_;
  std::map<std::string, std::unique_ptr<FakeEngine>> engines_;
  std::vector<std::unique_ptr<FakeEngine>> graveyard_;
  std::uint64_t started_ = 0;
};

class FakePort final : public EnginePort {
 public:
  explicit FakePort(FakeEngine& engine) : engine_(engine) {}

  [[nodiscard]] env::EventLoop& loop() override { return engine_.net.loop; }
  [[nodiscard]] Incarnation incarnation() const override { return engine_.incarnation; }
  [[nodiscard]] std::string session_id() const override { return engine_.session_id; }
  [[nodiscard]] Status admits() const override { return {}; }
  void set_observer(PortObserver* observer) override { engine_.observer = observer; }
  [[nodiscard]] memory::LandingRules landing() const override { return engine_.net.rules; }
  [[nodiscard]] bool fence(const Address& peer, std::move_only_function<void()> done) override {
    if (!engine_.net.can_fence) return false;
    engine_.net.fence(engine_, peer.to_string(), std::move(done));
    return true;
  }
  [[nodiscard]] const memory::Region* find_region(const void* base,
                                                  std::uint64_t length) const override {
    return engine_.regions.find_containing(base, length);
  }
  Result<RegionRef> register_memory(void* base, std::uint64_t length, MemoryKind kind) override {
    return engine_.regions.add(base, length, kind, Access::kNone);
  }
  Status unregister_memory(void* base) override { return engine_.regions.remove(base); }
  Result<GrantId> issue_grant(memory::Grant grant) override {
    return engine_.grants.issue(std::move(grant));
  }
  bool end_grant(GrantId grant, memory::GrantEnd how) override {
    return engine_.grants.end(grant, how);
  }
  [[nodiscard]] std::optional<Blacklisted> blacklisted(const Address& peer) const override {
    const auto found = engine_.blacklisted.find(peer.to_string());
    if (found == engine_.blacklisted.end()) return std::nullopt;
    return found->second;
  }
  [[nodiscard]] std::optional<std::vector<std::uint64_t>> landed_bytes(
      GrantId grant) const override {
    const memory::Grant* found = engine_.grants.find(grant);
    if (found == nullptr) return std::nullopt;
    return found->landed_bytes;
  }
  WriteId write(Write write) override {
    const WriteId id(++last_write_);
    const std::string peer = write.peer.to_string();
    engine_.running.emplace(id, std::move(write));
    // A blacklisted session's writes wait: they begin when they land.
    engine_.net.loop.post([this_engine = &engine_, id, peer] {
      const auto at = this_engine->running.find(id);
      if (at == this_engine->running.end() || this_engine->dead) return;
      if (!this_engine->blacklisted.contains(peer)) FakeNet::begin(at->second);
    });
    if (!engine_.net.hold_writes && !engine_.dead)
      engine_.net.loop.post(
          [this_engine = &engine_, id] { this_engine->net.finish(*this_engine, id); });
    return id;
  }
  void cancel(WriteId write, const Status& why) override {
    const auto found = engine_.running.find(write);
    if (found == engine_.running.end()) return;
    Write given_up = std::move(found->second);
    engine_.running.erase(found);
    engine_.net.give_up(engine_, std::move(given_up), why);
  }
  void on_peer_registered(const Address& /*peer*/, Incarnation incarnation) override {
    engine_.registered.push_back(incarnation);
  }
  Status send(const Address& to, Incarnation target, std::string_view body,
              std::string key) override {
    engine_.keys_sent.push_back(std::move(key));
    if (engine_.dead) return {};
    ++engine_.messages_sent;
    engine_.net.deliver(engine_, to.to_string(), target, std::string(body));
    return {};
  }

 private:
  FakeEngine& engine_;
  std::uint64_t last_write_ = 0;
};

inline std::unique_ptr<EnginePort> FakeNet::port(FakeEngine& engine) {
  return std::make_unique<FakePort>(engine);
}

}  // namespace kvmend::kv
