#include "sim/pair_rooms.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "kv/link.h"
#include "sim/content.h"
#include "sim/kv_pool.h"

namespace kvmend::sim {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMaxPages = 4;
constexpr std::size_t kItems = kPoolParts[0].items;
constexpr std::size_t kItemBytes = kPoolParts[0].item_bytes;
constexpr std::size_t kBuffers = kPoolParts[0].buffers;  // two layers of K and V
constexpr std::size_t kPeek = 16;                        // bytes of a page that are looked at
constexpr Duration kLookEvery = 20ms;
constexpr Duration kGrace = 500ms;
using Pages = std::vector<std::uint32_t>;

}  // namespace

struct PairRooms::Life {
  Instance* instance = nullptr;
  WatchedPort* port = nullptr;  // owned by the manager
  std::unique_ptr<KvManager> manager;
  Pages free;
};

/// One rank's end of a room.
struct PairRooms::End {
  std::size_t node = 0;
  std::uint64_t life = 0;
  Pages pages;
  Time started{};             ///< by its own clock
  std::optional<Time> asked;  ///< first send or announcement, in the world's time
  std::optional<KvReceiver> receiver;
  std::optional<KvSender> sender;
  PermitId sending = 0;
  std::size_t sent_pages = 0;
  bool over = false;
  bool ok = false;
};

struct PairRooms::Room {
  RoomId id;
  std::uint64_t seed = 0;
  std::deque<End> from, to;

  /// Of a page that decode holds in its `buffer`.
  [[nodiscard]] std::uint64_t seed_at(std::size_t buffer, std::size_t position) const {
    return mix(mix(seed, buffer), position);
  }
  [[nodiscard]] std::uint64_t blank() const { return mix(seed, 0xb1a); }
  [[nodiscard]] std::vector<Segment> segments(const End& end, std::size_t first_buffer,
                                              std::size_t buffers) const {
    std::vector<Segment> all;
    for (std::size_t b = 0; b < buffers; ++b)
      for (std::size_t i = 0; i < end.pages.size(); ++i)
        all.push_back({buffer_begin(0, b) + end.pages[i] * kItemBytes, kItemBytes,
                       seed_at(first_buffer + b, i)});
    return all;
  }
};

PairRooms::PairRooms(Cluster& cluster, PairRoomsOptions options)
    : cluster_(cluster),
      options_(options),
      dice_(mix(cluster.seed(), 0x9a17)),
      arrivals_(cluster, dice_, options_.gap, options_.until) {
  cluster.add_part(*this);
  arrivals_.start(options_.from, [this] { open_room(); });
  cluster.after(kLookEvery, [this] { look_for_splits(); });
}

PairRooms::~PairRooms() {
  tear_down();
}

std::size_t PairRooms::buffers_of(bool prefill) const {
  return prefill ? kBuffers / options_.prefill : kBuffers;
}

std::uint64_t PairRooms::seed_of(const Life& life, RoomId id, std::size_t buffer,
                                 std::uint32_t page) const {
  for (const auto& room : rooms_) {
    if (room->id != id) continue;
    for (const End& end : room->to) {
      if (end.life != life.instance->number()) continue;
      const auto at = std::ranges::find(end.pages, page);
      if (at != end.pages.end())
        return room->seed_at(buffer, static_cast<std::size_t>(at - end.pages.begin()));
    }
  }
  return 0;
}

