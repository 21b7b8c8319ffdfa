#include "wire/kv_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "wire/control.h"
#include "wire/control.pb.h"
#include "wire/pb_access.h"
#include "wire/text.h"

namespace kvmend::wire {
namespace {

using internal::malformed;
using internal::parse_capped;
using internal::serialize;

constexpr std::size_t kFixed64Bytes = 8;
constexpr std::size_t kVarint64Bytes = 10;
constexpr std::size_t kVarint32Bytes = 5;
constexpr std::size_t kPageBytes = sizeof(std::uint32_t);
constexpr auto kBuffers = static_cast<std::uint32_t>(kMaxKvBuffers);
constexpr auto kComponents = static_cast<std::uint32_t>(kMaxKvComponents);

constexpr std::array kComponentCaps = {
    FieldCap{.field = 2, .max_count = kBuffers, .max_bytes = kMaxKvBuffers * kFixed64Bytes},
    FieldCap{.field = 3, .max_count = kBuffers, .max_bytes = kMaxKvBuffers * kVarint64Bytes},
    FieldCap{.field = 5, .max_count = kBuffers, .max_bytes = kMaxKvBuffers * kVarint32Bytes},
    FieldCap{.field = 6, .max_bytes = kMaxKvDtypeBytes},
    FieldCap{.field = 7, .max_count = kBuffers, .max_bytes = kMaxKvBuffers * kVarint64Bytes}};
constexpr std::array kLayoutCaps = {FieldCap{.field = 4, .max_bytes = kMaxKvElementOrderBytes},
                                    FieldCap{.field = 13,
                                             .max_count = kComponents,
                                             .max_bytes = kMaxUpperBytes,
                                             .fields = kComponentCaps}};
constexpr std::array kRegisterCaps = {
    FieldCap{.field = 2, .max_bytes = kMaxUpperBytes, .fields = kLayoutCaps}};
constexpr std::array kRegisterReplyCaps = {FieldCap{.field = 3, .max_bytes = kMaxKvReasonBytes}};
constexpr std::array kPagesCaps = {FieldCap{.field = 2, .max_bytes = kMaxKvPages * kPageBytes}};
constexpr std::array kMetadataCaps = {FieldCap{
    .field = 5, .max_count = kComponents, .max_bytes = kMaxUpperBytes, .fields = kPagesCaps}};
constexpr std::array kDoneCaps = {
    FieldCap{.field = 5, .max_count = kComponents, .max_bytes = kMaxKvComponents * kVarint64Bytes}};
constexpr std::array kStatusCaps = {FieldCap{.field = 5, .max_bytes = kMaxKvReasonBytes}};
constexpr std::array kAbortCaps = {FieldCap{.field = 4, .max_bytes = kMaxKvReasonBytes}};
constexpr std::array kMessageCaps = {
    FieldCap{.field = 1, .max_bytes = kMaxUpperBytes, .fields = kRegisterCaps},
    FieldCap{.field = 2, .max_bytes = kMaxUpperBytes, .fields = kRegisterReplyCaps},
    FieldCap{.field = 3, .max_bytes = kMaxUpperBytes, .fields = kMetadataCaps},
    FieldCap{.field = 4, .max_bytes = kMaxUpperBytes, .fields = kDoneCaps},
    FieldCap{.field = 5, .max_bytes = kMaxUpperBytes, .fields = kStatusCaps},
    FieldCap{.field = 6, .max_bytes = kMaxUpperBytes, .fields = kAbortCaps},
    FieldCap{.field = 7, .max_bytes = kMaxUpperBytes}};

// ------------------------------------------------------------------------------------ parse

Result<RoomId> read_room(std::uint64_t room) {
  if (room > kMaxRoomId) return malformed(fmt::format("room {} is beyond 63 bits", room));
  return RoomId{room};
}

Result<KvComponent> read_component(const pb::KvComponent& from) {
  const auto buffers = static_cast<std::size_t>(from.regions_size());
  const auto lengths = static_cast<std::size_t>(from.item_len_size());
  const auto layers = static_cast<std::size_t>(from.layer_ids_size());
  const auto offsets = static_cast<std::size_t>(from.base_offset_size());
  if (buffers == 0 || buffers > kMaxKvBuffers || (lengths != 1 && lengths != buffers) ||
      (layers != 0 && layers != buffers) || (offsets != 0 && offsets != buffers))
    return malformed(fmt::format("component of {} buffers with {} lengths, {} layers, {} offsets",
                                 buffers, lengths, layers, offsets));
  KvComponent to{.kind = from.kind(),
                 .items = from.items(),
                 .dtype = clean_text(from.dtype(), kMaxKvDtypeBytes)};
  to.regions.reserve(buffers);
  for (const std::uint64_t ref : from.regions()) {
    const auto generation = static_cast<std::uint32_t>(ref >> 32);
    if (generation == 0) return malformed("buffer with generation 0");
    to.regions.push_back({.slot = static_cast<std::uint32_t>(ref), .generation = generation});
  }
  for (const std::uint64_t length : from.item_len()) {
    if (length == 0) return malformed("buffer with items of 0 bytes");
    to.item_len.push_back(length);
  }
  to.layer_ids.assign(from.layer_ids().begin(), from.layer_ids().end());
  to.base_offset.assign(from.base_offset().begin(), from.base_offset().end());
  return to;
}

Result<KvMessage> read(const pb::KvRegister& from) {
  const pb::KvLayout& layout = from.layout();
  KvRegister to{
      .registration = from.registration(),
      .layout = {.page_tokens = layout.page_tokens(),
                 .kv_heads = layout.kv_heads(),
                 .head_dim = layout.head_dim(),
                 .element_order = clean_text(layout.element_order(), kMaxKvElementOrderBytes),
                 .tp_rank = layout.tp_rank(),
                 .tp_size = layout.tp_size(),
                 .pp_rank = layout.pp_rank(),
                 .pp_size = layout.pp_size(),
                 .dp_rank = layout.dp_rank(),
                 .dp_size = layout.dp_size(),
                 .cp_rank = layout.cp_rank(),
                 .cp_size = layout.cp_size()}};
  for (const pb::KvComponent& component : layout.components()) {
    KVM_ASSIGN_OR_RETURN(KvComponent value, read_component(component));
    to.layout.components.push_back(std::move(value));
  }
  return to;
}

Result<KvMessage> read(const pb::KvRegisterReply& from) {
  return KvRegisterReply{.registration = from.registration(),
                         .code = code_from_wire(from.code()),
                         .detail = clean_text(from.detail(), kMaxKvReasonBytes)};
}

Result<KvMessage> read(const pb::KvRoomMetadata& from) {
  KVM_ASSIGN_OR_RETURN(const RoomId room, read_room(from.room()));
  if (from.dummy() ? from.grant() != 0 || from.pages_size() != 0 : from.grant() <= 1)
    return malformed(fmt::format("room metadata{} with grant {} and {} lists of pages",
                                 from.dummy() ? " of a dummy" : "", from.grant(),
                                 from.pages_size()));
  if (from.required_destinations() > kMaxKvDestinations)
    return malformed(fmt::format("{} destinations", from.required_destinations()));
  if (from.expires_in_ms() > static_cast<std::uint64_t>(kMaxKvGrantLifetime.count()))
    return malformed(fmt::format("grant that expires in {} ms", from.expires_in_ms()));
  KvRoomMetadata to{.room = room,
                    .attempt = from.attempt(),
                    .grant = GrantId{from.grant()},
                    .expires_in = std::chrono::milliseconds{from.expires_in_ms()},
                    .required_writers = from.required_writers(),
                    .decode_rank = from.decode_rank(),
                    .prefix_tokens = from.prefix_tokens(),
                    .required_destinations = std::max(from.required_destinations(), 1U),
                    .dummy = from.dummy()};
  to.pages.reserve(static_cast<std::size_t>(from.pages_size()));
  std::uint32_t seen = 0;
  for (const pb::KvPages& pages : from.pages()) {
    const std::string& bytes = pages.pages();
    if (pages.component() >= kMaxKvComponents || bytes.size() % kPageBytes != 0)
      return malformed(
          fmt::format("pages of component {}: {} bytes", pages.component(), bytes.size()));
    const std::uint32_t bit = std::uint32_t{1} << pages.component();
    if ((seen & bit) != 0) return malformed(fmt::format("component {} twice", pages.component()));
    seen |= bit;
    KvPages& value = to.pages.emplace_back();
    value.component = pages.component();
    value.pages.resize(bytes.size() / kPageBytes);
    if (!bytes.empty()) std::memcpy(value.pages.data(), bytes.data(), bytes.size());
  }
  return to;
}

Result<KvMessage> read(const pb::KvRoomDone& from) {
  KVM_ASSIGN_OR_RETURN(const RoomId room, read_room(from.room()));
  if (static_cast<std::size_t>(from.declared_bytes_size()) > kMaxKvComponents)
    return malformed(fmt::format("{} declared components", from.declared_bytes_size()));
  return KvRoomDone{.room = room,
                    .attempt = from.attempt(),
                    .grant = GrantId{from.grant()},
                    .writer_rank = from.writer_rank(),
                    .declared_bytes = {from.declared_bytes().begin(), from.declared_bytes().end()},
                    .declared_pages = from.declared_pages()};
}

Result<KvMessage> read(const pb::KvRoomStatus& from) {
  KVM_ASSIGN_OR_RETURN(const RoomId room, read_room(from.room()));
  if (from.status() > kMaxRoomStatus)
    return malformed(fmt::format("room status {}", from.status()));
  return KvRoomStatus{.room = room,
                      .attempt = from.attempt(),
                      .status = from.status(),
                      .code = code_from_wire(from.code()),
                      .reason = clean_text(from.reason(), kMaxKvReasonBytes),
                      .rank = from.rank(),
                      .grant = GrantId{from.grant()}};
}

Result<KvMessage> read(const pb::KvRoomAbort& from) {
  KVM_ASSIGN_OR_RETURN(const RoomId room, read_room(from.room()));
  return KvRoomAbort{.room = room,
                     .attempt = from.attempt(),
                     .code = code_from_wire(from.code()),
                     .reason = clean_text(from.reason(), kMaxKvReasonBytes),
                     .rank = from.rank()};
}

Result<KvMessage> read(const pb::KvRoomAbortAck& from) {
  KVM_ASSIGN_OR_RETURN(const RoomId room, read_room(from.room()));
  return KvRoomAbortAck{.room = room, .attempt = from.attempt(), .rank = from.rank()};
}

// ------------------------------------------------------------------------------------ encode

std::uint64_t room_number(RoomId room) {
  KVM_CHECK(room.value <= kMaxRoomId, "a room id has 63 bits");
  return room.value;
}

void write_component(const KvComponent& from, pb::KvComponent& to) {
  KVM_CHECK(from.regions.size() <= kMaxKvBuffers);
  to.set_kind(from.kind);
  for (const RegionRef& ref : from.regions)
    to.add_regions(static_cast<std::uint64_t>(ref.generation) << 32 | ref.slot);
  to.mutable_item_len()->Add(from.item_len.begin(), from.item_len.end());
  to.set_items(from.items);
  to.mutable_layer_ids()->Add(from.layer_ids.begin(), from.layer_ids.end());
  to.set_dtype(clean_text(from.dtype, kMaxKvDtypeBytes));
  to.mutable_base_offset()->Add(from.base_offset.begin(), from.base_offset.end());
}

struct KvWriter {
  pb::KvMessage& message;

