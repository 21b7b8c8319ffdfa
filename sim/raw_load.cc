#include "sim/raw_load.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "sim/content.h"

namespace kvmend::sim {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kSlotBytes = 6'144;  // more than a frame of the smallest chunk
constexpr std::size_t kNodes = 3;          // initiators that an inbox has slots for
constexpr std::size_t kSlotsPerPeer = 4;
constexpr std::size_t kOutSlots = 6;
constexpr std::size_t kShelfBytes = 4'608;  // read by peers
constexpr std::size_t kInboxBytes = kNodes * kSlotsPerPeer * kSlotBytes;
constexpr std::size_t kShelfBegin = 2 * kInboxBytes;  // the inbox in use, and its successor
constexpr std::size_t kOutBegin = kShelfBegin + kShelfBytes;
constexpr Duration kGrace = 400ms;  // to notice a deadline

std::uint64_t shelf_seed(const Instance& instance) {
  return mix(instance.number(), 0x5e1f);
}

}  // namespace

struct RawLoad::Job {
  std::uint64_t version = 0;
  std::size_t from_node = 0;
  std::uint64_t from_life = 0;
  std::size_t to_node = 0;
  std::uint64_t to_life = 0;
  Opcode opcode = Opcode::kWrite;
  std::size_t slot = 0;      // of the inbox, by writes
  std::size_t in_at = 0;     // where that is in the pool
  std::size_t out_slot = 0;  // of the outbox
  std::size_t length = 0;
  std::size_t offset = 0;  // of a read, on the shelf
  PermitId remote = 0;
  PermitId local = 0;
  Time deadline{};  // by the initiator's clock
  bool over = false;
  bool withdrawn = false;  // its place was deregistered
  std::shared_ptr<session::TransferState> transfer;
};

RawLoad::RawLoad(Cluster& cluster, RawOptions options)
    : cluster_(cluster),
      options_(options),
      dice_(mix(cluster.seed(), 0x4a3)),
      arrivals_(cluster, dice_, options.gap, options.until) {
  cluster.add_part(*this);
  arrivals_.start(options.from, [this] { act(); });
}

RawLoad::~RawLoad() = default;

std::size_t RawLoad::pool_bytes() {
  return kOutBegin + kOutSlots * kSlotBytes;
}

void RawLoad::open_regions(Instance& instance) {
  std::byte* base = instance.pool().base();
  const auto add = [&](std::size_t begin, std::size_t length, Access access) {
    const auto ref =
        instance.engine().register_memory(base + begin, length, MemoryKind::kHost, access);
    KVM_CHECK(ref.has_value());
  };
  add(0, kInboxBytes, Access::kReadWrite);
  add(kShelfBegin, kShelfBytes, Access::kRemoteRead);
  add(kOutBegin, kOutSlots * kSlotBytes, Access::kNone);
}

void RawLoad::on_started(Instance& instance) {
  Pool& pool = instance.pool();
  pool.write(kShelfBegin, kShelfBytes, shelf_seed(instance));
  serving_[instance.number()] =
      pool.allow({.use = Use::kSend,
                  .what = "shelf",
                  .segments = {{kShelfBegin, kShelfBytes, shelf_seed(instance)}}});
  open_regions(instance);
}

void RawLoad::on_killed(Instance& instance) {
  for (const auto& job : jobs_)
    if (job->from_life == instance.number()) {
      job->over = true;
      job->transfer.reset();
      // Its bytes may still be under way to the others.
      if (job->opcode == Opcode::kWrite && !job->withdrawn) {
        late_.emplace_back(job->to_life, job->remote);
        inbox_[{job->to_life, job->slot}].spoilt = true;
      }
    }
  std::erase_if(jobs_, [](const auto& job) { return job->over; });
  std::erase_if(late_, [&](const auto& entry) { return entry.first == instance.number(); });
  serving_.erase(instance.number());
}

Instance* RawLoad::life(std::size_t node, std::uint64_t number) {
  Instance* instance = cluster_.nodes()[node]->instance();
  return instance != nullptr && instance->number() == number ? instance : nullptr;
}

// ----------------------------------------------------------------------------------------- acting

