#include "wire/kv_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

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

constexpr auto kShapes = static_cast<std::uint32_t>(kMaxKvShapes);
constexpr auto kGroups = static_cast<std::uint32_t>(kMaxKvGroups);
constexpr auto kFields = static_cast<std::uint32_t>(kMaxKvFields);

constexpr std::array kShapeCaps = {
    FieldCap{.field = 5, .max_count = kGroups, .max_bytes = kMaxKvGroups * kVarint32Bytes}};
constexpr std::array kFieldCaps = {FieldCap{.field = 1, .max_bytes = kMaxKvFieldNameBytes},
                                   FieldCap{.field = 5, .max_bytes = kMaxKvDtypeBytes}};
constexpr std::array kComponentCaps = {
    FieldCap{.field = 2, .max_count = kBuffers, .max_bytes = kMaxKvBuffers * kFixed64Bytes},
    FieldCap{.field = 3, .max_count = kBuffers, .max_bytes = kMaxKvBuffers * kVarint64Bytes},
    FieldCap{.field = 5, .max_count = kBuffers, .max_bytes = kMaxKvBuffers * kVarint32Bytes},
    FieldCap{.field = 6, .max_bytes = kMaxKvDtypeBytes},
    FieldCap{.field = 7, .max_count = kBuffers, .max_bytes = kMaxKvBuffers * kVarint64Bytes},
    FieldCap{.field = 8, .max_count = kShapes, .max_bytes = kMaxUpperBytes, .fields = kShapeCaps},
    FieldCap{.field = 9, .max_count = kBuffers, .max_bytes = kMaxKvBuffers * kVarint32Bytes},
    FieldCap{.field = 10, .max_count = kBuffers, .max_bytes = kMaxKvBuffers * kVarint32Bytes},
    FieldCap{.field = 12, .max_count = kFields, .max_bytes = kMaxUpperBytes, .fields = kFieldCaps}};
constexpr std::array kLayoutCaps = {FieldCap{.field = 4, .max_bytes = kMaxKvElementOrderBytes},
                                    FieldCap{.field = 13,
                                             .max_count = kComponents,
                                             .max_bytes = kMaxUpperBytes,
                                             .fields = kComponentCaps}};
constexpr std::array kRegisterCaps = {
    FieldCap{.field = 2, .max_bytes = kMaxUpperBytes, .fields = kLayoutCaps},
    FieldCap{.field = 3, .max_bytes = kMaxKvDataSessionBytes}};
constexpr std::array kCoverageCaps = {
    FieldCap{.field = 1, .max_count = kBuffers, .max_bytes = kMaxKvBuffers * kVarint64Bytes},
    FieldCap{.field = 2, .max_count = kBuffers, .max_bytes = kMaxKvBuffers * kVarint32Bytes},
    FieldCap{.field = 5, .max_count = kFields, .max_bytes = kMaxKvFields * kVarint32Bytes}};
constexpr std::array kRegisterReplyCaps = {FieldCap{.field = 3, .max_bytes = kMaxKvReasonBytes},
                                           FieldCap{.field = 4,
                                                    .max_count = kComponents,
                                                    .max_bytes = kMaxUpperBytes,
                                                    .fields = kCoverageCaps}};
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

/// Sorted, unique, and each below `end`.
Status check_sorted(const std::vector<std::uint32_t>& list, std::size_t end, const char* what) {
  if (std::ranges::adjacent_find(list, std::greater_equal<>()) != list.end() ||
      (!list.empty() && list.back() >= end))
    return {Code::kProtocolError, Origin::kPeer,
            fmt::format("{} that aren't sorted numbers below {}", what, end)};
  return Status::ok();
}

