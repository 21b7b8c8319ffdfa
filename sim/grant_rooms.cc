#include "sim/grant_rooms.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "sim/content.h"

namespace kvmend::sim {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kPages = 20;
constexpr std::size_t kPageBytes = 1'536;
constexpr std::size_t kHalf = kPages * kPageBytes;  // destination pages, then as many source pages
constexpr std::size_t kMaxRoomPages = 8;
constexpr Duration kGrace = 400ms;

}  // namespace

struct GrantRooms::Life {
  Instance* instance;
  RegionRef region;
  std::vector<std::uint32_t> free_in;   // destination pages
  std::vector<std::uint32_t> free_out;  // source pages
};

struct GrantRooms::Room {
  std::uint64_t number = 0;
  std::size_t from_node = 0, to_node = 0;
  std::uint64_t from_life = 0, to_life = 0;
  std::vector<std::uint32_t> in, out;  // pages
  RegionRef region;
  Incarnation target;
  GrantId grant;
  PermitId landing = 0, sending = 0;
  Time deadline{};       // by the receiver's clock
  Time send_deadline{};  // by the sender's
  std::shared_ptr<session::TransferState> transfer;
  bool sent = false;
  bool sender_over = false;
  bool receiver_over = false;
  bool sender_ok = false;

  [[nodiscard]] std::uint64_t seed(std::size_t position) const { return mix(number, position); }
  [[nodiscard]] std::vector<Segment> segments(const std::vector<std::uint32_t>& pages,
                                              std::size_t base) const {
    std::vector<Segment> all;
    for (std::size_t i = 0; i < pages.size(); ++i)
      all.push_back({base + pages[i] * kPageBytes, kPageBytes, seed(i)});
    return all;
  }
};

GrantRooms::GrantRooms(Cluster& cluster, GrantRoomOptions options)
    : cluster_(cluster),
      options_(options),
      dice_(mix(cluster.seed(), 0x600a5)),
      arrivals_(cluster, dice_, options.gap, options.until) {
  cluster.add_part(*this);
  arrivals_.start(options.from, [this] { open_room(); });
}

GrantRooms::~GrantRooms() = default;

std::size_t GrantRooms::pool_bytes() {
  return 2 * kHalf;
}

void GrantRooms::on_started(Instance& instance) {
  auto fresh = std::make_unique<Life>();
  fresh->instance = &instance;
  const auto ref = instance.engine().register_memory(instance.pool().base(), 2 * kHalf,
                                                     MemoryKind::kHost, Access::kNone);
  KVM_CHECK(ref.has_value());
  fresh->region = *ref;
  for (std::uint32_t page = 0; page < kPages; ++page) {
    fresh->free_in.push_back(page);
    fresh->free_out.push_back(page);
  }
  lives_.add(std::move(fresh));
}

void GrantRooms::on_killed(Instance& instance) {
  for (const auto& room : rooms_) {
    if (room->from_life == instance.number()) {
      room->sender_over = true;
      room->transfer.reset();
    }
    if (room->to_life == instance.number()) room->receiver_over = true;
  }
  lives_.remove(instance);
}

// ----------------------------------------------------------------------------------------- acting

void GrantRooms::open_room() {
  auto& nodes = cluster_.nodes();
  Node& a = *dice_.pick(nodes);
  Node& b = *dice_.pick(nodes);
  if (&a == &b || a.active() == nullptr || b.active() == nullptr) return;
  Life& from = *lives_.find(a.index(), a.instance()->number());
  Life& to = *lives_.find(b.index(), b.instance()->number());
  const std::size_t pages = 1 + dice_.below(kMaxRoomPages);
  if (from.free_out.size() < pages || to.free_in.size() < pages) return;
  auto room = std::make_shared<Room>();
  room->number = mix(cluster_.seed(), ++numbers_);
  room->from_node = a.index();
  room->from_life = from.instance->number();
  room->to_node = b.index();
  room->to_life = to.instance->number();
  for (std::size_t i = 0; i < pages; ++i) {
    const auto take = [&](std::vector<std::uint32_t>& pool) {
      std::uint32_t& chosen = dice_.pick(pool);
      const std::uint32_t page = chosen;
      chosen = pool.back();
      pool.pop_back();
      return page;
    };
    room->in.push_back(take(to.free_in));
    room->out.push_back(take(from.free_out));
  }
  room->region = to.region;
  room->target = to.instance->incarnation();
  const Duration time = dice_.skewed(options_.deadline_min, options_.deadline_max);
  room->deadline = to.instance->now() + time;

  memory::Grant grant{.room = RoomId(room->number >> 1U),
                      .writer = from.instance->incarnation(),
                      .expires = room->deadline};
  grant.components.resize(1);
  grant.components[0].buffers.push_back({to.region, 0, kPageBytes});
  grant.components[0].pages = room->in;
  std::ranges::sort(grant.components[0].pages);
  room->landing = to.instance->pool().allow({.use = Use::kLand,
                                             .what = fmt::format("room {:x}", room->number),
                                             .expires = room->deadline,
                                             .any_content = options_.corrupt_links,
                                             .segments = room->segments(room->in, 0)});
  const auto issued = to.instance->engine().issue_grant(std::move(grant));
  KVM_CHECK(issued.has_value());
  room->grant = *issued;
  rooms_.push_back(room);
  // The sender hears of it by another way, some time later.
  cluster_.after(dice_.skewed(1ms, 200ms), [this, room] { send(room); });
  if (dice_.chance(options_.abort_share)) {
    const bool receiver = dice_.chance(0.6);
    cluster_.after(dice_.skewed(1ms, 2s), [this, room, receiver] {
      Life* one = receiver ? lives_.find(room->to_node, room->to_life)
                           : lives_.find(room->from_node, room->from_life);
      if (one == nullptr || one->instance->paused()) return;
      if (receiver) {
        if (room->receiver_over) return;
        cluster_.note_abort();
        end_receiver(*room, memory::GrantEnd::kRevoked);
      } else if (room->sent && !room->sender_over) {
        cluster_.note_abort();
        one->instance->engine().cancel(room->transfer,
                                       {Code::kAborted, Origin::kCaller, "aborted by the script"});
      }
    });
  }
  if (dice_.chance(options_.thief_share))
    cluster_.after(dice_.skewed(1ms, 300ms), [this, room] { steal(*room); });
}