void RawLoad::act() {
  auto& nodes = cluster_.nodes();
  Node& a = *nodes[dice_.below(std::min(nodes.size(), kNodes))];
  Node& b = *dice_.pick(nodes);
  if (&a == &b || a.active() == nullptr || b.instance() == nullptr) return;
  if (dice_.chance(options_.reregister_share)) return reregister(*a.active());
  if (!jobs_.empty() && dice_.chance(options_.cancel_share)) {
    const std::shared_ptr<Job> job = dice_.pick(jobs_);
    Instance* from = life(job->from_node, job->from_life);
    if (from == nullptr || from->paused()) return;
    cluster_.note_abort();
    return from->engine().cancel(job->transfer,
                                 {Code::kCancelled, Origin::kCaller, "cancelled by the script"});
  }
  submit(*a.active(), *b.instance());
}

// The application takes its inbox back and opens another one in the same slot of the table: late
// writes to the old one must not land.
void RawLoad::reregister(Instance& instance) {
  // A write that waits since the last time may take an old address for the one that is valid again.
  if (std::ranges::any_of(jobs_, [&](const auto& job) {
        return job->to_life == instance.number() && job->withdrawn;
      }))
    return;
  Pool& pool = instance.pool();
  std::size_t& begin = inbox_begin_[instance.number()];
  const Status status = instance.engine().unregister_memory(pool.base() + begin);
  KVM_CHECK(status.is_ok(), status.to_string());
  pool.look();
  for (const auto& job : jobs_)
    if (job->to_life == instance.number() && job->opcode == Opcode::kWrite) {
      pool.end(job->remote);
      job->withdrawn = true;
    }
  for (const auto& [owner, permit] : late_)
    if (owner == instance.number()) pool.end(permit);
  std::erase_if(late_, [&](const auto& entry) { return entry.first == instance.number(); });
  for (auto& [key, slot] : inbox_)
    if (key.first == instance.number()) slot = {};
  begin = kInboxBytes - begin;
  const auto ref = instance.engine().register_memory(pool.base() + begin, kInboxBytes,
                                                     MemoryKind::kHost, Access::kReadWrite);
  KVM_CHECK(ref.has_value());
}

void RawLoad::submit(Instance& from, Instance& to) {
  auto job = std::make_shared<Job>();
  const std::size_t own_slots = from.node().index() * kSlotsPerPeer;
  job->slot = own_slots + dice_.below(kSlotsPerPeer);
  job->out_slot = dice_.below(kOutSlots);
  Slot& out = outbox_[{from.number(), job->out_slot}];
  if (out.busy) return;
  job->opcode = dice_.chance(0.75) ? Opcode::kWrite : Opcode::kRead;
  if (job->opcode == Opcode::kWrite) {
    Slot& in = inbox_[{to.number(), job->slot}];
    if (in.busy || in.spoilt) return;
    in.busy = true;
  }
  out.busy = true;
  job->version = mix(cluster_.seed(), ++versions_);
  job->from_node = from.node().index();
  job->from_life = from.number();
  job->to_node = to.node().index();
  job->to_life = to.number();
  const std::size_t out_at = kOutBegin + job->out_slot * kSlotBytes;
  const bool unknown = options_.corrupt_links && !options_.checksum;
  Permit local{.what = fmt::format("transfer {:x}", job->version)};
  Permit remote = local;
  auto transfer = std::make_shared<session::TransferState>();
  transport::Piece piece{.local = from.pool().base() + out_at};
  if (job->opcode == Opcode::kWrite) {
    job->length = static_cast<std::size_t>(dice_.between(1, kSlotBytes));
    const std::size_t in_at = inbox_begin_[to.number()] + job->slot * kSlotBytes;
    job->in_at = in_at;
    from.pool().write(out_at, job->length, job->version);
    local.use = Use::kSend;
    local.segments = {{out_at, job->length, job->version}};
    remote.segments = {{in_at, job->length, job->version}};
    remote.any_content = options_.corrupt_links;
    job->remote = to.pool().allow(std::move(remote));
    piece.offset = reinterpret_cast<std::uint64_t>(to.pool().base() + in_at);
  } else {
    job->length = static_cast<std::size_t>(dice_.between(1, kShelfBytes));
    local.segments = {{out_at, job->length, shelf_seed(to)}};
    local.any_content = unknown || options_.corrupt_links;
    from.pool().write(out_at, job->length, job->version);
    piece.offset = reinterpret_cast<std::uint64_t>(to.pool().base() + kShelfBegin);
  }
  job->local = from.pool().allow(std::move(local));
  piece.length = job->length;
  transfer->peer = to.node().address();
  transfer->opcode = job->opcode;
  transfer->grant = memory::kStandingGrant;
  transfer->target = to.incarnation();
  transfer->raw = true;
  transfer->checksum = options_.checksum;
  transfer->urgent = dice_.chance(0.2);
  transfer->submitted = from.now();
  transfer->deadline = from.now() + dice_.skewed(options_.deadline_min, options_.deadline_max);
  transfer->pieces.push_back(piece);
  job->deadline = transfer->deadline;
  job->transfer = transfer;
  transfer->on_done = [this, weak = std::weak_ptr(job)](const Status& status) {
    if (const auto mine = weak.lock()) finished(mine, status);
  };
  jobs_.push_back(job);
  from.engine().submit(std::move(transfer));
}