Result<KvShape> read_shape(const pb::KvShape& from) {
  KvShape to{.rows = from.rows(),
             .columns = from.columns(),
             .total_columns = from.total_columns(),
             .columns_first = from.columns_first(),
             .groups = {from.groups().begin(), from.groups().end()}};
  std::uint64_t sum = 0;
  for (const std::uint32_t group : to.groups) {
    if (group == 0) return malformed("shape with a group of 0 columns");
    sum += group;
  }
  if (to.rows == 0 || to.columns == 0 || to.rows > kMaxKvColumns || to.columns > kMaxKvColumns ||
      to.total_columns > kMaxKvColumns || (!to.groups.empty() && sum != to.total_columns))
    return malformed(fmt::format("shape of {} rows, {} of {} columns, {} in groups", to.rows,
                                 to.columns, to.total_columns, sum));
  return to;
}

Result<KvField> read_field(const pb::KvField& from, const KvComponent& of) {
  KvField to{.name = clean_text(from.name(), kMaxKvFieldNameBytes),
             .buffer = from.buffer(),
             .offset = from.offset(),
             .bytes = from.bytes(),
             .dtype = clean_text(from.dtype(), kMaxKvDtypeBytes),
             .required = from.required()};
  const std::uint64_t item =
      to.buffer < of.regions.size() ? of.item_len[of.item_len.size() == 1 ? 0 : to.buffer] : 0;
  if (to.name.empty() || to.bytes == 0 || to.offset > item || to.bytes > item - to.offset)
    return malformed(fmt::format("field \"{}\" of {} bytes from {} in buffer {} of {} bytes",
                                 to.name, to.bytes, to.offset, to.buffer, item));
  return to;
}

Result<KvComponent> read_component(const pb::KvComponent& from) {
  const auto buffers = static_cast<std::size_t>(from.regions_size());
  const auto lengths = static_cast<std::size_t>(from.item_len_size());
  const auto layers = static_cast<std::size_t>(from.layer_ids_size());
  const auto offsets = static_cast<std::size_t>(from.base_offset_size());
  const auto shapes = static_cast<std::size_t>(from.shape_of_size());
  if (buffers == 0 || buffers > kMaxKvBuffers || (lengths != 1 && lengths != buffers) ||
      (layers != 0 && layers != buffers) || (offsets != 0 && offsets != buffers) ||
      (shapes != 0 && shapes != buffers))
    return malformed(
        fmt::format("component of {} buffers with {} lengths, {} layers, {} offsets, {} shapes",
                    buffers, lengths, layers, offsets, shapes));
  KvComponent to{.kind = from.kind(),
                 .item_len = {from.item_len().begin(), from.item_len().end()},
                 .items = from.items(),
                 .layer_ids = {from.layer_ids().begin(), from.layer_ids().end()},
                 .dtype = clean_text(from.dtype(), kMaxKvDtypeBytes),
                 .base_offset = {from.base_offset().begin(), from.base_offset().end()},
                 .shape_of = {from.shape_of().begin(), from.shape_of().end()},
                 .optional = {from.optional().begin(), from.optional().end()},
                 .memory = from.memory()};
  to.regions.reserve(buffers);
  for (const std::uint64_t ref : from.regions()) {
    const auto generation = static_cast<std::uint32_t>(ref >> 32);
    const std::uint64_t length = to.item_len[lengths == 1 ? 0 : to.regions.size()];
    if ((length == 0) != (generation == 0) || (length == 0 && ref != 0))
      return malformed(
          fmt::format("buffer of {} byte items with generation {}", length, generation));
    to.regions.push_back({.slot = static_cast<std::uint32_t>(ref), .generation = generation});
  }
  for (const pb::KvShape& shape : from.shapes()) {
    KVM_ASSIGN_OR_RETURN(KvShape value, read_shape(shape));
    to.shapes.push_back(std::move(value));
  }
  for (const std::uint32_t shape : to.shape_of)
    if (shape >= to.shapes.size())
      return malformed(fmt::format("buffer of shape {} among {}", shape, to.shapes.size()));
  to.fields_version = from.fields_version();
  for (const pb::KvField& field : from.fields()) {
    KVM_ASSIGN_OR_RETURN(KvField value, read_field(field, to));
    to.fields.push_back(std::move(value));
  }
  KVM_RETURN_IF_ERROR(check_sorted(to.optional, buffers, "optional buffers"));
  return to;
}

