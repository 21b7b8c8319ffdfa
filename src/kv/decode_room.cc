#include "kv/decode_room.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/sabotage.h"
#include "kv/layout.h"

namespace kvmend::kv {

DecodeRoom::DecodeRoom(const Surroundings& around, Host& host, std::shared_ptr<RoomHandle> handle,
                       std::uint32_t attempt, const std::vector<Source>& writers)
    : RoomBase(around, std::move(handle)),
      host_(host),
      attempt_(attempt),
      declared_(around.layout.components.size()) {
  writers_.reserve(writers.size());
  for (const Source& source : writers)
    writers_.push_back(
        {.peer = source.peer, .destinations = source.destinations, .dummy = source.dummy});
}

void DecodeRoom::init() {
  if (!over_) handle_->advance(KvStatus::kWaitingForInput, around_.now());
}

std::vector<Peer> DecodeRoom::possible_writers() const {
  std::vector<Peer> out;
  for (const Writer& writer : writers_)
    if (writer.announced && !writer.dummy && !writer.dead) out.push_back(writer.peer);
  return out;
}

std::uint64_t DecodeRoom::kv_pages() const {
  std::uint64_t sum = 0;
  for (const wire::KvPages& pages : pages_)
    if (is_kv(around_.layout.components[pages.component].pool)) sum += pages.pages.size();
  return sum;
}

std::vector<std::string> DecodeRoom::writer_sessions() const {
  std::vector<std::string> out;
  for (const Writer& writer : writers_) out.push_back(writer.peer.session_id);
  return out;
}

DecodeRoom::Writer* DecodeRoom::find(const Peer& peer) {
  for (Writer& writer : writers_)
    if (writer.peer.session_id == peer.session_id && writer.announced &&
        writer.peer.incarnation == peer.incarnation)
      return &writer;
  return nullptr;
}

// ------------------------------------------------------------------------------- announcing

void DecodeRoom::set_pages(std::vector<wire::KvPages> pages, std::uint64_t prefix_tokens) {
  if (over_ || has_pages_) return;
  const auto self = shared_from_this();
  init();
  has_pages_ = true;
  pages_ = std::move(pages);
  prefix_tokens_ = prefix_tokens;
  for (Writer& writer : writers_) announce(writer);
  arm();
}

void DecodeRoom::on_registration(const Registration& registration) {
  const auto self = shared_from_this();
  for (Writer& writer : writers_) {
    if (over_ || writer.peer.session_id != registration.peer.session_id || writer.registered)
      continue;
    if (registration.state == Registration::State::kRefused) return fail(registration.refusal);
    if (writer.announced && writer.peer.incarnation != registration.peer.incarnation) {
      writer.gone = writer.dead = true;
      return fail(peer_restarted(writer.peer.session_id));
    }
    writer.registered = true;
    writer.peer.incarnation = registration.peer.incarnation;
    writer.coverage = registration.coverage;
    if (!check_coverage()) return;
    announce(writer);
  }
  arm();
}

bool DecodeRoom::check_coverage() {
  if (!std::ranges::all_of(writers_, &Writer::registered)) return true;
  std::vector<const WriterCoverage*> all;
  all.reserve(writers_.size());
  for (const Writer& writer : writers_)
    all.push_back(writer.dummy ? nullptr : writer.coverage.get());
  coverage_ = host_.coverage_sums().of(all);
  if (!coverage_->check.is_ok()) {
    fail(coverage_->check);
    return false;
  }
  if (!coverage_->aux_fields.empty()) handle_->set_aux_fields({coverage_, &coverage_->aux_fields});
  return true;
}

void DecodeRoom::on_registration_lost(const std::string& session_id) {
  for (Writer& writer : writers_)
    if (writer.peer.session_id == session_id) {
      writer.registered = false;
      writer.repeat.stop();
    }
  arm();
}

std::optional<Blacklisted> DecodeRoom::down(const Writer& writer) const {
  auto blacklisted = around_.port.blacklisted(writer.peer.address);
  return blacklisted && !blacklisted->trial ? std::move(blacklisted) : std::nullopt;
}

bool DecodeRoom::pair_is_down(const Writer& writer) {
  bool waits = false;
  if (KVM_SABOTAGE(pair_split)) return false;
  for (const Writer& one : writers_) {
    if (one.done) continue;
    auto blacklisted = down(one);
    if (!blacklisted) continue;
    if (blacklisted->refuses) {
      fail(std::move(blacklisted->reason));
      return true;
    }
    pair_waits_ = true;
    pair_wait_until_ = std::min(pair_wait_until_, blacklisted->park_until);
    if (&one == &writer) return false;
    waits = true;
  }
  return waits;
}

void DecodeRoom::on_session_usable(const std::string& session_id) {
  const auto self = shared_from_this();
  if (over_ || std::ranges::none_of(writers_, [&](const Writer& writer) {
        return writer.peer.session_id == session_id;
      }))
    return;
  pair_waits_ = false;  // of those that are down still, the next look says it
  pair_wait_until_ = kForever;
  for (Writer& writer : writers_)
    if (!writer.announced) announce(writer);
  arm();
}

void DecodeRoom::on_session_refused(const std::string& session_id) {
  if (over_ || !pair_waits_) return;  // what is under way may still arrive
  for (const Writer& writer : writers_)
    if (writer.peer.session_id == session_id && !writer.done)
      if (const auto blacklisted = down(writer))
        pair_wait_until_ = std::min(pair_wait_until_, blacklisted->park_until);
  arm();
}

void DecodeRoom::announce(Writer& writer) {
  if (over_ || !has_pages_ || pair_is_down(writer) || !writer.registered) return;
  writer.announced = true;
  if (!writer.grant.is_set() && !writer.dummy) {
    auto grant = around_.port.issue_grant(make_grant(writer));
    if (!grant) return fail(std::move(grant).error());
    writer.grant = *grant;
  }
  writer.repeat.start(around_.now());
  send_metadata(writer);
}

void DecodeRoom::send_metadata(Writer& writer) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - around_.now());
  wire::KvRoomMetadata message{.room = handle_->room(),
                               .attempt = attempt_,
                               .grant = writer.grant,
                               .expires_in = std::clamp<std::chrono::milliseconds>(
                                   left, std::chrono::milliseconds{1}, wire::kMaxKvGrantLifetime),
                               .prefix_tokens = prefix_tokens_,
                               .required_destinations = writer.destinations,
                               .dummy = writer.dummy};
  if (!writer.dummy) message.pages = pages_;
  const Status sent = around_.send(writer.peer, std::move(message));
  if (sent.code() == Code::kPeerRestarted) {
    writer.gone = writer.dead = true;
    fail(peer_restarted(writer.peer.session_id));
  }
}

