#include "sim/kv_rooms.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "kv/handles.h"
#include "kv/link.h"
#include "sim/content.h"
#include "sim/kv_pool.h"

namespace kvmend::sim {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMaxPages = 8;
constexpr Duration kGrace = 500ms;
using Pages = std::vector<std::uint32_t>;

}  // namespace

struct KvRooms::Life {
  Instance* instance = nullptr;
  WatchedPort* port = nullptr;  // owned by the manager
  std::unique_ptr<KvManager> manager;
  std::array<Pages, kPoolParts.size()> free;
};

/// One side of a room: the pages it uses, by component.
struct Side {
  std::size_t node = 0;
  std::uint64_t life = 0;
  std::array<Pages, kPoolParts.size()> pages;
  Time started{};  ///< by its own clock
  std::optional<Time> aborted;
  bool over = false;
};

struct KvRooms::Room {
  RoomId id;
  std::uint64_t seed = 0;
  Side in, out;
  std::optional<KvReceiver> receiver;
  std::optional<KvReceiver> twin;
  std::optional<KvSender> sender;
  std::size_t sent_pages = 0;
  PermitId sending = 0;
  bool has_state = false;
  bool abandoned = false;  ///< no sender will ever come (case I7, L3)

  [[nodiscard]] std::uint64_t seed_at(std::size_t component, std::size_t buffer,
                                      std::size_t position) const {
    return mix(mix(seed, component * 64 + buffer), position);
  }
  [[nodiscard]] std::vector<Segment> segments(const Side& side) const {
    std::vector<Segment> all;
    for (std::size_t c = 0; c < kPoolParts.size(); ++c)
      add_segments(all, c, side.pages[c],
                   [&](std::size_t b, std::size_t i) { return seed_at(c, b, i); });
    return all;
  }
};

KvRooms::KvRooms(Cluster& cluster, KvRoomsOptions options)
    : cluster_(cluster),
      options_(options),
      dice_(mix(cluster.seed(), 0x40075)),
      arrivals_(cluster, dice_, options_.gap, options_.until) {
  if (options_.one_sided) wire_.emplace(cluster, *options_.one_sided);
  cluster.add_part(*this);
  arrivals_.start(options_.from, [this] { open_room(); });
}

KvRooms::~KvRooms() {
  tear_down();
}

std::size_t KvRooms::pool_bytes() {
  return kv_pool_bytes();
}

std::uint64_t KvRooms::seed_of(const Life& life, RoomId id, std::size_t component,
                               std::size_t buffer, std::uint32_t page) const {
  for (const auto& room : rooms_) {
    if (room->id != id || room->in.life != life.instance->number()) continue;
    const Pages& pages = room->in.pages[component];
    const auto at = std::ranges::find(pages, page);
    if (at != pages.end())
      return room->seed_at(component, buffer, static_cast<std::size_t>(at - pages.begin()));
  }
  return 0;
}

void KvRooms::on_started(Instance& instance) {
  auto fresh = std::make_unique<Life>();
  Life* one = fresh.get();
  one->instance = &instance;
  const PageSeed seed = [this, one](RoomId room, std::size_t component, std::size_t buffer,
                                    std::uint32_t page) {
    return seed_of(*one, room, component, buffer, page);
  };
  std::unique_ptr<WatchedPort> port =
      wire_ ? std::make_unique<OneSidedPort>(*wire_, instance, seed)
            : std::make_unique<WatchedPort>(instance, seed, options_.corrupt_links);
  one->port = port.get();
  const bool prefill = instance.node().index() < options_.prefill;
  auto link = kv::Link::open(std::move(port), prefill ? KvRole::kPrefill : KvRole::kDecode,
                             make_layout(instance.pool()), options_.kv);
  KVM_CHECK(link.has_value(), link.has_value() ? "" : link.error().to_string());
  one->manager = std::make_unique<KvManager>(std::move(*link));
  for (std::size_t c = 0; c < kPoolParts.size(); ++c)
    for (std::uint32_t page = 0; page < kPoolParts[c].items; ++page) one->free[c].push_back(page);
  lives_.add(std::move(fresh));
}