Result<KvLayout> read_layout(const pb::KvLayout& from) {
  KvLayout to{.page_tokens = from.page_tokens(),
              .kv_heads = from.kv_heads(),
              .head_dim = from.head_dim(),
              .element_order = clean_text(from.element_order(), kMaxKvElementOrderBytes),
              .rank = {.tp_rank = from.tp_rank(),
                       .tp_size = from.tp_size(),
                       .pp_rank = from.pp_rank(),
                       .pp_size = from.pp_size(),
                       .dp_rank = from.dp_rank(),
                       .dp_size = from.dp_size(),
                       .cp_rank = from.cp_rank(),
                       .cp_size = from.cp_size(),
                       .dcp_rank = from.dcp_rank(),
                       .dcp_size = from.dcp_size()},
              .total_kv_heads = from.total_kv_heads(),
              .share = from.share(),
              .version = from.version()};
  const KvRank& rank = to.rank;
  for (const auto& [at, size] :
       {std::pair{rank.tp_rank, rank.tp_size}, std::pair{rank.pp_rank, rank.pp_size},
        std::pair{rank.dp_rank, rank.dp_size}, std::pair{rank.cp_rank, rank.cp_size},
        std::pair{rank.dcp_rank, rank.dcp_size}})
    if (at >= size || size > kMaxKvRanks)
      return malformed(fmt::format("layout of rank {} of {}", at, size));
  if (to.page_tokens > kMaxKvColumns || to.total_kv_heads > kMaxKvColumns ||
      std::uint64_t{to.kv_heads} * rank.tp_size > kMaxKvColumns)
    return malformed(fmt::format("layout of {} tokens, {} of {} heads", to.page_tokens, to.kv_heads,
                                 to.total_kv_heads));
  for (const pb::KvComponent& component : from.components()) {
    KVM_ASSIGN_OR_RETURN(KvComponent value, read_component(component));
    to.components.push_back(std::move(value));
  }
  return to;
}

Result<KvMessage> read(const pb::KvRegister& from) {
  KVM_ASSIGN_OR_RETURN(KvLayout layout, read_layout(from.layout()));
  return KvRegister{.registration = from.registration(),
                    .layout = std::move(layout),
                    .data_session = clean_text(from.data_session(), kMaxKvDataSessionBytes)};
}