memory::Grant DecodeRoom::make_grant(const Writer& writer) const {
  memory::Grant grant{.room = handle_->room(),
                      .attempt = attempt_,
                      .writer = writer.peer.incarnation,
                      .access = Access::kRemoteWrite,
                      .expires = deadline_};
  grant.components.resize(around_.described.components.size());
  for (const wire::KvPages& pages : pages_) {
    const wire::KvComponent& from = around_.described.components[pages.component];
    memory::GrantComponent& to = grant.components[pages.component];
    to.pages = pages.pages;
    std::ranges::sort(to.pages);
    to.buffers.reserve(from.regions.size());
    for (std::size_t i = 0; i < from.regions.size(); ++i) {
      if (item_len(from, i) == 0) continue;  // elided
      to.buffers.push_back({.region = from.regions[i],
                            .base_offset = from.base_offset.empty() ? 0 : from.base_offset[i],
                            .item_bytes = item_len(from, i)});
    }
  }
  return grant;
}

// ------------------------------------------------------------------------------- prefill's words

void DecodeRoom::on_status(const Peer& from, const wire::KvRoomStatus& message) {
  const auto self = shared_from_this();
  Writer* writer = find(from);
  if (writer == nullptr || over_) return;
  writer->repeat.stop();
  arm();
  if (writer->dummy && message.status != static_cast<std::uint32_t>(KvStatus::kFailed)) {
    writer->done = true;  // it knows of the room, which is all that it has to
    return complete_if_done();
  }
  switch (static_cast<KvStatus>(message.status)) {
    case KvStatus::kFailed:
      writer->gone = true;
      return fail(reported_by(from.session_id, message.code, message.reason));
    case KvStatus::kTransferring:
      return handle_->advance(KvStatus::kTransferring, around_.now());
    default:
      return;  // Success is ours to decide
  }
}