void KvRooms::on_killed(Instance& instance) {
  for (const auto& room : rooms_) {
    if (room->in.life == instance.number()) {
      room->in.over = true;
      room->receiver.reset();
      room->twin.reset();
    }
    if (room->out.life == instance.number()) {
      room->out.over = true;
      room->sender.reset();
    }
  }
  lives_.remove(instance);
}

// ----------------------------------------------------------------------------------------- acting

void KvRooms::open_room() {
  auto& nodes = cluster_.nodes();
  Node& p = *nodes[dice_.below(options_.prefill)];
  Node& d = *nodes[options_.prefill + dice_.below(nodes.size() - options_.prefill)];
  if (p.active() == nullptr || d.active() == nullptr) return;
  Life& from = *lives_.find(p.index(), p.active()->number());
  Life& to = *lives_.find(d.index(), d.active()->number());
  const std::size_t pages = 1 + dice_.below(kMaxPages);
  const bool state = dice_.chance(0.5);
  const std::array<std::size_t, kPoolParts.size()> wanted{pages, 1, state ? 1U : 0U};
  for (std::size_t c = 0; c < wanted.size(); ++c)
    if (from.free[c].size() < wanted[c] || to.free[c].size() < wanted[c]) return;
  auto room = std::make_shared<Room>();
  room->id = RoomId(mix(cluster_.seed(), ++numbers_) >> 1U);
  room->seed = mix(room->id.value, 0x7001);
  room->has_state = state;
  room->out = {.node = p.index(), .life = from.instance->number()};
  room->in = {.node = d.index(), .life = to.instance->number()};
  for (std::size_t c = 0; c < wanted.size(); ++c)
    for (std::size_t i = 0; i < wanted[c]; ++i) {
      const auto take = [&](Pages& free) {
        std::swap(dice_.pick(free), free.back());
        const std::uint32_t page = free.back();
        free.pop_back();
        return page;
      };
      room->in.pages[c].push_back(take(to.free[c]));
      room->out.pages[c].push_back(take(from.free[c]));
    }
  rooms_.push_back(room);
  room->abandoned = dice_.chance(options_.no_sender_share);
  const Duration late = dice_.skewed(0ms, options_.late);
  const Duration later = dice_.skewed(0ms, options_.late);
  if (dice_.chance(0.5)) {
    announce(room);
    cluster_.after(late, [this, room] { start_sender(room); });
  } else {
    start_sender(room);
    cluster_.after(late, [this, room] { announce(room); });
  }
  cluster_.after(later, [this, room] { send_chunk(room); });
  if (dice_.chance(options_.abort_share)) plan_aborts(room);
}

void KvRooms::announce(const std::shared_ptr<Room>& room) {
  Life* to = lives_.find(room->in.node, room->in.life);
  if (to == nullptr || room->in.over) return;
  if (to->instance->paused()) return cluster_.after(50ms, [this, room] { announce(room); });
  room->in.started = to->instance->now();
  const std::string prefill = cluster_.nodes()[room->out.node]->session_id();
  room->receiver.emplace(*to->manager, prefill, room->id);
  room->receiver->init();
  const auto announce_pages = [&](KvReceiver& receiver) {
    KvStateIndices states;
    if (room->has_state) states.push_back(room->in.pages[2]);
    return receiver.send_metadata(room->in.pages[0], room->in.pages[1][0], states);
  };
  const Status status = announce_pages(*room->receiver);
  KVM_CHECK(status.is_ok(), status.to_string());
  if (dice_.chance(options_.twin_share)) room->twin.emplace(*to->manager, prefill, room->id);
}