void PairRooms::on_started(Instance& instance) {
  auto fresh = std::make_unique<Life>();
  Life* one = fresh.get();
  one->instance = &instance;
  auto port = std::make_unique<WatchedPort>(
      instance,
      [this, one](RoomId room, std::size_t, std::size_t buffer, std::uint32_t page) {
        return seed_of(*one, room, buffer, page);
      },
      false);
  one->port = port.get();
  const std::size_t node = instance.node().index();
  const bool prefill = node < options_.prefill;
  KvLayout layout{.page_tokens = 16, .kv_heads = 2, .head_dim = 8};
  KvComponent component{.pool = KvPool::kKv, .dtype = "bfloat16", .items = kItems};
  for (std::size_t b = 0; b < buffers_of(prefill); ++b) {
    component.buffers.push_back({instance.pool().base() + buffer_begin(0, b), kItemBytes});
    const std::size_t of_all = (prefill ? node * buffers_of(true) : 0) + b;
    component.layer_ids.push_back(static_cast<std::uint32_t>(of_all / 2));
  }
  layout.components.push_back(std::move(component));
  if (prefill) {
    layout.rank.pp_size = static_cast<std::uint32_t>(options_.prefill);
    layout.rank.pp_rank = static_cast<std::uint32_t>(node);
  }
  auto link = kv::Link::open(std::move(port), prefill ? KvRole::kPrefill : KvRole::kDecode, layout,
                             options_.kv);
  KVM_CHECK(link.has_value(), link.has_value() ? "" : link.error().to_string());
  one->manager = std::make_unique<KvManager>(std::move(*link));
  for (std::uint32_t page = 0; page < kItems; ++page) one->free.push_back(page);
  lives_.add(std::move(fresh));
}

void PairRooms::on_killed(Instance& instance) {
  for (const auto& room : rooms_)
    for (std::deque<End>* ends : {&room->from, &room->to})
      for (End& end : *ends) {
        if (end.life != instance.number()) continue;
        end.over = true;
        end.receiver.reset();
        end.sender.reset();
      }
  lives_.remove(instance);
}

// ----------------------------------------------------------------------------------------- acting

void PairRooms::open_room() {
  auto& nodes = cluster_.nodes();
  const std::size_t count = 1 + dice_.below(kMaxPages);
  for (const auto& node : nodes) {
    if (node->active() == nullptr) return;
    if (lives_.find(node->index(), node->active()->number())->free.size() < count) return;
  }
  auto room = std::make_shared<Room>();
  room->id = RoomId(mix(cluster_.seed(), ++numbers_) >> 1U);
  room->seed = mix(room->id.value, 0x7001);
  for (const auto& node : nodes) {
    Life& life = *lives_.find(node->index(), node->active()->number());
    End& end = (node->index() < options_.prefill ? room->from : room->to).emplace_back();
    end.node = node->index();
    end.life = life.instance->number();
    for (std::size_t i = 0; i < count; ++i) {
      std::swap(dice_.pick(life.free), life.free.back());
      end.pages.push_back(life.free.back());
      life.free.pop_back();
    }
  }
  rooms_.push_back(room);
  const Duration late = dice_.skewed(0ms, options_.late);
  for (std::size_t k = 0; k < room->to.size(); ++k) announce(room, k);
  for (std::size_t k = 0; k < room->from.size(); ++k) {
    start_sender(room, k);
    cluster_.after(late, [this, room, k] { send_chunk(room, k); });
  }
}

void PairRooms::announce(const std::shared_ptr<Room>& room, std::size_t rank) {
  End& end = room->to[rank];
  Life* life = lives_.find(end.node, end.life);
  if (life == nullptr || end.over) return;
  if (life->instance->paused())
    return cluster_.after(50ms, [this, room, rank] { announce(room, rank); });
  for (const Segment& segment : room->segments(end, 0, kBuffers))
    life->instance->pool().write(segment.begin, segment.length, room->blank());
  std::vector<KvSource> sources;
  for (const End& from : room->from)
    sources.push_back({.session = cluster_.nodes()[from.node]->session_id(),
                       .destinations = static_cast<std::uint32_t>(room->to.size())});
  end.started = life->instance->now();
  end.asked = cluster_.world().now();
  end.receiver.emplace(*life->manager, sources, room->id);
  end.receiver->init();
  const Status status = end.receiver->send_metadata(end.pages);
  KVM_CHECK(status.is_ok(), status.to_string());
}