// ---------------------------------------------------------------------------------------- results

void RawLoad::finished(const std::shared_ptr<Job>& job, const Status& status) {
  if (job->over) return;
  job->over = true;
  Instance* from = life(job->from_node, job->from_life);
  Instance* to = life(job->to_node, job->to_life);
  Slot& in = inbox_[{job->to_life, job->slot}];
  ++(status.is_ok() ? ok_ : not_ok_);
  const bool known = !options_.corrupt_links || options_.checksum;
  if (job->opcode == Opcode::kWrite) {
    if (!job->withdrawn) in.busy = false;
    const Segment wanted{job->in_at, job->length, job->version};
    if (job->withdrawn) {
      // How it ends depends on when; nothing of it may land any more.
    } else if (status.is_ok() && to != nullptr) {
      to->pool().look();
      if (known && !to->pool().matches(wanted))
        cluster_.verdict().report(8, fmt::format("{} was told that {} bytes are in place at {}; "
                                                 "they aren't",
                                                 from->node().ip(), job->length, to->node().ip()));
      to->pool().end(job->remote);
    } else {
      in.spoilt = true;
      late_.emplace_back(job->to_life, job->remote);
    }
  } else if (status.is_ok() && known) {
    from->pool().look();
    const std::uint64_t seed = mix(job->to_life, 0x5e1f);
    if (!from->pool().matches({kOutBegin + job->out_slot * kSlotBytes, job->length, seed}))
      cluster_.verdict().report(
          8, fmt::format("{} read {} bytes from {}: not those of life {}", from->node().ip(),
                         job->length, cluster_.nodes()[job->to_node]->ip(), job->to_life));
  }
  if (!status.is_ok() && (status.detail().empty() || status.code() == Code::kInternal))
    cluster_.verdict().report(3, "a transfer ended without a reason: " + status.to_string());
  if (from != nullptr) {
    from->pool().end(job->local);
    // The memory is the application's again: it writes other things there at once.
    from->pool().write(kOutBegin + job->out_slot * kSlotBytes, job->length,
                       mix(job->version, 0xdead));
  }
  outbox_[{job->from_life, job->out_slot}].busy = false;
}

void RawLoad::on_step() {
  if (std::ranges::any_of(jobs_, [](const auto& job) { return job->over; }))
    std::erase_if(jobs_, [](const auto& job) { return job->over; });
  for (const auto& job : jobs_) {
    Instance* from = life(job->from_node, job->from_life);
    if (from == nullptr || from->paused()) continue;
    if (from->now() > job->deadline + kGrace &&
        cluster_.world().now() > from->running_since() + kGrace)
      return cluster_.verdict().report(
          3, fmt::format("{}: a transfer is {:.3f} s over its deadline", from->node().ip(),
                         to_seconds(from->now() - job->deadline)));
  }
}

void RawLoad::finish() {
  for (const auto& [owner, permit] : late_)
    for (const auto& node : cluster_.nodes())
      if (Instance* instance = life(node->index(), owner)) instance->pool().end(permit);
  late_.clear();
  for (const auto& [owner, permit] : serving_)
    for (const auto& node : cluster_.nodes())
      if (Instance* instance = life(node->index(), owner)) instance->pool().end(permit);
}

}  // namespace kvmend::sim