void KvRooms::start_sender(const std::shared_ptr<Room>& room) {
  Life* from = lives_.find(room->out.node, room->out.life);
  if (from == nullptr || room->out.over) return;
  if (room->abandoned) {
    room->out.over = true;
    for (std::size_t c = 0; c < kPoolParts.size(); ++c)
      from->free[c].insert(from->free[c].end(), room->out.pages[c].begin(),
                           room->out.pages[c].end());
    return;
  }
  if (from->instance->paused()) return cluster_.after(50ms, [this, room] { start_sender(room); });
  room->out.started = from->instance->now();
  Pool& pool = from->instance->pool();
  for (const Segment& segment : room->segments(room->out))
    pool.write(segment.begin, segment.length, segment.seed);
  room->sending = pool.allow({.use = Use::kSend,
                              .what = fmt::format("room {}", room->id.value),
                              .segments = room->segments(room->out)});
  room->sender.emplace(*from->manager, room->id);
  const Status status = room->sender->init(static_cast<std::uint32_t>(room->in.pages[0].size()),
                                           room->out.pages[1][0]);
  KVM_CHECK(status.is_ok(), status.to_string());
}

void KvRooms::send_chunk(const std::shared_ptr<Room>& room) {
  Life* from = lives_.find(room->out.node, room->out.life);
  if (from == nullptr || room->out.over || room->abandoned) return;
  if (from->instance->paused() || !room->sender)
    return cluster_.after(50ms, [this, room] { send_chunk(room); });
  const Pages& pages = room->out.pages[0];
  const std::size_t left = pages.size() - room->sent_pages;
  const std::size_t count = 1 + dice_.below(left);
  KvStateIndices states;
  if (count == left && room->has_state) states.push_back(room->out.pages[2]);
  const Status status =
      room->sender->send(std::span(pages).subspan(room->sent_pages, count), states);
  if (!status.is_ok()) return;  // the room has failed: seen by the look at it
  room->sent_pages += count;
  if (room->sent_pages < pages.size())
    cluster_.after(dice_.skewed(0ms, options_.late * 3 / 4), [this, room] { send_chunk(room); });
}

void KvRooms::plan_aborts(const std::shared_ptr<Room>& room) {
  const bool receiver = options_.decode_aborts || dice_.chance(0.5);
  const bool both = dice_.chance(0.2);
  const bool clear = dice_.chance(0.3);  // gives the room number up, which aborts
  cluster_.after(dice_.skewed(0ms, options_.abort_within), [this, room, receiver, both, clear] {
    Life* to = lives_.find(room->in.node, room->in.life);
    Life* from = lives_.find(room->out.node, room->out.life);
    if ((receiver || both) && to != nullptr && !to->instance->paused() && room->receiver)
      abort_at_decode(*room, *to, clear);
    if ((!receiver || both) && from != nullptr && !from->instance->paused() && room->sender)
      give_up(*room->sender, clear);
  });
}

void KvRooms::abort_at_decode(Room& room, Life& life, bool clear) {
  if (room.receiver->poll() == KvStatus::kTransferring) ++aborted_midway_;
  room.in.aborted = life.instance->now();
  give_up(*room.receiver, clear);
}

template <class End>
void KvRooms::give_up(End& end, bool clear) {
  if (!is_terminal(end.poll())) cluster_.note_abort();  // not of rooms that are over already
  clear ? end.clear() : end.abort("aborted by the script");
}

// ---------------------------------------------------------------------------------------- results

void KvRooms::check_release(const Room& room, const Life& life) {
  if (!options_.decode_aborts || !room.in.aborted) return;
  const Duration took = life.instance->now() - *room.in.aborted;
  if (took > options_.release_within)
    cluster_.verdict().report(
        3, fmt::format("room {}: its pages were free {:.1f} ms after decode's abort", room.id.value,
                       to_seconds(took) * 1e3));
}

void KvRooms::check_reason(const Status& why, const char* who) {
  if (why.is_ok() || why.detail().empty() || why.code() == Code::kInternal)
    cluster_.verdict().report(
        3, fmt::format("a room failed at {} without a reason: {}", who, why.to_string()));
}