  void operator()(const KvRegister& from) const {
    KVM_CHECK(from.layout.components.size() <= kMaxKvComponents);
    pb::KvRegister& to = *message.mutable_register_();
    to.set_registration(from.registration);
    pb::KvLayout& layout = *to.mutable_layout();
    layout.set_page_tokens(from.layout.page_tokens);
    layout.set_kv_heads(from.layout.kv_heads);
    layout.set_head_dim(from.layout.head_dim);
    layout.set_element_order(clean_text(from.layout.element_order, kMaxKvElementOrderBytes));
    layout.set_tp_rank(from.layout.tp_rank);
    layout.set_tp_size(from.layout.tp_size);
    layout.set_pp_rank(from.layout.pp_rank);
    layout.set_pp_size(from.layout.pp_size);
    layout.set_dp_rank(from.layout.dp_rank);
    layout.set_dp_size(from.layout.dp_size);
    layout.set_cp_rank(from.layout.cp_rank);
    layout.set_cp_size(from.layout.cp_size);
    for (const KvComponent& component : from.layout.components)
      write_component(component, *layout.add_components());
  }
  void operator()(const KvRegisterReply& from) const {
    pb::KvRegisterReply& to = *message.mutable_register_reply();
    to.set_registration(from.registration);
    to.set_code(static_cast<std::uint32_t>(from.code));
    to.set_detail(clean_text(from.detail, kMaxKvReasonBytes));
  }
  void operator()(const KvRoomMetadata& from) const {
    KVM_CHECK(from.pages.size() <= kMaxKvComponents);
    pb::KvRoomMetadata& to = *message.mutable_metadata();
    to.set_room(room_number(from.room));
    to.set_attempt(from.attempt);
    to.set_grant(from.grant.value);
    to.set_expires_in_ms(static_cast<std::uint64_t>(from.expires_in.count()));
    for (const KvPages& pages : from.pages) {
      KVM_CHECK(pages.pages.size() <= kMaxKvPages);
      pb::KvPages& list = *to.add_pages();
      list.set_component(pages.component);
      list.set_pages(pages.pages.data(), pages.pages.size() * kPageBytes);
    }
    to.set_required_writers(from.required_writers);
    to.set_decode_rank(from.decode_rank);
    to.set_prefix_tokens(from.prefix_tokens);
    to.set_required_destinations(from.required_destinations);
    to.set_dummy(from.dummy);
  }
  void operator()(const KvRoomDone& from) const {
    KVM_CHECK(from.declared_bytes.size() <= kMaxKvComponents);
    pb::KvRoomDone& to = *message.mutable_done();
    to.set_room(room_number(from.room));
    to.set_attempt(from.attempt);
    to.set_grant(from.grant.value);
    to.set_writer_rank(from.writer_rank);
    to.mutable_declared_bytes()->Add(from.declared_bytes.begin(), from.declared_bytes.end());
    to.set_declared_pages(from.declared_pages);
  }
  void operator()(const KvRoomStatus& from) const {
    pb::KvRoomStatus& to = *message.mutable_status();
    to.set_room(room_number(from.room));
    to.set_attempt(from.attempt);
    to.set_status(from.status);
    to.set_code(static_cast<std::uint32_t>(from.code));
    to.set_reason(clean_text(from.reason, kMaxKvReasonBytes));
    to.set_rank(from.rank);
    to.set_grant(from.grant.value);
  }
  void operator()(const KvRoomAbort& from) const {
    pb::KvRoomAbort& to = *message.mutable_abort();
    to.set_room(room_number(from.room));
    to.set_attempt(from.attempt);
    to.set_code(static_cast<std::uint32_t>(from.code));
    to.set_reason(clean_text(from.reason, kMaxKvReasonBytes));
    to.set_rank(from.rank);
  }
  void operator()(const KvRoomAbortAck& from) const {
    pb::KvRoomAbortAck& to = *message.mutable_abort_ack();
    to.set_room(room_number(from.room));
    to.set_attempt(from.attempt);
    to.set_rank(from.rank);
  }
};

}  // namespace

std::string encode_kv(const KvMessage& message) {
  pb::KvMessage to;
  std::visit(KvWriter{to}, message);
  return serialize<std::string>(to, kMaxUpperBytes);
}

Result<KvMessage> parse_kv(Bytes body) {
  KVM_ASSIGN_OR_RETURN(
      const pb::KvMessage from,
      parse_capped<pb::KvMessage>(body, kMessageCaps, kMaxUpperBytes, "KV message"));
  switch (from.message_case()) {
    case pb::KvMessage::kRegister:
      return read(from.register_());
    case pb::KvMessage::kRegisterReply:
      return read(from.register_reply());
    case pb::KvMessage::kMetadata:
      return read(from.metadata());
    case pb::KvMessage::kDone:
      return read(from.done());
    case pb::KvMessage::kStatus:
      return read(from.status());
    case pb::KvMessage::kAbort:
      return read(from.abort());
    case pb::KvMessage::kAbortAck:
      return read(from.abort_ack());
    case pb::KvMessage::MESSAGE_NOT_SET:
      break;
  }
  return malformed("KV message of an unknown kind");
}

}  // namespace kvmend::wire