void GrantRooms::send(const std::shared_ptr<Room>& room) {
  Life* from = lives_.find(room->from_node, room->from_life);
  if (from == nullptr || room->sender_over) return;
  if (from->instance->paused()) return cluster_.after(50ms, [this, room] { send(room); });
  Instance& instance = *from->instance;
  auto transfer = std::make_shared<session::TransferState>();
  for (std::size_t i = 0; i < room->in.size(); ++i) {
    const std::size_t at = kHalf + room->out[i] * kPageBytes;
    instance.pool().write(at, kPageBytes, room->seed(i));
    transfer->pieces.push_back(
        {instance.pool().base() + at, room->region, room->in[i] * kPageBytes, kPageBytes});
  }
  room->sending = instance.pool().allow({.use = Use::kSend,
                                         .what = fmt::format("room {:x}", room->number),
                                         .segments = room->segments(room->out, kHalf)});
  transfer->peer = cluster_.nodes()[room->to_node]->address();
  transfer->grant = room->grant;
  transfer->target = room->target;
  transfer->checksum = options_.checksum;
  transfer->submitted = instance.now();
  transfer->deadline = instance.now() + dice_.skewed(options_.deadline_min, options_.deadline_max);
  room->send_deadline = transfer->deadline;
  transfer->on_done = [this, weak = std::weak_ptr(room)](const Status& status) {
    if (const auto mine = weak.lock()) end_sender(*mine, status);
  };
  room->transfer = transfer;
  room->sent = true;
  instance.engine().submit(std::move(transfer));
}

// Another engine that knows the grant's number: its bytes must not land.
void GrantRooms::steal(Room& room) {
  Node& thief = *dice_.pick(cluster_.nodes());
  if (thief.active() == nullptr || thief.index() == room.to_node ||
      thief.active()->number() == room.from_life)
    return;
  Life& own = *lives_.find(thief.index(), thief.active()->number());
  if (own.free_out.empty()) return;
  const std::uint32_t page = own.free_out.back();
  own.free_out.pop_back();
  Instance& instance = *own.instance;
  const std::size_t at = kHalf + page * kPageBytes;
  const std::uint64_t seed = mix(room.number, 0x7417f);
  instance.pool().write(at, kPageBytes, seed);
  const PermitId sending = instance.pool().allow(
      {.use = Use::kSend, .what = "theft", .segments = {{at, kPageBytes, seed}}});
  auto transfer = std::make_shared<session::TransferState>();
  transfer->pieces.push_back(
      {instance.pool().base() + at, room.region, room.in[0] * kPageBytes, kPageBytes});
  transfer->peer = cluster_.nodes()[room.to_node]->address();
  transfer->grant = room.grant;
  transfer->submitted = instance.now();
  transfer->deadline = instance.now() + 2s;
  // However it ends ("already complete" is how a finished room answers everybody): the pool shows
  // whether anything of it landed.
  transfer->on_done = [this, sending, page, node = thief.index(),
                       number = instance.number()](const Status& /*status*/) {
    if (Life* back = lives_.find(node, number)) {
      back->instance->pool().end(sending);
      back->free_out.push_back(page);
    }
  };
  instance.engine().submit(std::move(transfer));
}