void KvRooms::check_deadline(Room& room, Life& life, Time started, const char* who) {
  Instance& instance = *life.instance;
  const Time limit = started + options_.kv.room_deadline + kGrace;
  if (instance.now() > limit && cluster_.world().now() > instance.running_since() + kGrace)
    cluster_.verdict().report(
        3, fmt::format("room {} has no terminal status at {} ({}) {:.3f} s after its deadline",
                       room.id.value, who, instance.node().ip(),
                       to_seconds(instance.now() - started - options_.kv.room_deadline)));
}

void KvRooms::look_at_receiver(Room& room) {
  Life* to = lives_.find(room.in.node, room.in.life);
  if (to == nullptr || room.in.over || !room.receiver || to->instance->paused()) return;
  const KvStatus status = room.receiver->poll();
  if (!is_terminal(status)) return check_deadline(room, *to, room.in.started, "decode");
  if (!room.receiver->pages_released()) return;  // they may change still, and aren't given away
  room.in.over = true;
  check_release(room, *to);
  Pool& pool = to->instance->pool();
  pool.look();
  to->port->take_back(room.id);
  if (status == KvStatus::kSuccess) {
    ++ok_;
    for (const Segment& segment : room.segments(room.in))
      if (!pool.matches(segment) && (!options_.corrupt_links || options_.kv.checksum))
        return cluster_.verdict().report(
            2, fmt::format("{}: room {} is a success, but the bytes at {} aren't here",
                           to->instance->node().ip(), room.id.value, segment.begin));
    // Decoding goes on: it writes into the last, partly filled page.
    const std::size_t at = buffer_begin(0, 0) + room.in.pages[0].back() * kPoolParts[0].item_bytes;
    pool.write(at, kPoolParts[0].item_bytes / 2, mix(room.seed, 0xa99e));
  } else {
    ++failed_;
    check_reason(room.receiver->failure(), "decode");
  }
  for (std::size_t c = 0; c < kPoolParts.size(); ++c)
    to->free[c].insert(to->free[c].end(), room.in.pages[c].begin(), room.in.pages[c].end());
  room.receiver.reset();
  room.twin.reset();
}

void KvRooms::look_at_sender(Room& room) {
  Life* from = lives_.find(room.out.node, room.out.life);
  if (from == nullptr || room.out.over || !room.sender || from->instance->paused()) return;
  const KvStatus status = room.sender->poll();
  if (!is_terminal(status)) return check_deadline(room, *from, room.out.started, "prefill");
  if (!room.sender->pages_released()) return;  // they may be read still
  room.out.over = true;
  if (status == KvStatus::kFailed) check_reason(room.sender->failure(), "prefill");
  Pool& pool = from->instance->pool();
  pool.end(room.sending);
  for (const Segment& segment : room.segments(room.out))
    pool.write(segment.begin, segment.length, mix(segment.seed, 0xdead));
  for (std::size_t c = 0; c < kPoolParts.size(); ++c)
    from->free[c].insert(from->free[c].end(), room.out.pages[c].begin(), room.out.pages[c].end());
  room.sender.reset();
}

void KvRooms::on_step() {
  for (const auto& room : rooms_) {
    look_at_receiver(*room);
    look_at_sender(*room);
  }
  std::erase_if(rooms_, [](const auto& room) { return room->in.over && room->out.over; });
}

void KvRooms::check_idle() {
  for (const auto& one : lives_) {
    const KvManagerStats stats = one->manager->stats();
    const auto need_zero = [&](std::uint64_t value, const char* what) {
      if (value != 0)
        cluster_.verdict().report(5, fmt::format("{}: {} {} left after every room had ended",
                                                 one->instance->node().ip(), value, what));
    };
    need_zero(stats.rooms, "rooms");
    need_zero(stats.announced, "announced rooms");
    need_zero(stats.announced_bytes, "announced bytes");
    need_zero(stats.transfers, "transfers");
    need_zero(stats.quarantined_rooms, "rooms in quarantine");
  }
}

void KvRooms::tear_down() {
  rooms_.clear();
  lives_.clear();
}

}  // namespace kvmend::sim
