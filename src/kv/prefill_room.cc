#include "kv/prefill_room.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/config.h"
#include "base/sabotage.h"
#include "kv/layout.h"
#include "session/transfer_state.h"

namespace kvmend::kv {
namespace {

Status mismatch(std::string detail) {
  return {Code::kInvalidArgument, Origin::kCaller, std::move(detail)};
}

const wire::KvPages* find_pages(const std::vector<wire::KvPages>& pages, std::uint32_t component) {
  const auto at = std::ranges::find(pages, component, &wire::KvPages::component);
  return at == pages.end() ? nullptr : &*at;
}

}  // namespace

PrefillRoom::PrefillRoom(const Surroundings& around, Host& host, std::shared_ptr<RoomHandle> handle,
                         std::string only_decode)
    : RoomBase(around, std::move(handle)), host_(host), only_decode_(std::move(only_decode)) {
  const KvRank& rank = around.layout.rank;
  if (around.layout.share != KvShare::kLeader || rank.cp_rank == 0) return;
  required_ = 0;  // context rank 0 brings everything, and decode doesn't know this one
  handle_->advance(KvStatus::kWaitingForInput, around.now());
}

PrefillRoom::Destination* PrefillRoom::find(const Peer& peer, std::uint32_t attempt) {
  for (Destination& to : destinations_)
    if (to.to.peer.incarnation == peer.incarnation && to.to.metadata.attempt == attempt) return &to;
  return nullptr;
}

bool PrefillRoom::serves(const Peer& peer, std::uint32_t attempt) const {
  return std::ranges::any_of(destinations_, [&](const Destination& to) {
    return to.to.peer.incarnation == peer.incarnation && to.to.metadata.attempt == attempt;
  });
}

bool PrefillRoom::serves_other_attempt(const Peer& peer, std::uint32_t attempt) const {
  return std::ranges::any_of(destinations_, [&](const Destination& to) {
    return to.to.peer.incarnation == peer.incarnation && to.to.metadata.attempt != attempt;
  });
}

std::vector<RoomKey> PrefillRoom::keys() const {
  std::vector<RoomKey> out;
  for (const Destination& to : destinations_)
    out.push_back({handle_->room(), to.to.peer.incarnation, to.to.metadata.attempt});
  return out;
}

std::vector<Peer> PrefillRoom::undrained() const {
  std::vector<Peer> out;
  for (const Destination& to : destinations_)
    if (to.undrained && !to.dead) out.push_back(to.to.peer);
  return out;
}

std::uint64_t PrefillRoom::source_pages() const {
  std::uint64_t sum = 0;
  for (const SourceChunk& chunk : chunks_) sum += chunk.pages.size();
  return sum;
}

Status PrefillRoom::announce(Announcement announcement) {
  if (ending_) return *ending_;
  const Peer& peer = announcement.peer;
  const std::uint64_t room = handle_->room().value;
  if (!only_decode_.empty() && peer.session_id != only_decode_)
    return {Code::kAlreadyExists, Origin::kPeer,
            fmt::format("room {} is for {}, not for {}", room, only_decode_, peer.session_id)};
  const std::size_t required = announcement.metadata.required_destinations;
  if (!destinations_.empty() && all_here())
    return {Code::kAlreadyExists, Origin::kPeer,
            fmt::format("room {} is taken by {}", room, destinations_[0].to.peer.session_id)};
  if (!destinations_.empty() && required != required_)
    return {Code::kInvalidArgument, Origin::kPeer,
            fmt::format("room {} is for {} decode engines by the word of {}, for {} by that of {}",
                        room, required_, destinations_[0].to.peer.session_id, required,
                        peer.session_id)};
  const auto self = shared_from_this();
  required_ = required;
  deadline_ = std::min(deadline_, announcement.deadline);
  Destination& to = destinations_.emplace_back();
  to.declared.resize(announcement.plan->components().size());
  to.to = std::move(announcement);
  handle_->set_announced(to.to.peer.session_id, to.to.metadata.prefix_tokens);
  if (all_here()) handle_->advance(KvStatus::kWaitingForInput, around_.now());
  if (const auto blacklisted = around_.port.blacklisted(to.to.peer.address);
      blacklisted && blacklisted->refuses) {
    fail(blacklisted->reason);  // taken from the queue too late
    return {};
  }
  pump_all();
  arm();
  return {};
}

void PrefillRoom::init(std::uint32_t num_pages, std::optional<std::uint32_t> aux_index) {
  if (ending_ || num_pages_) return;
  const auto self = shared_from_this();
  num_pages_ = num_pages;
  aux_index_ = aux_index;
  pump_all();
}

void PrefillRoom::send(SourceChunk chunk) {
  if (ending_ || all_queued_) return;
  const auto self = shared_from_this();
  if (chunks_.size() >= config::kMaxChunksPerRoom)
    return fail({Code::kResourceExhausted, Origin::kCaller,
                 fmt::format("more than {} chunks in one room", config::kMaxChunksPerRoom)});
  if (chunk.last && aux_index_)
    chunk.extra.push_back({.component = *aux_component(around_.layout), .pages = {*aux_index_}});
  all_queued_ = chunk.last;
  handle_->count_chunk();
  chunks_.push_back(std::move(chunk));
  pump_all();
}

void PrefillRoom::on_gate_open() {
  if (ending_) return;
  const auto self = shared_from_this();
  pump_all();
}

void PrefillRoom::pump_all() {
  if (!all_here()) return;
  for (Destination& to : destinations_) pump(to);
  finish_if_complete();  // dummies alone
}

void PrefillRoom::pump(Destination& to) {
  if (ending_ || !num_pages_ || to.doubt) return;
  if (to.to.metadata.dummy) {
    to.complete = all_queued_;
    return;
  }
  if (!check_announced(to)) return;
  to.written.resize(chunks_.size());
  for (std::size_t i = to.first_unwritten; i < chunks_.size(); ++i) {
    if (to.written[i] || !chunks_[i].ready()) continue;
    to.written[i] = true;
    ++to.chunks_written;
    if (!write(to, i) || ending_) return;
  }
  while (to.first_unwritten < chunks_.size() && to.written[to.first_unwritten])
    ++to.first_unwritten;
  send_done_if_complete(to);
}

bool PrefillRoom::check_announced(const Destination& to) {
  const auto components = to.to.plan->components();
  for (std::uint32_t c = 0; c < components.size(); ++c) {
    if (!is_kv(components[c].pool)) continue;
    const wire::KvPages* pages = find_pages(to.to.metadata.pages, c);
    const std::size_t announced = pages == nullptr ? 0 : pages->pages.size();
    if (components[c].fit.takes(*num_pages_, announced)) continue;
    fail(mismatch(fmt::format("room {}: decode {} announced {} {} pages, prefill sends {}",
                              handle_->room().value, to.to.peer.session_id, announced,
                              kv_pool_name(components[c].pool), *num_pages_)));
    return false;
  }
  return true;
}

bool PrefillRoom::plan_chunk(Destination& to, const SourceChunk& chunk, Write& write,
                             std::vector<std::uint64_t>& bytes) {
  const TransferPlan& plan = *to.to.plan;
  Amount sum;
  std::vector<std::pair<std::uint32_t, std::vector<PageRun>>> parts;
  for (const wire::KvPages& destination : to.to.metadata.pages) {
    const ComponentMap& map = plan.components()[destination.component];
    if (map.buffers.empty()) continue;  // another rank brings it
    ChunkPages pages{.destination = destination.pages};
    if (is_kv(map.pool)) {
      pages.source = chunk.pages;
      pages.first = chunk.first;
      pages.total = *num_pages_;
    } else {
      if (!chunk.last) continue;
      if (const wire::KvPages* extra = find_pages(chunk.extra, *map.source_component))
        pages.source = extra->pages;
      if (counts_may_differ(map.pool)) {
        const std::size_t both = std::min(pages.source.size(), pages.destination.size());
        pages.source = pages.source.first(both);
        pages.destination = pages.destination.first(both);
      }
      pages.total = static_cast<std::uint32_t>(pages.source.size());
      if (pages.source.size() != pages.destination.size()) {
        fail(mismatch(fmt::format("room {}: decode {} announced {} {} pages, prefill sends {}",
                                  handle_->room().value, to.to.peer.session_id,
                                  destination.pages.size(), kv_pool_name(map.pool),
                                  pages.source.size())));
        return false;
      }
    }
    parts.emplace_back(destination.component, plan.runs(destination.component, pages));
    const Amount one = plan.amount(destination.component, parts.back().second);
    bytes[destination.component] += one.bytes;
    sum += one;
  }
  if (sum.pieces > config::kMaxPiecesPerWrite) {
    fail({Code::kResourceExhausted, Origin::kCaller,
          fmt::format("room {}: one chunk makes {} pieces (at most {}): send smaller chunks",
                      handle_->room().value, sum.pieces, config::kMaxPiecesPerWrite)});
    return false;
  }
  write.pieces.reserve(sum.pieces);
  for (const auto& [component, runs] : parts) plan.append(component, runs, write.pieces);
  return true;
}

Status PrefillRoom::may_wait(const Destination& to, std::size_t pages) const {
  const auto blacklisted = around_.port.blacklisted(to.to.peer.address);
  if (!blacklisted) return {};
  if (blacklisted->refuses) return blacklisted->reason;
  const Status refused = host_.park_limits().may_park(
      to.to.peer.session_id, pages, [this](const std::string& session) {
        const auto address = parse_address(session);
        return address && around_.port.blacklisted(*address).has_value();
      });
  if (refused.is_ok()) return {};
  return {refused.code(), blacklisted->reason.origin(),
          fmt::format("{}; {}", refused.detail(), blacklisted->reason.detail())};
}

std::shared_ptr<session::TransferGroup> PrefillRoom::group_of(std::size_t chunk) {
  const auto real = std::ranges::count_if(
      destinations_, [](const Destination& to) { return !to.to.metadata.dummy; });
  if (real < 2) return nullptr;
  groups_.resize(chunks_.size());
  if (!groups_[chunk]) groups_[chunk] = std::make_shared<session::TransferGroup>();
  return groups_[chunk];
}

bool PrefillRoom::write(Destination& to, std::size_t index_of_chunk) {
  const SourceChunk& chunk = chunks_[index_of_chunk];
  Write write{.peer = to.to.peer.address,
              .target = to.to.peer.incarnation,
              .grant = to.to.metadata.grant,
              .checksum = around_.options.checksum,
              .deadline = deadline_,
              .group = group_of(index_of_chunk)};
  std::vector<std::uint64_t> bytes(to.declared.size());
  if (!plan_chunk(to, chunk, write, bytes)) return false;
  if (write.pieces.empty()) return true;
  if (Status refused = may_wait(to, chunk.pages.size()); !refused.is_ok()) {
    fail(std::move(refused));
    return false;
  }
  host_.park_limits().hold(to.to.peer.session_id, chunk.pages.size());
  const auto pages = static_cast<std::uint32_t>(chunk.pages.size());
  const auto index = static_cast<std::size_t>(&to - destinations_.data());
  // The id is known only after the call; on_done never runs inside it.
  const auto id = std::make_shared<WriteId>();
  const auto weak = std::weak_ptr(std::static_pointer_cast<PrefillRoom>(shared_from_this()));
  write.on_begun = [weak, index] {
    if (const auto self = weak.lock()) self->on_write_begun(index);
  };
  write.on_done = [weak, index, id, pages, bytes = std::move(bytes)](const Status& result,
                                                                     const WriteCost& cost) {
    const auto self = weak.lock();
    if (self) self->on_write_done(index, *id, result, cost, bytes, pages);
  };
  ++in_flight_;
  ++around_.counters.transfers;
  *id = around_.port.write(std::move(write));
  to.writes.insert(*id);
  if (KVM_SABOTAGE(success_before_landing) && chunk.last) {
    for (std::size_t c = 0; c < to.declared.size(); ++c) to.declared[c] = 1ULL << 40U;
    to.repeat.start(around_.now());
    to.done_sent = true;
    send_done(to);
  }
  return true;
}

void PrefillRoom::on_write_begun(std::size_t destination) {
  if (ending_ || over_) return;
  Destination& to = destinations_[destination];
  handle_->advance(KvStatus::kTransferring, around_.now());
  // Where grants are checked decode sees the first bytes come, and needs no word of it.
  if (around_.port.landing().grants_are_checked || std::exchange(to.told_begun, true)) return;
  static_cast<void>(around_.send(
      to.to.peer, wire::KvRoomStatus{.room = handle_->room(),
                                     .attempt = to.to.metadata.attempt,
                                     .status = static_cast<std::uint32_t>(KvStatus::kTransferring),
                                     .grant = to.to.metadata.grant}));
}

void PrefillRoom::on_write_done(std::size_t destination, WriteId write, const Status& result,
                                const WriteCost& cost, const std::vector<std::uint64_t>& bytes,
                                std::uint32_t pages) {
  if (over_) return;
  const auto self = shared_from_this();
  Destination& to = destinations_[destination];
  to.writes.erase(write);
  note_drained(to, result);
  host_.park_limits().release(to.to.peer.session_id, pages);
  --in_flight_;
  --around_.counters.transfers;
  handle_->add_retries(cost.retries);
  // "Already complete": an earlier attempt landed, and decode has taken the pages over (I9).
  const bool landed = result.is_ok() || result.code() == Code::kAlreadyExists;
  if (landed) {
    for (std::size_t c = 0; c < bytes.size(); ++c) {
      to.declared[c] += bytes[c];
      handle_->add_bytes(bytes[c]);
    }
  } else {
    handle_->add_bytes(cost.bytes);
  }
  if (ending_) {
    if (draining_ && to.writes.empty() && !to.undrained) host_.on_drained(*this, to.to.peer);
    if (in_flight_ == 0) finish();
    return;
  }
  if (landed) return send_done_if_complete(to);
  if (result.code() != Code::kPermissionDenied) return fail(result);
  if (to.doubt) return;
  // Decode has revoked the grant. Its message with the reason travels on another connection.
  to.doubt = result;
  doubt_until_ = std::min(doubt_until_, around_.now() + config::kKvReasonGrace);
  arm();
}

void PrefillRoom::note_drained(Destination& to, const Status& result) const {
  if (!result.is_ok() && !around_.port.rests(to.to.peer.incarnation, to.to.metadata.grant))
    to.undrained = true;
}

void PrefillRoom::send_done_if_complete(Destination& to) {
  if (ending_ || to.done_sent || to.doubt || !all_queued_ || to.chunks_written != chunks_.size() ||
      !to.writes.empty())
    return;
  to.done_sent = true;
  to.repeat.start(around_.now());
  send_done(to);
  arm();
}

void PrefillRoom::send_done(Destination& to) {
  const Status sent =
      around_.send(to.to.peer, wire::KvRoomDone{.room = handle_->room(),
                                                .attempt = to.to.metadata.attempt,
                                                .grant = to.to.metadata.grant,
                                                .declared_bytes = to.declared,
                                                .declared_pages = num_pages_.value_or(0)});
  if (sent.code() == Code::kPeerRestarted) {
    to.gone = to.dead = true;
    fail(peer_restarted(to.to.peer.session_id));
  }
}

void PrefillRoom::on_status(const Peer& from, const wire::KvRoomStatus& message) {
  const auto self = shared_from_this();
  Destination* to = find(from, message.attempt);
  if (to == nullptr || ending_) return;
  const auto status = static_cast<KvStatus>(message.status);
  if (status == KvStatus::kFailed) {
    to->gone = true;
    return fail(reported_by(from.session_id, message.code, message.reason));
  }
  if (status != KvStatus::kSuccess || !to->done_sent) return;
  to->complete = true;
  to->repeat.stop();
  finish_if_complete();
}

void PrefillRoom::finish_if_complete() {
  if (ending_ || over_ || !all_here()) return;
  if (destinations_.empty() && !all_queued_) return;
  if (std::ranges::all_of(destinations_, &Destination::complete)) finish();
}

void PrefillRoom::on_abort(const Peer& from, const wire::KvRoomAbort& message) {
  const auto self = shared_from_this();
  Destination* to = find(from, message.attempt);
  if (to == nullptr) return;
  to->gone = true;
  to->wants_ack = true;
  fail(reported_by(from.session_id, message.code, message.reason));
}

void PrefillRoom::on_peer_incarnation(const std::string& session_id, Incarnation now) {
  const auto self = shared_from_this();
  for (Destination& to : destinations_) {
    if (to.to.peer.session_id != session_id || to.to.peer.incarnation == now || to.complete)
      continue;
    to.gone = to.dead = true;
    fail(peer_gone(session_id, now));
  }
}

void PrefillRoom::supersede(const Peer& from) {
  for (Destination& to : destinations_)
    if (to.to.peer.incarnation == from.incarnation) to.gone = true;
  fail(reported_by(from.session_id, Code::kAborted, "another attempt of the room was started"));
}

void PrefillRoom::fail(Status why) {
  if (ending_) return;
  const auto self = shared_from_this();
  ending_ = std::move(why);
  rest();
  for (Destination& to : destinations_) {
    const bool has_its_pages = to.complete && !to.to.metadata.dummy;  // and the last word
    if (!to.gone && !has_its_pages)
      host_.on_room_failing(*this,
                            {.room = handle_->room(),
                             .attempt = to.to.metadata.attempt,
                             .code = ending_->code(),
                             .reason = reason_text(*ending_),
                             .rank = rank_number(around_.layout.rank)},
                            to.to.peer);
    const std::set<WriteId> writes = to.writes;  // `cancel` may end them at once
    for (const WriteId write : writes) around_.port.cancel(write, *ending_);
  }
  if (in_flight_ == 0) return finish();
  if (around_.port.landing().grants_are_checked) return;
  std::vector<Peer> peers;
  for (const Destination& to : destinations_)
    if (!to.dead && (to.undrained || !to.writes.empty())) peers.push_back(to.to.peer);
  if (peers.empty()) return;
  draining_ = true;
  host_.on_room_draining(*this, peers);
  handle_->fail(*ending_, around_.now());
}

void PrefillRoom::give_up_writes() {
  const auto self = shared_from_this();
  around_.counters.transfers -= in_flight_;
  in_flight_ = 0;
  for (Destination& to : destinations_)
    if (!to.writes.empty()) note_drained(to, {Code::kCancelled, Origin::kLocal, "given up"});
  if (ending_) finish();
}

void PrefillRoom::finish() {
  if (over_) return;
  over_ = true;
  rest();
  for (const Destination& to : destinations_)
    if (to.wants_ack)
      static_cast<void>(
          around_.send(to.to.peer, wire::KvRoomAbortAck{.room = handle_->room(),
                                                        .attempt = to.to.metadata.attempt,
                                                        .rank = rank_number(around_.layout.rank),
                                                        .undrained = to.undrained}));
  const Status result = ending_.value_or(Status::ok());
  host_.on_room_over(*this, result);
  if (result.is_ok()) {
    handle_->advance(KvStatus::kSuccess, around_.now());
  } else {
    handle_->fail(result, around_.now());
  }
}

Time PrefillRoom::next_due() const {
  Time next = doubt_until_;
  for (const Destination& to : destinations_) next = std::min(next, to.repeat.next());
  return next;
}

void PrefillRoom::on_due(Time now) {
  for (Destination& to : destinations_) {
    if (to.doubt && now >= doubt_until_) return fail(*to.doubt);
    if (!to.repeat.due(now)) continue;
    ++around_.counters.messages_repeated;
    send_done(to);
    if (ending_) return;
  }
}

std::string PrefillRoom::where_it_stands() const {
  if (destinations_.empty() && required_ > 0) return "decode hasn't announced its pages";
  if (!all_here())
    return fmt::format("{} of {} decode engines have announced their pages", destinations_.size(),
                       required_);
  for (const Destination& to : destinations_)
    if (const auto blacklisted = around_.port.blacklisted(to.to.peer.address);
        blacklisted && !to.complete && !to.to.metadata.dummy)
      return blacklisted->reason.detail();
  if (in_flight_ > 0) return fmt::format("{} writes were under way", in_flight_);
  if (!std::ranges::all_of(chunks_, &SourceChunk::ready))
    return "a chunk's source pages weren't ready";
  if (!all_queued_) return fmt::format("the caller sent {} chunks and no last one", chunks_.size());
  return "decode hasn't confirmed the pages";
}

}  // namespace kvmend::kv