// ------------------------------------------------------------------------------------------- ends

void GrantRooms::end_receiver(Room& room, memory::GrantEnd how) {
  room.receiver_over = true;
  Life* to = lives_.find(room.to_node, room.to_life);
  Pool& pool = to->instance->pool();
  pool.look();
  // Expiry is the table's own business: nobody has to call.
  if (how != memory::GrantEnd::kExpired) to->instance->engine().end_grant(room.grant, how);
  pool.end(room.landing);
  if (how == memory::GrantEnd::kCompleted) {
    ++ok_;
    // A sender that gave up fills the rest of its frame with zeros: its word is missing, and
    // without that nobody may call the room a success. (The KV manager waits for it.)
    const bool withdrawn = room.sender_over && !room.sender_ok;
    if (!withdrawn && (!options_.corrupt_links || options_.checksum))
      for (const Segment& segment : room.segments(room.in, 0))
        if (!pool.matches(segment))
          return cluster_.verdict().report(
              2, fmt::format("{}: room {:x} is complete by its count, but page at {} isn't here "
                             "(the sender {})",
                             to->instance->node().ip(), room.number, segment.begin,
                             room.sender_ok
                                 ? "was told OK"
                                 : fmt::format("has {} retries and isn't done",
                                               room.transfer ? room.transfer->retries : 0)));
    // Decoding goes on: it writes into the last, partly filled page.
    pool.write(room.in.back() * kPageBytes + kPageBytes / 2, kPageBytes / 2,
               mix(room.number, 0xa99e));
  } else {
    ++failed_;
  }
  // Abort, expiry and success alike: the pages may be reused at once.
  to->free_in.insert(to->free_in.end(), room.in.begin(), room.in.end());
}

void GrantRooms::end_sender(Room& room, const Status& status) {
  if (room.sender_over) return;
  room.sender_over = true;
  room.sender_ok = status.is_ok();
  Life* from = lives_.find(room.from_node, room.from_life);
  Life* to = lives_.find(room.to_node, room.to_life);
  if (!status.is_ok() && (status.detail().empty() || status.code() == Code::kInternal))
    cluster_.verdict().report(3, "a room's transfer ended without a reason: " + status.to_string());
  if (status.is_ok() && to != nullptr && !room.receiver_over &&
      (!options_.corrupt_links || options_.checksum)) {
    to->instance->pool().look();
    for (const Segment& segment : room.segments(room.in, 0))
      if (!to->instance->pool().matches(segment))
        cluster_.verdict().report(8,
                                  fmt::format("{} was told that room {:x} is in place at {}; "
                                              "the page at {} isn't",
                                              cluster_.nodes()[room.from_node]->ip(), room.number,
                                              cluster_.nodes()[room.to_node]->ip(), segment.begin));
  }
  if (from == nullptr) return;
  from->instance->pool().end(room.sending);
  for (const std::uint32_t page : room.out)
    from->instance->pool().write(kHalf + page * kPageBytes, kPageBytes, mix(room.number, 0xdead));
  from->free_out.insert(from->free_out.end(), room.out.begin(), room.out.end());
  room.transfer.reset();
}

void GrantRooms::look_at(const std::shared_ptr<Room>& room) {
  if (Life* to = lives_.find(room->to_node, room->to_life); to != nullptr && !room->receiver_over) {
    Instance& instance = *to->instance;
    if (instance.paused()) return;
    const memory::Grant* grant = instance.engine().grants().find(room->grant);
    if (grant != nullptr && grant->expires > instance.now()) {
      if (grant->landed_bytes[0] >= room->in.size() * kPageBytes)
        end_receiver(*room, memory::GrantEnd::kCompleted);
    } else if (instance.now() >= room->deadline) {
      end_receiver(*room, memory::GrantEnd::kExpired);
    } else {
      cluster_.verdict().report(3, fmt::format("room {:x}: its grant vanished", room->number));
    }
  }
  if (Life* from = lives_.find(room->from_node, room->from_life);
      from != nullptr && room->sent && !room->sender_over && !from->instance->paused()) {
    if (from->instance->now() > room->send_deadline + kGrace &&
        cluster_.world().now() > from->instance->running_since() + kGrace)
      cluster_.verdict().report(
          3, fmt::format("{}: a room's transfer is {:.3f} s over its deadline",
                         from->instance->node().ip(),
                         to_seconds(from->instance->now() - room->send_deadline)));
  }
}

void GrantRooms::on_step() {
  for (const auto& room : rooms_) look_at(room);
  std::erase_if(rooms_, [&](const auto& room) {
    if (!room->receiver_over) return false;
    if (room->sender_over) return true;
    // Never sent: its source pages were not taken into use.
    return lives_.find(room->from_node, room->from_life) == nullptr;
  });
}

}  // namespace kvmend::sim
