#include "wire/control.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <span>

#include "base/address.h"
#include "wire/control.pb.h"
#include "wire/frame.h"
#include "wire/pb_access.h"
#include "wire/text.h"

namespace kvmend::wire {
namespace {

using internal::as_bytes;
using internal::as_string;
using internal::malformed;
using internal::parse_capped;
using internal::serialize;

// ------------------------------------------------------------------------------------ caps

constexpr std::array kHostCaps = {FieldCap{.field = 1, .max_bytes = 16},
                                  FieldCap{.field = 5, .max_bytes = kMaxLocalAddressBytes}};
constexpr std::array kAuthCaps = {FieldCap{.field = 2, .max_bytes = kMaxAuthBytes}};
constexpr std::array kHelloCaps = {
    FieldCap{.field = 5, .max_bytes = kMaxSessionIdBytes},
    FieldCap{.field = 8, .max_bytes = sizeof(Token)},
    FieldCap{.field = 11, .max_bytes = kMaxHelloBytes, .fields = kHostCaps},
    FieldCap{.field = 12, .max_bytes = kMaxHelloBytes, .fields = kAuthCaps}};
constexpr std::array kHelloAckCaps = {
    FieldCap{.field = 4, .max_bytes = sizeof(Token)},
    FieldCap{.field = 6, .max_bytes = kMaxHelloBytes, .fields = kHostCaps},
    FieldCap{.field = 7, .max_bytes = kMaxHelloBytes, .fields = kAuthCaps}};
constexpr std::array kHelloRejectCaps = {FieldCap{.field = 2, .max_bytes = kMaxReasonBytes}};

constexpr std::array kRegionTableCaps = {
    FieldCap{.field = 4, .max_count = kMaxRegionsPerMessage, .max_bytes = 64}};
constexpr std::array kNotifyCaps = {FieldCap{.field = 1, .max_bytes = kMaxNotifyNameBytes},
                                    FieldCap{.field = 2, .max_bytes = kMaxNotifyBytes}};
constexpr std::array kGoodbyeCaps = {FieldCap{.field = 1, .max_bytes = kMaxReasonBytes}};
constexpr std::array kUpperCaps = {FieldCap{.field = 2, .max_bytes = kMaxUpperBytes}};
constexpr std::array kControlCaps = {
    FieldCap{.field = 1, .max_bytes = kMaxControlBytes, .fields = kRegionTableCaps},
    FieldCap{.field = 2, .max_bytes = kMaxControlBytes},
    FieldCap{.field = 3, .max_bytes = kMaxControlBytes, .fields = kNotifyCaps},
    FieldCap{.field = 4, .max_bytes = kMaxControlBytes, .fields = kGoodbyeCaps},
    FieldCap{.field = 5, .max_bytes = kMaxControlBytes, .fields = kUpperCaps}};

// ------------------------------------------------------------------------------------ parts

template <std::size_t N>
std::array<std::byte, N> to_array(std::string_view text) {
  std::array<std::byte, N> out{};
  std::ranges::copy(std::as_bytes(std::span(text.substr(0, N))), out.begin());
  return out;
}

Result<std::optional<Token>> read_token(const std::string& text) {
  if (text.empty()) return std::optional<Token>{};
  if (text.size() != sizeof(Token)) return malformed(fmt::format("token of {} bytes", text.size()));
  return std::optional<Token>{to_array<sizeof(Token)>(text)};
}

Result<HostIdentity> read_host(const pb::HostIdentity& from) {
  if (from.boot_id().size() != sizeof(HostIdentity::boot_id))
    return malformed(fmt::format("boot id of {} bytes", from.boot_id().size()));
  return HostIdentity{.boot_id = to_array<sizeof(HostIdentity::boot_id)>(from.boot_id()),
                      .uid = from.uid(),
                      .pid = from.pid(),
                      .pid_start = from.pid_start(),
                      .local_address = from.local_address()};
}

void write_host(const HostIdentity& host, pb::HostIdentity& to) {
  KVM_CHECK(host.local_address.size() <= kMaxLocalAddressBytes);
  to.set_boot_id(as_string(host.boot_id));
  to.set_uid(host.uid);
  to.set_pid(host.pid);
  to.set_pid_start(host.pid_start);
  to.set_local_address(host.local_address);
}

Auth read_auth(const pb::Auth& from) {
  const Bytes payload = as_bytes(from.payload());
  return {.scheme = from.scheme(), .payload = {payload.begin(), payload.end()}};
}

void write_auth(const Auth& auth, pb::Auth& to) {
  KVM_CHECK(auth.payload.size() <= kMaxAuthBytes);
  to.set_scheme(auth.scheme);
  to.set_payload(as_string(auth.payload));
}

// What Hello and HelloAck have in common.
template <class From, class To>
Status read_common(const From& from, To& to) {
  to.incarnation = Incarnation{from.incarnation()};
  if (!to.incarnation.is_set()) return {Code::kProtocolError, Origin::kPeer, "incarnation 0"};
  to.epoch = Epoch{from.epoch()};
  auto token = read_token(from.token());
  if (!token) return token.error();
  to.token = *token;
  to.features = from.features();
  if (from.has_host()) {
    auto host = read_host(from.host());
    if (!host) return host.error();
    to.host = std::move(*host);
  }
  to.auth = read_auth(from.auth());
  return Status::ok();
}

template <class From, class To>
void write_common(const From& from, To& to) {
  to.set_incarnation(from.incarnation.value);
  to.set_epoch(from.epoch.value);
  if (from.token) to.set_token(as_string(*from.token));
  to.set_features(from.features);
  if (from.host) write_host(*from.host, *to.mutable_host());
  write_auth(from.auth, *to.mutable_auth());
}

bool sane_versions(std::uint32_t min, std::uint32_t max) {
  return min >= 1 && min <= max;
}

// Epochs and control messages count up by one from 1: a number beyond this is made up, and would
// leave no room for the next one.
constexpr std::uint64_t kMaxCount = 1ULL << 63U;

// Why a hello makes no sense for its kind of lane; nullptr when it does.
const char* lane_error(const Hello& hello) {
  if (hello.epoch.value > kMaxCount) return "epoch beyond 2^63";
  switch (hello.kind) {
    case LaneKind::kControl:
      return hello.epoch.is_set() ? nullptr : "control lane without an epoch";
    case LaneKind::kData:
      return hello.epoch.is_set() && hello.token ? nullptr : "data lane without epoch and token";
    case LaneKind::kProbe:
      return hello.epoch.is_set() || hello.token ? "probe lane with an epoch or a token" : nullptr;
  }
  return "lane kind";
}

// ------------------------------------------------------------------------------------ control

Result<RegionTablePart> read_region_table(const pb::RegionTable& from) {
  RegionTablePart part{.version = from.version(), .first = from.first(), .more = from.more()};
  part.added.reserve(static_cast<std::size_t>(from.added_size()));
  for (const pb::Region& region : from.added()) {
    if (region.generation() == 0 || region.length() == 0 || region.access() > 3 ||
        region.length() > std::numeric_limits<std::uint64_t>::max() - region.base())
      return malformed(fmt::format("region {}.{} [{:#x}, +{}) access {}", region.slot(),
                                   region.generation(), region.base(), region.length(),
                                   region.access()));
    part.added.push_back({.ref = {.slot = region.slot(), .generation = region.generation()},
                          .base = region.base(),
                          .length = region.length(),
                          .access = static_cast<Access>(region.access())});
  }
  return part;
}

struct ControlWriter {
  pb::Control& to;