void PairRooms::start_sender(const std::shared_ptr<Room>& room, std::size_t rank) {
  End& end = room->from[rank];
  Life* life = lives_.find(end.node, end.life);
  if (life == nullptr || end.over) return;
  if (life->instance->paused())
    return cluster_.after(50ms, [this, room, rank] { start_sender(room, rank); });
  const std::size_t buffers = buffers_of(true);
  const std::vector<Segment> segments = room->segments(end, rank * buffers, buffers);
  Pool& pool = life->instance->pool();
  for (const Segment& segment : segments) pool.write(segment.begin, segment.length, segment.seed);
  end.sending = pool.allow(
      {.use = Use::kSend, .what = fmt::format("room {}", room->id.value), .segments = segments});
  end.started = life->instance->now();
  end.sender.emplace(*life->manager, room->id);
  const Status status = end.sender->init(static_cast<std::uint32_t>(end.pages.size()));
  KVM_CHECK(status.is_ok(), status.to_string());
}

void PairRooms::send_chunk(const std::shared_ptr<Room>& room, std::size_t rank) {
  End& end = room->from[rank];
  Life* life = lives_.find(end.node, end.life);
  if (life == nullptr || end.over) return;
  if (life->instance->paused() || !end.sender)
    return cluster_.after(50ms, [this, room, rank] { send_chunk(room, rank); });
  if (!end.asked) end.asked = cluster_.world().now();
  const std::size_t count = 1 + dice_.below(end.pages.size() - end.sent_pages);
  const Status status = end.sender->send(std::span(end.pages).subspan(end.sent_pages, count));
  if (!status.is_ok()) return;  // the room has failed: seen by the look at it
  end.sent_pages += count;
  if (end.sent_pages < end.pages.size())
    cluster_.after(dice_.skewed(0ms, 300ms), [this, room, rank] { send_chunk(room, rank); });
}

// ----------------------------------------------------------------------------------------- pairs

bool PairRooms::landed(const Room& room, const End& at, std::size_t first_buffer,
                       std::size_t buffers) const {
  const Life* life = lives_.find(at.node, at.life);
  if (life == nullptr || !at.receiver) return false;
  for (std::size_t b = first_buffer; b < first_buffer + buffers; ++b)
    for (const std::uint32_t page : at.pages)
      if (!life->instance->pool().matches(
              {buffer_begin(0, b) + page * kItemBytes, kPeek, room.blank()}))
        return true;
  return false;
}

// `from` asked for something of all `ranks` when the session to one of them had failed, and it has
// been so ever since: then nothing may have happened at any other.
void PairRooms::check_split(const Room& room, const End& from, const std::deque<End>& ranks,
                            Time asked) {
  const Life* life = lives_.find(from.node, from.life);
  if (life == nullptr) return;
  const auto& sessions = life->instance->sessions();
  for (const End& down : ranks) {
    const auto at = sessions.find(cluster_.nodes()[down.node]->session_id());
    if (at == sessions.end() || at->second.state != "failed" || at->second.since > asked) continue;
    for (std::size_t k = 0; k < ranks.size(); ++k) {
      if (&ranks[k] == &down) continue;
      const std::size_t share = buffers_of(true);
      const bool begun = ranks[k].receiver ? landed(room, ranks[k], 0, kBuffers)
                                           : landed(room, from, k * share, share);
      if (begun)
        return cluster_.verdict().report(
            9, fmt::format("room {}: {} is served although the session of {} to {} of the same "
                           "pair has been failed since before it was asked for",
                           room.id.value, cluster_.nodes()[ranks[k].node]->ip(),
                           life->instance->node().ip(), at->first));
    }
  }
}

void PairRooms::look_for_splits() {
  if (over_) return;
  for (const auto& room : rooms_) {
    for (const End& sender : room->from)
      if (sender.asked && sender.sender && room->to.size() > 1)
        check_split(*room, sender, room->to, *sender.asked);
    for (const End& receiver : room->to)
      if (receiver.asked && receiver.receiver && room->from.size() > 1)
        check_split(*room, receiver, room->from, *receiver.asked);
  }
  cluster_.after(kLookEvery, [this] { look_for_splits(); });
}