void DecodeRoom::on_abort(const Peer& from, const wire::KvRoomAbort& message) {
  const auto self = shared_from_this();
  if (Writer* writer = find(from)) {
    writer->gone = true;
    fail(reported_by(from.session_id, message.code, message.reason));
  }
}

void DecodeRoom::on_done(const Peer& from, const wire::KvRoomDone& message) {
  const auto self = shared_from_this();
  Writer* writer = find(from);
  if (writer == nullptr || over_ || writer->dummy || writer->grant != message.grant || writer->done)
    return;
  writer->repeat.stop();
  if (!check_declared(*writer, message)) return;
  writer->done = true;
  if (!source_pages_) source_pages_ = message.declared_pages;
  if (*source_pages_ != message.declared_pages)
    return fail(
        {Code::kProtocolError, Origin::kPeer,
         fmt::format("room {}: {} sent {} pages, another prefill rank {}", handle_->room().value,
                     from.session_id, message.declared_pages, *source_pages_)});
  for (std::size_t c = 0; c < declared_.size(); ++c) declared_[c] += message.declared_bytes[c];
  handle_->advance(KvStatus::kTransferring, around_.now());
  complete_if_done();
  arm();
}

bool DecodeRoom::check_declared(const Writer& writer, const wire::KvRoomDone& message) {
  const std::uint64_t room = handle_->room().value;
  const std::string& who = writer.peer.session_id;
  const auto refuse = [&](std::string detail) {
    fail({Code::kProtocolError, Origin::kPeer, std::move(detail)});
    return false;
  };
  if (message.declared_bytes.size() != declared_.size())
    return refuse(fmt::format("room {}: {} declared {} components, the layout has {}", room, who,
                              message.declared_bytes.size(), declared_.size()));
  if (KVM_SABOTAGE(success_before_landing)) return true;
  // Past the grants nothing is counted: there the writer's word, that all of it was acknowledged,
  // is what there is.
  if (!around_.port.landing().grants_are_checked) return true;
  const auto landed = around_.port.landed_bytes(writer.grant);
  if (!landed) return refuse(fmt::format("room {}: the grant of {} has ended", room, who));
  for (std::size_t c = 0; c < declared_.size(); ++c) {
    const std::uint64_t here = c < landed->size() ? (*landed)[c] : 0;
    if (here < message.declared_bytes[c])
      return refuse(fmt::format("room {}: {} declared {} bytes of {}, {} have landed", room, who,
                                message.declared_bytes[c],
                                kv_pool_name(around_.layout.components[c].pool), here));
  }
  return true;
}

void DecodeRoom::complete_if_done() {
  if (!std::ranges::all_of(writers_, &Writer::done)) return;
  for (const wire::KvPages& pages : pages_) {
    const KvComponent& component = around_.layout.components[pages.component];
    if (counts_may_differ(component.pool)) continue;
    const Coverage& coverage = coverage_->by_component[pages.component];
    const std::uint64_t source_pages = source_pages_.value_or(0);
    if (is_kv(component.pool) && !coverage.takes(source_pages, pages.pages.size()))
      return fail({Code::kProtocolError, Origin::kPeer,
                   fmt::format("room {}: {} pages of {} were announced, prefill sent {}",
                               handle_->room().value, pages.pages.size(),
                               kv_pool_name(component.pool), source_pages)});
    const std::uint64_t required = coverage.bytes_for(pages.pages.size(), source_pages);
    if (declared_[pages.component] < required)
      return fail(
          {Code::kProtocolError, Origin::kPeer,
           fmt::format("room {}: {} of {} bytes of {} were declared", handle_->room().value,
                       declared_[pages.component], required, kv_pool_name(component.pool))});
  }
  over_ = true;
  rest();
  close_grants(memory::GrantEnd::kCompleted);  // before anybody may touch the pages (I9)
  std::uint64_t bytes = 0;
  for (const std::uint64_t one : declared_) bytes += one;
  handle_->add_bytes(bytes);
  handle_->advance(KvStatus::kSuccess, around_.now());
  for (const Writer& writer : writers_)
    static_cast<void>(
        around_.send(writer.peer, status_message(handle_->room(), attempt_, Status::ok())));
  host_.on_room_over(*this, Status::ok(), {});
}

