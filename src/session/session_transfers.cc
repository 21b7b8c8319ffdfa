// A session's transfers: queue, chunks in flight, results.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/config.h"
#include "base/contain.h"
#include "base/sabotage.h"
#include "session/chunker.h"
#include "session/session.h"

namespace kvmend::session {

using health::State;

namespace {

// A turn that posts more than this sends what it has once in between: the peer begins while the
// rest of a large batch is still being prepared.
constexpr std::uint64_t kFlushEarlyBytes = 512U << 10U;

}  // namespace

void Session::submit(const TransferPtr& transfer) {
  const Time now = host_.loop.now();
  if (const Status room = room_for(*transfer); !room.is_ok()) return finish(transfer, room);
  hold(*transfer);
  for (const transport::Piece& piece : transfer->pieces) transfer->total_bytes += piece.length;
  transfers_.emplace(transfer->id, transfer);
  apply(health_.on_demand(now));
  const Incarnation meant = transfer->target.is_set() ? transfer->target : pinned_;
  if (meant.is_set() && health_.peer().is_set() && meant != health_.peer()) {
    finish(transfer, not_the_one_meant());
    return;
  }
  index_deadline(transfer, transfer->deadline);
  enqueue(transfer, false);
  if (health_.blacklisted()) {
    index_deadline(transfer, health_.park_until(transfer->deadline, now));
    if (refuses()) {
      finish(transfer, refusal());
      return;
    }
  }
  update_parked();
  schedule_pump();
}

bool Session::refuses() {
  return health_.state() == State::kFailed &&
         health_.admit().verdict == health::Admission::Verdict::kRefuse;
}

// Transfers that wait are memory of ours: a caller who outruns a slow or parked peer learns it at
// once instead of growing the process.
Status Session::room_for(const TransferState& transfer) const {
  const auto full = [&](std::size_t count, std::string_view what) {
    return Status(Code::kResourceExhausted, Origin::kLocal,
                  fmt::format("{} {} wait already (session {} is {})", count, what, id_,
                              health::state_name(health_.state())));
  };
  if (transfers_.size() >= config::kMaxTransfersPerSession)
    return full(transfers_.size(), "transfers of this session");
  if (host_.load.transfers >= config::kMaxTransfers)
    return full(host_.load.transfers, "transfers of this engine");
  if (host_.load.pieces > 0 && host_.load.pieces + transfer.pieces.size() > config::kMaxPieces)
    return full(host_.load.pieces, "slices of this engine");
  return Status::ok();
}

void Session::hold(TransferState& transfer) {
  transfer.held = true;
  ++host_.load.transfers;
  host_.load.pieces += transfer.pieces.size();
}

void Session::index_deadline(const TransferPtr& transfer, Time when) {
  deadlines_.erase({transfer->expires, transfer->id});
  transfer->expires = when;
  if (when == kForever || KVM_SABOTAGE(no_deadline)) return;
  deadlines_.emplace(when, transfer->id);
  arm();
}

void Session::enqueue(const TransferPtr& transfer, bool front) {
  if (transfer->queued || transfer->done) return;
  transfer->queued = true;
  std::list<TransferPtr>& queue = transfer->urgent ? urgent_ : queue_;
  transfer->place = queue.insert(front ? queue.begin() : queue.end(), transfer);
}

void Session::unadmit_all() {
  // They wait for this one too now, which must try them when it can.
  while (!pair_parked_.empty()) unpark_for_pair(pair_parked_.front());
  for (const auto& [id, transfer] : transfers_) {
    if (!transfer->admitted) continue;
    transfer->admitted = false;
    --admitted_;
    health_.release(transfer->ticket);
    transfer->ticket = {};
  }
  limit_parking();
}

// What is known of a blacklisted peer now may shorten the wait of what is parked already; neither
// that nor a relapse lengthens it.
void Session::limit_parking() {
  if (host_.health_options.park_max == Duration::max() &&
      host_.health_options.refused_park_max == Duration::max())
    return;
  const Time now = host_.loop.now();
  for (const auto& [id, transfer] : transfers_)
    if (!transfer->admitted)
      index_deadline(transfer,
                     std::min(transfer->expires, health_.park_until(transfer->deadline, now)));
}

void Session::update_parked() {
  if (health_.state() == State::kRetired) return;
  const std::size_t waiting =
      transfers_.size() - admitted_ + (outbox_.empty() ? 0U : 1U) + openings_.size();
  const std::size_t parked = health_.state() == State::kFailed ? waiting : pair_parked_.size();
  apply(health_.set_parked(parked, host_.loop.now()));
}

void Session::schedule_pump() {
  if (pump_scheduled_) return;
  host_.loop.at_end_of_turn([this, alive = std::weak_ptr(alive_)] {
    if (alive.expired()) return;
    pump_scheduled_ = false;
    pump();
  });
  pump_scheduled_ = true;
}

std::uint32_t Session::bytes_of_next_chunk(const TransferState& transfer) const {
  constexpr std::uint64_t kLeastInWindow = 4;
  const EngineOptions& options = host_.self.options;
  const std::uint64_t most =
      std::min<std::uint64_t>(epoch_->longest_chunk(transfer.opcode, options.chunk_bytes),
                              options.window_bytes / kLeastInWindow);
  return chunk_bytes(transfer, options.chunk_bytes, static_cast<std::uint32_t>(most));
}

bool Session::window_open() const {
  return in_flight_bytes_ < host_.self.options.window_bytes &&
         in_flight_.size() < host_.self.options.window_chunks && epoch_->takes_chunks();
}

void Session::pump() {
  if (!epoch_ || !epoch_->up()) return;
  send_waiting_control();
  bool posted = false;
  bool told = false;
  bool flushed = false;
  std::uint64_t posted_bytes = 0;
  for (std::list<TransferPtr>* queue : {&urgent_, &queue_}) {
    auto at = queue->begin();
    while (at != queue->end() && epoch_ && epoch_->up() && window_open()) {
      const TransferPtr transfer = *at;
      const auto next = std::next(at);
      if (!ready_to_send(transfer)) {
        // Refused, or its addresses are wrong: gone from the queue, perhaps with others.
        at = transfer->done ? queue->begin() : next;
        continue;
      }
      if (transfer->on_begun && transfer->has_unsent()) {
        std::exchange(transfer->on_begun, nullptr)();  // may send messages; ends no transfer
        told = true;
      }
      while (transfer->has_unsent() && window_open()) {
        ChunkSpan span = next_span(*transfer, bytes_of_next_chunk(*transfer));
        if (!span.id.is_set()) span.id = host_.next_chunk_id();
        in_flight_bytes_ += span.bytes;
        ++transfer->chunks_in_flight;
        in_flight_.emplace(span.id, InFlight{transfer, span});
        epoch_->post(make_chunk(*transfer, span));
        posted = true;
        posted_bytes += span.bytes;
        if (flushed || posted_bytes < kFlushEarlyBytes) continue;
        flushed = true;
        if (std::exchange(told, false)) send_waiting_control();  // goes before the pages
        if (epoch_) epoch_->flush();
        // The lane broke, or the memory of a chunk isn't there: the queue isn't what it was.
        if (!epoch_ || !epoch_->up() || transfer->done) return schedule_pump();
      }
      if (transfer->has_unsent()) break;
      transfer->queued = false;
      at = queue->erase(at);
      if (transfer->pieces.empty()) {  // a notification alone
        data_complete(transfer);
        at = queue->begin();
      }
    }
  }
  if (told) send_waiting_control();
  if (posted && epoch_) epoch_->flush();
  if (!pair_parked_.empty()) update_parked();  // nobody retires what they wait here with
  arm();
}

bool Session::ready_to_send(const TransferPtr& transfer) {
  // Nobody was known when it was submitted: another process than the one it is meant for answered.
  const Incarnation meant = transfer->target.is_set() ? transfer->target : pinned_;
  if (meant.is_set() && meant != health_.peer() && !KVM_SABOTAGE(no_incarnation_check)) {
    finish(transfer, not_the_one_meant());
    return false;
  }
  if (transfer->raw && !translate(transfer)) return false;
  return transfer->admitted || admit(transfer);
}

bool Session::admit(const TransferPtr& transfer) {
  const health::Admission admission = health_.admit();
  using Verdict = health::Admission::Verdict;
  if (transfer->group && admission.verdict != Verdict::kPark && !KVM_SABOTAGE(pair_split)) {
    health_.release(admission.ticket);
    const Verdict verdict = host_.admit_group(*transfer->group);
    if (verdict == Verdict::kPark) park_for_pair(transfer);
    return verdict == Verdict::kDispatch;
  }
  if (admission.verdict == Verdict::kDispatch) admitted(transfer, admission.ticket);
  if (admission.verdict == Verdict::kRefuse) finish(transfer, refusal());
  return admission.verdict == Verdict::kDispatch;
}

void Session::admitted(const TransferPtr& transfer, health::Ticket ticket) {
  transfer->admitted = true;
  transfer->ticket = ticket;
  ++admitted_;
  index_deadline(transfer, transfer->deadline);
  if (!transfer->pair_parked) return;
  unpark_for_pair(transfer);
  schedule_pump();
}

// A healthy session looks at its queue again and again: what waits for another session isn't in
// it. That other session has its own member of the group in its queue, and will try all of them.
void Session::park_for_pair(const TransferPtr& transfer) {
  if (health_.blacklisted() || !transfer->queued || transfer->pair_parked) return;
  transfer->pair_parked = true;
  pair_parked_.splice(pair_parked_.end(), transfer->urgent ? urgent_ : queue_, transfer->place);
}

void Session::unpark_for_pair(const TransferPtr& transfer) {
  transfer->pair_parked = false;
  std::list<TransferPtr>& queue = transfer->urgent ? urgent_ : queue_;
  queue.splice(queue.end(), pair_parked_, transfer->place);
}

bool Session::translate(const TransferPtr& transfer) {
  if (!regions_ || tables_received_ < transfer->awaits_table) return false;
  std::vector<transport::Piece>& pieces = transfer->pieces;
  bool whole = true;
  for (const transport::Piece& piece : pieces) {
    // Slices merge by address alone: where regions touch, a piece may cross their border.
    for (std::uint64_t done = 0; done < piece.length;) {
      const auto head = regions_->translate_head(piece.offset + done, piece.length - done);
      if (!head) {
        await_newer_table(transfer, regions_->translate(piece.offset, piece.length).error());
        return false;
      }
      whole = whole && head->length == piece.length;
      done += head->length;
    }
  }
  if (whole) {  // nearly always: in place, which spares a large transfer as much memory again
    for (transport::Piece& piece : pieces) {
      const auto place = regions_->translate_head(piece.offset, piece.length);
      piece.region = place->region;
      piece.offset = place->offset;
    }
  } else {
    split_at_regions(*transfer);
  }
  transfer->raw = false;
  return true;
}

void Session::split_at_regions(TransferState& transfer) {
  std::vector<transport::Piece> placed;
  placed.reserve(transfer.pieces.size() + 1);
  for (const transport::Piece& piece : transfer.pieces) {
    for (std::uint64_t done = 0; done < piece.length;) {
      const auto head = regions_->translate_head(piece.offset + done, piece.length - done);
      placed.push_back({piece.local + done, head->region, head->offset, head->length});
      done += head->length;
    }
  }
  host_.load.pieces += placed.size() - transfer.pieces.size();
  transfer.pieces = std::move(placed);
}

// Perhaps the address was registered a moment ago: look once at the peer's table of now. Others go
// on meanwhile.
void Session::await_newer_table(const TransferPtr& transfer, const Status& otherwise) {
  if (transfer->awaits_table != 0) return finish(transfer, otherwise);
  // An answer that is under way may be older than the registration: then the one after it counts.
  transfer->awaits_table = tables_received_ + (table_asked_ ? 2 : 1);
  if (table_asked_) {
    table_wanted_ = true;
  } else {
    ask_for_regions();
  }
}

// --------------------------------------------------------------------------------------- results

Status Session::chunk_error(const InFlight& chunk, const wire::AckEntry& result) const {
  const TransferState& transfer = *chunk.transfer;
  const std::size_t index =
      std::min<std::size_t>(chunk.span.first_piece + result.argument, transfer.pieces.size() - 1);
  const transport::Piece& piece = transfer.pieces[index];
  return {result.code, result.origin,
          fmt::format("{} refused {} {} bytes {} region {} offset {} (slice {} of {}): {}", id_,
                      transfer.opcode == Opcode::kWrite ? "writing" : "reading", piece.length,
                      transfer.opcode == Opcode::kWrite ? "to" : "from", piece.region.slot,
                      piece.offset, index, transfer.pieces.size(), code_name(result.code))};
}

void Session::on_chunk_done(const wire::AckEntry& result) {
  const auto at = in_flight_.find(result.chunk);
  if (at == in_flight_.end()) return;
  InFlight chunk = std::move(at->second);
  in_flight_.erase(at);
  in_flight_bytes_ -= chunk.span.bytes;
  const TransferPtr& transfer = chunk.transfer;
  --transfer->chunks_in_flight;
  const Time now = host_.loop.now();
  if (!heard_) {
    heard_ = true;
    apply(health_.on_life(now));
  }
  // "Already complete" to a chunk that is sent again: its acknowledgement was lost, the receiver
  // closed the room with these very bytes in place.
  const bool landed_before = result.code == Code::kAlreadyExists && chunk.span.sent_before &&
                             transfer->opcode == Opcode::kWrite;
  if (result.code == Code::kOk || landed_before) {
    transfer->acked_bytes += chunk.span.bytes;
    (transfer->opcode == Opcode::kWrite ? bytes_written_ : bytes_read_) += chunk.span.bytes;
    if (transfer->acked_bytes == transfer->total_bytes) data_complete(transfer);
  } else if (result.code == Code::kChecksumMismatch &&
             chunk.span.mismatches < config::kMaxChecksumRetries) {
    ++chunk.span.mismatches;
    ++transfer->retries;
    ++retries_;
    host_.events.on_chunk_retry(id_);
    transfer->resend.push_back(chunk.span);
    enqueue(transfer, true);
  } else {
    const Status why = chunk_error(chunk, result);
    finish(transfer, why);
    failed(why);
  }
  schedule_pump();
}

void Session::data_complete(const TransferPtr& transfer) {
  if (!transfer->notify) {
    finish(transfer, Status::ok());
    return;
  }
  const Status queued = outbox_.add(
      wire::encode_control(wire::Notify{transfer->notify->name, transfer->notify->message}),
      transfer->id);
  if (!queued.is_ok()) {
    finish(transfer, queued);
    return;
  }
  send_waiting_control();
  if (epoch_) epoch_->flush();
}

void Session::finish(const TransferPtr& transfer, const Status& status) {
  if (transfer->done) return;
  // The reference may be into what is erased: NOLINTNEXTLINE(*-unnecessary-copy-initialization)
  const TransferPtr keep = transfer;
  keep->done = true;
  transfers_.erase(keep->id);
  deadlines_.erase({keep->expires, keep->id});
  if (keep->held) {
    keep->held = false;
    --host_.load.transfers;
    host_.load.pieces -= keep->pieces.size();
  }
  if (keep->pair_parked) unpark_for_pair(keep);
  if (keep->queued) {
    (keep->urgent ? urgent_ : queue_).erase(keep->place);
    keep->queued = false;
  }
  if (keep->chunks_in_flight > 0) {
    for (auto at = in_flight_.begin(); at != in_flight_.end();) {
      if (at->second.transfer != keep) {
        ++at;
        continue;
      }
      if (epoch_) epoch_->detach(at->first);
      in_flight_bytes_ -= at->second.span.bytes;
      at = in_flight_.erase(at);
    }
    keep->chunks_in_flight = 0;
  }
  if (keep->notify && !status.is_ok()) outbox_.withdraw(keep->id);
  const Time now = host_.loop.now();
  if (keep->admitted) --admitted_;
  ++(status.is_ok() ? ok_ : failed_);
  contain("counting a transfer", [&] { host_.events.on_transfer_done(*keep, status, now); });
  if (keep->on_done) std::exchange(keep->on_done, nullptr)(status);
  if (keep->group && !keep->admitted && !keep->group->ended) host_.end_group(*keep->group, status);
  if (keep->admitted && status.is_ok()) {
    apply(health_.on_transfer_ok(keep->ticket, now));
  } else if (keep->admitted) {
    health_.release(keep->ticket);
  }
  keep->admitted = false;
  update_parked();
  schedule_pump();
}

Status Session::not_the_one_meant() const {
  return {Code::kPeerRestarted, Origin::kPeer,
          fmt::format("peer restarted: another process answers at {}; open the session again to "
                      "accept it",
                      id_)};
}

Status Session::expired(const TransferState& transfer) const {
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(host_.loop.now() - transfer.submitted);
  const Session* awaited = nullptr;
  if (!transfer.admitted && health_.blacklisted()) {
    awaited = this;
  } else if (!transfer.admitted && transfer.group) {
    awaited = host_.blacklisted_of(*transfer.group);
  }
  if (awaited != nullptr) {
    const Status why = awaited->refusal();
    return {Code::kSessionFailed, why.origin(),
            fmt::format("waited {} ms for {}", ms.count(), why.detail()), why.sys_errno()};
  }
  return {Code::kDeadlineExceeded, Origin::kLocal,
          fmt::format("{} of {} bytes were confirmed by {} within {} ms (session {}{}{})",
                      transfer.acked_bytes, transfer.total_bytes, id_, ms.count(),
                      health::state_name(health_.state()),
                      last_problem_.is_ok() ? "" : "; last error: ", last_error())};
}

void Session::fail_users_of(const std::byte* base, std::uint64_t length, const Status& why) {
  std::vector<TransferPtr> users;
  for (const auto& [id, transfer] : transfers_) {
    const bool uses = std::ranges::any_of(transfer->pieces, [&](const transport::Piece& piece) {
      return piece.local < base + length && base < piece.local + piece.length;
    });
    if (uses) users.push_back(transfer);
  }
  for (const TransferPtr& transfer : users) finish(transfer, why);
}

void Session::fail_all(const Status& why) {
  std::vector<TransferPtr> all;
  for (const auto& [id, transfer] : transfers_) all.push_back(transfer);
  std::ranges::sort(all, {}, [](const TransferPtr& t) { return t->id; });
  for (const TransferPtr& transfer : all) finish(transfer, why);
}

// --------------------------------------------------------------------------------------- control

Status Session::send_control(const wire::Control& control, Incarnation target, std::string key) {
  apply(health_.on_demand(host_.loop.now()));
  if (target.is_set() && health_.peer().is_set() && target != health_.peer())
    return {Code::kPeerRestarted, Origin::kPeer,
            fmt::format("peer restarted: another process answers at {}", id_)};
  if (target.is_set() && outbox_target_ != target) {
    // Nobody has answered yet. What waits for another process is out of date.
    if (outbox_target_.is_set()) outbox_.reset();
    outbox_target_ = target;
  }
  Status queued = outbox_.add(wire::encode_control(control), {}, std::move(key));
  if (!queued.is_ok()) return queued;
  update_parked();
  schedule_pump();
  return Status::ok();
}

void Session::send_waiting_control() {
  if (!epoch_ || !epoch_->up()) return;
  bool sent = false;
  outbox_.send_new([&](const ControlOutbox::Message& message) {
    epoch_->send_control(message.seq, message.body);
    sent = true;
  });
  if (sent) epoch_->flush();
  update_watch();
}

void Session::say_goodbye(const std::string& reason) {
  if (!epoch_ || !epoch_->up()) return;
  epoch_->send_control(0, wire::encode_control(wire::Goodbye{reason}));
  epoch_->flush();
}

void Session::on_control_ack(std::uint64_t seq) {
  const Time now = host_.loop.now();
  control_watch_.progress(now);
  apply(health_.on_life(now));
  handed_on(outbox_.acknowledge(seq));
  arm();
}

void Session::handed_on(const std::vector<TransferId>& told) {
  for (const TransferId id : told) {
    const auto at = transfers_.find(id);
    if (at != transfers_.end()) finish(TransferPtr(at->second), Status::ok());
  }
}

void Session::on_pong() {
  pinging_ = false;
  heard_ = true;
  const Time now = host_.loop.now();
  control_watch_.progress(now);
  apply(health_.on_life(now));
}

void Session::on_control(Bytes body) {
  const auto control = wire::parse_control(body);
  if (!control) {
    on_epoch_down(control.error());
    return;
  }
  if (const auto* goodbye = std::get_if<wire::Goodbye>(&*control))
    return on_goodbye(goodbye->reason);
  const auto* part = std::get_if<wire::RegionTablePart>(&*control);
  if (part == nullptr) return;
  if (auto snapshot = regions_builder_.apply(*part)) {
    regions_ = std::move(snapshot);
    ++tables_received_;
    table_asked_ = false;
    if (std::exchange(table_wanted_, false)) ask_for_regions();
    settle_if_usable();
    schedule_pump();
    return;
  }
  const Status error = regions_builder_.error();
  if (!error.is_ok()) on_epoch_down(error);
}

void Session::ask_for_regions() {
  table_asked_ = true;
  epoch_->send_control(0, wire::encode_control(wire::RegionTableRequest{}));
  epoch_->flush();
}

}  // namespace kvmend::session