Result<KvMessage> read(const pb::KvRegisterReply& from) {
  KvRegisterReply to{.registration = from.registration(),
                     .code = code_from_wire(from.code()),
                     .detail = clean_text(from.detail(), kMaxKvReasonBytes)};
  for (const pb::KvCoverage& coverage : from.coverage()) {
    KvCoverage& value = to.coverage.emplace_back();
    value.bytes.assign(coverage.bytes().begin(), coverage.bytes().end());
    value.elided.assign(coverage.elided().begin(), coverage.elided().end());
    value.divisor = coverage.divisor();
    value.token_ranks = coverage.token_ranks();
    for (const std::uint32_t ranks : {value.divisor, value.token_ranks})
      if (ranks == 0 || ranks > kMaxKvRanks)
        return malformed(fmt::format("pages shared by {} ranks", ranks));
    value.join = coverage.join();
    value.split = coverage.split();
    if (value.join == 0 || value.split == 0 || std::gcd(value.join, value.split) != 1 ||
        std::uint64_t{value.join} + value.split > kMaxKvPageSteps)
      return malformed(fmt::format("pages {} to {}", value.join, value.split));
    value.fields.assign(coverage.fields().begin(), coverage.fields().end());
    KVM_RETURN_IF_ERROR(check_sorted(value.fields, kMaxKvFields, "fields"));
    KVM_RETURN_IF_ERROR(check_sorted(value.elided, kMaxKvBuffers, "elided buffers"));
  }
  return to;
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
  return KvRoomAbortAck{
      .room = room, .attempt = from.attempt(), .rank = from.rank(), .undrained = from.undrained()};
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
  KVM_CHECK(from.shapes.size() <= kMaxKvShapes);
  for (const KvShape& shape : from.shapes) {
    pb::KvShape& value = *to.add_shapes();
    value.set_rows(shape.rows);
    value.set_columns(shape.columns);
    value.set_total_columns(shape.total_columns);
    value.set_columns_first(shape.columns_first);
    value.mutable_groups()->Add(shape.groups.begin(), shape.groups.end());
  }
  to.mutable_shape_of()->Add(from.shape_of.begin(), from.shape_of.end());
  to.mutable_optional()->Add(from.optional.begin(), from.optional.end());
  to.set_memory(from.memory);
  KVM_CHECK(from.fields.size() <= kMaxKvFields);
  for (const KvField& field : from.fields) {
    pb::KvField& value = *to.add_fields();
    value.set_name(clean_text(field.name, kMaxKvFieldNameBytes));
    value.set_buffer(field.buffer);
    value.set_offset(field.offset);
    value.set_bytes(field.bytes);
    value.set_dtype(clean_text(field.dtype, kMaxKvDtypeBytes));
    value.set_required(field.required);
  }
  to.set_fields_version(from.fields_version);
}

void write_layout(const KvLayout& from, pb::KvLayout& to) {
  KVM_CHECK(from.components.size() <= kMaxKvComponents);
  to.set_page_tokens(from.page_tokens);
  to.set_kv_heads(from.kv_heads);
  to.set_head_dim(from.head_dim);
  to.set_element_order(clean_text(from.element_order, kMaxKvElementOrderBytes));
  to.set_tp_rank(from.rank.tp_rank);
  to.set_tp_size(from.rank.tp_size);
  to.set_pp_rank(from.rank.pp_rank);
  to.set_pp_size(from.rank.pp_size);
  to.set_dp_rank(from.rank.dp_rank);
  to.set_dp_size(from.rank.dp_size);
  to.set_cp_rank(from.rank.cp_rank);
  to.set_cp_size(from.rank.cp_size);
  to.set_dcp_rank(from.rank.dcp_rank);
  to.set_dcp_size(from.rank.dcp_size);
  for (const KvComponent& component : from.components)
    write_component(component, *to.add_components());
  to.set_total_kv_heads(from.total_kv_heads);
  to.set_share(from.share);
  to.set_version(from.version);
}

struct KvWriter {
  pb::KvMessage& message;

  void operator()(const KvRegister& from) const {
    pb::KvRegister& to = *message.mutable_register_();
    to.set_registration(from.registration);
    write_layout(from.layout, *to.mutable_layout());
    to.set_data_session(clean_text(from.data_session, kMaxKvDataSessionBytes));
  }
  void operator()(const KvRegisterReply& from) const {
    pb::KvRegisterReply& to = *message.mutable_register_reply();
    to.set_registration(from.registration);
    to.set_code(static_cast<std::uint32_t>(from.code));
    to.set_detail(clean_text(from.detail, kMaxKvReasonBytes));
    KVM_CHECK(from.coverage.size() <= kMaxKvComponents);
    for (const KvCoverage& coverage : from.coverage) {
      pb::KvCoverage& value = *to.add_coverage();
      value.mutable_bytes()->Add(coverage.bytes.begin(), coverage.bytes.end());
      value.mutable_elided()->Add(coverage.elided.begin(), coverage.elided.end());
      value.set_divisor(coverage.divisor);
      value.set_token_ranks(coverage.token_ranks);
      value.mutable_fields()->Add(coverage.fields.begin(), coverage.fields.end());
      value.set_join(coverage.join);
      value.set_split(coverage.split);
    }
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
    to.set_undrained(from.undrained);
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