// ------------------------------------------------------------------------------- ends

void DecodeRoom::count_landed() {
  for (const Writer& writer : writers_) {
    if (!writer.grant.is_set()) continue;
    const auto landed = around_.port.landed_bytes(writer.grant);
    if (!landed) continue;
    handle_->add_bytes(std::accumulate(landed->begin(), landed->end(), std::uint64_t{0}));
  }
}

void DecodeRoom::close_grants(memory::GrantEnd how) {
  if (KVM_SABOTAGE(release_on_timeout) && how != memory::GrantEnd::kCompleted) return;
  for (const Writer& writer : writers_)
    if (writer.grant.is_set()) around_.port.end_grant(writer.grant, how);
}

void DecodeRoom::on_peer_incarnation(const std::string& session_id, Incarnation now) {
  const auto self = shared_from_this();
  for (Writer& writer : writers_) {
    if (writer.peer.session_id != session_id || writer.peer.incarnation == now) continue;
    writer.registered = false;
    if (!writer.announced) continue;  // it will register with the new process
    writer.gone = writer.dead = true;
    fail(peer_gone(session_id, now));
  }
}

void DecodeRoom::fail(Status why) {
  if (over_) return;
  const auto self = shared_from_this();
  over_ = true;
  rest();
  count_landed();
  close_grants(memory::GrantEnd::kRevoked);  // the proof that the pages are free, where it counts
  // Where it doesn't, even those who know must say that they have drained.
  const bool ask_all = !around_.port.landing().grants_are_checked;
  if (ask_all && !possible_writers().empty()) handle_->hold_pages();
  handle_->fail(why, around_.now());
  std::vector<Peer> tell;
  for (const Writer& writer : writers_)
    if (writer.announced && (ask_all ? !writer.dead : !writer.gone)) tell.push_back(writer.peer);
  host_.on_room_over(*this, why, tell);
}

Time DecodeRoom::next_due() const {
  Time next = pair_wait_until_;
  for (const Writer& writer : writers_) next = std::min(next, writer.repeat.next());
  return next;
}

void DecodeRoom::on_due(Time now) {
  if (now >= pair_wait_until_) {
    pair_wait_until_ = kForever;
    for (const Writer& writer : writers_)
      if (const auto blacklisted = down(writer); blacklisted && !writer.done)
        return fail(blacklisted->reason);
  }
  for (Writer& writer : writers_) {
    if (!writer.repeat.due(now)) continue;
    ++around_.counters.messages_repeated;
    send_metadata(writer);
    if (over_) return;
  }
}

std::string DecodeRoom::where_it_stands() const {
  if (!has_pages_) return "the caller hasn't announced its pages";
  for (const Writer& writer : writers_)
    if (const auto blacklisted = around_.port.blacklisted(writer.peer.address);
        blacklisted && !writer.done)
      return blacklisted->reason.detail();
  for (const Writer& writer : writers_) {
    if (writer.done) continue;
    if (writer.dummy && writer.registered)
      return fmt::format("prefill {} hasn't answered", writer.peer.session_id);
    if (!writer.registered)
      return fmt::format("prefill {} hasn't answered the registration", writer.peer.session_id);
    return fmt::format("prefill {} hasn't sent all its pages", writer.peer.session_id);
  }
  return "unknown";
}

}  // namespace kvmend::kv