  void operator()(const RegionTablePart& part) const {
    KVM_CHECK(part.added.size() <= kMaxRegionsPerMessage);
    pb::RegionTable& table = *to.mutable_region_table();
    table.set_version(part.version);
    table.set_first(part.first);
    table.set_more(part.more);
    for (const RegionEntry& entry : part.added) {
      pb::Region& region = *table.add_added();
      region.set_slot(entry.ref.slot);
      region.set_generation(entry.ref.generation);
      region.set_base(entry.base);
      region.set_length(entry.length);
      region.set_access(static_cast<std::uint32_t>(entry.access));
    }
  }
  void operator()(const RegionTableRequest&) const { to.mutable_region_table_request(); }
  void operator()(const Notify& notify) const {
    KVM_CHECK(notify.name.size() <= kMaxNotifyNameBytes &&
              notify.message.size() <= kMaxNotifyBytes);
    to.mutable_notify()->set_name(notify.name);
    to.mutable_notify()->set_message(notify.message);
  }
  void operator()(const Goodbye& goodbye) const {
    to.mutable_goodbye()->set_reason(clean_text(goodbye.reason, kMaxReasonBytes));
  }
  void operator()(const Upper& upper) const {
    KVM_CHECK(upper.body.size() <= kMaxUpperBytes);
    to.mutable_upper()->set_kind(upper.kind);
    to.mutable_upper()->set_body(upper.body);
  }
};

}  // namespace

// ------------------------------------------------------------------------------------ encode

std::vector<std::byte> encode_hello(const Hello& hello) {
  KVM_CHECK(hello.session_id.size() <= kMaxSessionIdBytes);
  pb::Hello to;
  to.set_version_min(hello.version_min);
  to.set_version_max(hello.version_max);
  to.set_kind(static_cast<pb::LaneKind>(hello.kind));
  to.set_session_id(hello.session_id);
  to.set_target_incarnation(hello.target_incarnation.value);
  to.set_lane_index(hello.lane_index);
  write_common(hello, to);
  return serialize<std::vector<std::byte>>(to, kMaxHelloBytes);
}

std::vector<std::byte> encode_hello_ack(const HelloAck& ack) {
  pb::HelloAck to;
  to.set_version(ack.version);
  to.set_control_seq(ack.control_seq);
  if (ack.scratch) {
    to.set_scratch_slot(ack.scratch->region.slot);
    to.set_scratch_generation(ack.scratch->region.generation);
    to.set_scratch_grant(ack.scratch->grant.value);
    to.set_scratch_bytes(ack.scratch->bytes);
  }
  write_common(ack, to);
  return serialize<std::vector<std::byte>>(to, kMaxHelloBytes);
}

std::vector<std::byte> encode_hello_reject(const HelloReject& reject) {
  pb::HelloReject to;
  to.set_code(static_cast<std::uint32_t>(reject.code));
  to.set_message(clean_text(reject.message, kMaxReasonBytes));
  to.set_incarnation(reject.incarnation.value);
  to.set_epoch_seen(reject.epoch_seen.value);
  to.set_version_min(reject.version_min);
  to.set_version_max(reject.version_max);
  return serialize<std::vector<std::byte>>(to, kMaxHelloBytes);
}

std::vector<std::byte> encode_control(const Control& control) {
  pb::Control to;
  std::visit(ControlWriter{to}, control);
  return serialize<std::vector<std::byte>>(to, kMaxControlBytes);
}

// ------------------------------------------------------------------------------------ parse

Result<Hello> parse_hello(Bytes body) {
  KVM_ASSIGN_OR_RETURN(const pb::Hello from,
                       parse_capped<pb::Hello>(body, kHelloCaps, kMaxHelloBytes, "hello"));
  Hello hello{.version_min = from.version_min(),
              .version_max = from.version_max(),
              .kind = static_cast<LaneKind>(from.kind()),
              .target_incarnation = Incarnation{from.target_incarnation()},
              .lane_index = from.lane_index()};
  if (!sane_versions(hello.version_min, hello.version_max))
    return malformed(fmt::format("versions {} to {}", hello.version_min, hello.version_max));
  if (from.kind() < 0 || from.kind() > 2)
    return malformed(fmt::format("lane kind {}", static_cast<int>(from.kind())));
  KVM_RETURN_IF_ERROR(read_common(from, hello));
  if (const char* what = lane_error(hello)) return malformed(what);
  if (!from.session_id().empty()) {
    const auto address = parse_address(from.session_id());
    if (!address || address->port == 0)
      return malformed(
          fmt::format("session id '{}'", clean_text(from.session_id(), kMaxSessionIdBytes)));
    hello.session_id = address->to_string();
  }
  return hello;
}

Result<HelloAck> parse_hello_ack(Bytes body) {
  KVM_ASSIGN_OR_RETURN(
      const pb::HelloAck from,
      parse_capped<pb::HelloAck>(body, kHelloAckCaps, kMaxHelloBytes, "hello ack"));
  HelloAck ack{.version = from.version()};
  if (ack.version < kVersionMin || ack.version > kVersionMax)
    return malformed(fmt::format("version {} was not offered", ack.version));
  ack.control_seq = from.control_seq();
  if (ack.control_seq > kMaxCount) return malformed("control sequence number beyond 2^63");
  KVM_RETURN_IF_ERROR(read_common(from, ack));
  const Scratch scratch{
      .region = {.slot = from.scratch_slot(), .generation = from.scratch_generation()},
      .grant = GrantId{from.scratch_grant()},
      .bytes = from.scratch_bytes()};
  if (scratch != Scratch{}) {
    if (scratch.region.generation == 0 || !scratch.grant.is_set() || scratch.bytes == 0 ||
        scratch.bytes > kMaxScratchBytes)
      return malformed(fmt::format("scratch region of {} bytes", scratch.bytes));
    ack.scratch = scratch;
  }
  return ack;
}

Result<HelloReject> parse_hello_reject(Bytes body) {
  KVM_ASSIGN_OR_RETURN(
      const pb::HelloReject from,
      parse_capped<pb::HelloReject>(body, kHelloRejectCaps, kMaxHelloBytes, "hello reject"));
  HelloReject reject{.code = code_from_wire(from.code()),
                     .message = clean_text(from.message(), kMaxReasonBytes),
                     .incarnation = Incarnation{from.incarnation()},
                     .epoch_seen = Epoch{from.epoch_seen()},
                     .version_min = from.version_min(),
                     .version_max = from.version_max()};
  if (reject.code == Code::kOk) return malformed("reject with code ok");
  if (reject.epoch_seen.value > kMaxCount) return malformed("epoch beyond 2^63");
  if (!reject.incarnation.is_set()) return malformed("incarnation 0");
  if (!sane_versions(reject.version_min, reject.version_max))
    return malformed(fmt::format("versions {} to {}", reject.version_min, reject.version_max));
  return reject;
}

Result<Control> parse_control(Bytes body) {
  KVM_ASSIGN_OR_RETURN(
      pb::Control from,
      parse_capped<pb::Control>(body, kControlCaps, kMaxControlBytes, "control message"));
  switch (from.message_case()) {
    case pb::Control::kRegionTable: {
      KVM_ASSIGN_OR_RETURN(RegionTablePart part, read_region_table(from.region_table()));
      return part;
    }
    case pb::Control::kRegionTableRequest:
      return RegionTableRequest{};
    case pb::Control::kNotify:
      return Notify{.name = std::move(*from.mutable_notify()->mutable_name()),
                    .message = std::move(*from.mutable_notify()->mutable_message())};
    case pb::Control::kGoodbye:
      return Goodbye{clean_text(from.goodbye().reason(), kMaxReasonBytes)};
    case pb::Control::kUpper:
      return Upper{.kind = from.upper().kind(),
                   .body = std::move(*from.mutable_upper()->mutable_body())};
    case pb::Control::MESSAGE_NOT_SET:
      break;
  }
  return malformed("control message of an unknown kind");
}

Result<std::uint32_t> negotiate_version(std::uint32_t peer_min, std::uint32_t peer_max) {
  const std::uint32_t version = std::min(kVersionMax, peer_max);
  if (peer_min > peer_max || version < std::max(kVersionMin, peer_min))
    return fail(Code::kVersionMismatch, Origin::kPeer,
                fmt::format("the peer speaks versions {} to {}, this side {} to {}", peer_min,
                            peer_max, kVersionMin, kVersionMax));
  return version;
}

}  // namespace kvmend::wire