// ---------------------------------------------------------------------------------------- results

void PairRooms::check_end(Room& room, End& end, Instance& instance, const Status& failure,
                          bool terminal) {
  const Time limit = end.started + options_.kv.room_deadline + kGrace;
  if (!terminal) {
    if (instance.now() > limit && cluster_.world().now() > instance.running_since() + kGrace)
      cluster_.verdict().report(3, fmt::format("room {} has no terminal status at {}",
                                               room.id.value, instance.node().ip()));
    return;
  }
  end.over = true;
  if (!end.ok && (failure.is_ok() || failure.detail().empty()))
    cluster_.verdict().report(3, fmt::format("room {} failed at {} without a reason", room.id.value,
                                             instance.node().ip()));
}

void PairRooms::look_at_receiver(Room& room, End& end) {
  Life* life = lives_.find(end.node, end.life);
  if (life == nullptr || end.over || !end.receiver || life->instance->paused()) return;
  const KvStatus status = end.receiver->poll();
  end.ok = status == KvStatus::kSuccess;
  check_end(room, end, *life->instance, end.receiver->failure(), is_terminal(status));
  if (!end.over) return;
  Pool& pool = life->instance->pool();
  pool.look();
  life->port->take_back(room.id);
  for (const Segment& segment : room.segments(end, 0, kBuffers))
    if (end.ok && !pool.matches(segment))
      cluster_.verdict().report(2, fmt::format("room {} is a success at {} without its bytes",
                                               room.id.value, life->instance->node().ip()));
  life->free.insert(life->free.end(), end.pages.begin(), end.pages.end());
  end.receiver.reset();
}

void PairRooms::look_at_sender(Room& room, End& end) {
  Life* life = lives_.find(end.node, end.life);
  if (life == nullptr || end.over || !end.sender || life->instance->paused()) return;
  const KvStatus status = end.sender->poll();
  end.ok = status == KvStatus::kSuccess;
  check_end(room, end, *life->instance, end.sender->failure(), is_terminal(status));
  if (!end.over) return;
  Pool& pool = life->instance->pool();
  pool.end(end.sending);
  for (const std::uint32_t page : end.pages)
    for (std::size_t b = 0; b < buffers_of(true); ++b)
      pool.write(buffer_begin(0, b) + page * kItemBytes, kItemBytes, mix(room.seed, 0xdead));
  life->free.insert(life->free.end(), end.pages.begin(), end.pages.end());
  end.sender.reset();
}

void PairRooms::finish(const Room& room) {
  const bool all = std::ranges::all_of(room.to, &End::ok);
  ++(all ? ok_ : failed_);
  if (!all && room.to.size() > 1 && room.from.front().ok)
    cluster_.verdict().report(
        2, fmt::format("room {} is a success at prefill, but not at every decode rank",
                       room.id.value));
}

void PairRooms::on_step() {
  if (++steps_ % 8 != 0) return;
  for (const auto& room : rooms_) {
    for (End& end : room->to) look_at_receiver(*room, end);
    for (End& end : room->from) look_at_sender(*room, end);
  }
  std::erase_if(rooms_, [this](const auto& room) {
    const bool over =
        std::ranges::all_of(room->from, &End::over) && std::ranges::all_of(room->to, &End::over);
    if (over) finish(*room);
    return over;
  });
}

void PairRooms::check_idle() {
  for (const auto& one : lives_) {
    const KvManagerStats stats = one->manager->stats();
    if (stats.rooms + stats.announced + stats.transfers > 0)
      cluster_.verdict().report(
          5,
          fmt::format("{}: {} rooms, {} announced rooms, {} transfers left",
                      one->instance->node().ip(), stats.rooms, stats.announced, stats.transfers));
  }
}

void PairRooms::tear_down() {
  over_ = true;
  rooms_.clear();
  lives_.clear();
}

}  // namespace kvmend::sim
