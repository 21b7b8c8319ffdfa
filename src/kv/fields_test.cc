// Aux fields, negotiated by name.
#include "kv/fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "kv/coverage.h"
#include "kv/layout.h"
#include "kv/plan.h"

namespace kvmend::kv {
namespace {

using ::testing::HasSubstr;

/// A rank whose aux pool has these rows and fields; the kv pool is the least that is allowed.
struct AuxRank {
  static constexpr std::uint32_t kRows = 3;
  explicit AuxRank(const std::vector<std::uint64_t>& rows, std::vector<KvField> fields,
                   std::uint32_t version = 1) {
    KvComponent kv{.items = 1, .buffers = {{add(8), 8}}};
    KvComponent aux{.pool = KvPool::kAux, .items = kRows, .fields_version = version};
    for (const std::uint64_t row : rows) aux.buffers.push_back({add(row * kRows), row});
    aux.fields = std::move(fields);
    layout = {.page_tokens = 1, .kv_heads = 1, .components = {kv, aux}};
  }
  std::byte* add(std::uint64_t bytes) {
    memory.push_back(std::make_unique<std::vector<std::byte>>(bytes));
    return memory.back()->data();
  }
  [[nodiscard]] wire::KvLayout described() const {
    std::vector<std::vector<BufferPlace>> places;
    std::uint32_t slot = 0;
    for (const KvComponent& component : layout.components) {
      auto& row = places.emplace_back();
      for (std::size_t i = 0; i < component.buffers.size(); ++i) row.push_back({{slot++, 1}, 0});
    }
    return describe(layout, places);
  }
  std::vector<std::unique_ptr<std::vector<std::byte>>> memory;
  KvLayout layout;
};

Status refusal(const AuxRank& prefill, const AuxRank& decode) {
  EXPECT_TRUE(check_layout(prefill.layout).is_ok()) << check_layout(prefill.layout).to_string();
  EXPECT_TRUE(check_layout(decode.layout).is_ok()) << check_layout(decode.layout).to_string();
  const auto plan = TransferPlan::prepare(prefill.layout, decode.described());
  return plan ? Status::ok() : plan.error();
}

TEST(AuxFields, ARefusalNamesTheDifferenceWithBothValues) {
  const AuxRank prefill(
      {16}, {{.name = "token", .bytes = 4}, {.name = "logprob", .offset = 4, .bytes = 4}});
  EXPECT_TRUE(refusal(prefill, AuxRank({4}, {{.name = "logprob"}})).is_ok());
  EXPECT_THAT(refusal(prefill, AuxRank({8}, {{.name = "logprob"}})).detail(),
              HasSubstr("aux field \"logprob\" 4 bytes here, 8 bytes there"));
  EXPECT_THAT(refusal(prefill, AuxRank({4}, {{.name = "logprob", .dtype = "float32"}})).detail(),
              HasSubstr("aux field \"logprob\" 4 bytes here, 4 bytes of float32 there"));
  EXPECT_THAT(refusal(prefill, AuxRank({8}, {{.name = "logprob", .bytes = 4},
                                             {.name = "hidden", .offset = 4, .required = true}}))
                  .detail(),
              HasSubstr("aux field \"hidden\" missing here, required there"));
  const AuxRank strict(
      {8}, {{.name = "token", .bytes = 4, .required = true}, {.name = "logprob", .offset = 4}});
  EXPECT_THAT(refusal(strict, AuxRank({4}, {{.name = "logprob"}})).detail(),
              HasSubstr("aux field \"token\" required here, missing there"));
  EXPECT_THAT(refusal(prefill, AuxRank({4}, {{.name = "logprob"}}, 2)).detail(),
              HasSubstr("aux fields_version 1 here, 2 there"));
  EXPECT_THAT(refusal(prefill, AuxRank({4}, {{.name = "other"}})).detail(),
              HasSubstr("no aux field in common: token, logprob here, other there"));
  EXPECT_THAT(refusal(prefill, AuxRank({16}, {})).detail(),
              HasSubstr("2 aux fields named here, 0 there"));
  EXPECT_EQ(refusal(prefill, AuxRank({16}, {})).code(), Code::kIncompatible);
}

TEST(AuxFields, ALayoutSaysWhatIsWrongWithThem) {
  const auto why = [](std::vector<KvField> fields) {
    return check_layout(AuxRank({16, 8}, std::move(fields)).layout).detail();
  };
  EXPECT_THAT(why({{.name = ""}}), HasSubstr("a name has 1 to 64 bytes"));
  EXPECT_THAT(why({{.name = std::string(65, 'x')}}), HasSubstr("a name has 1 to 64 bytes"));
  EXPECT_THAT(why({{.name = "a\n"}}), HasSubstr("printable"));
  EXPECT_THAT(why({{.name = "a", .bytes = 4}, {.name = "a", .offset = 4}}), HasSubstr("twice"));
  EXPECT_THAT(why({{.name = "a", .bytes = 5}, {.name = "b", .offset = 4}}),
              HasSubstr("fields \"a\" and \"b\" lie over each other"));
  EXPECT_THAT(why({{.name = "a", .buffer = 1, .bytes = 9}}),
              HasSubstr("9 bytes from 0 in buffer 1 of 8 bytes a row"));
  EXPECT_THAT(why({{.name = "a", .buffer = 2}}), HasSubstr("buffer 2"));
  EXPECT_THAT(why({{.name = "a", .offset = ~0ULL, .bytes = 2}}), HasSubstr("2 bytes from"));
  AuxRank kv({16}, {});
  kv.layout.components[0].fields = {{.name = "a"}};
  EXPECT_THAT(check_layout(kv.layout).detail(), HasSubstr("only aux may"));
}

// Case I8 for fields: whoever is missing among the writers, decode notices.
TEST(AuxFields, DecodeAddsUpWhoBringsWhat) {
  const AuxRank decode(
      {8}, {{.name = "token", .bytes = 4, .required = true}, {.name = "logprob", .offset = 4}});
  const auto sum = [&](const std::vector<wire::KvCoverage>& writers) {
    std::vector<const wire::KvCoverage*> all;
    for (const auto& one : writers) all.push_back(&one);
    return Coverage(decode.layout, 1, all);
  };
  const Coverage token = sum({{.bytes = {4}, .fields = {0}}, {}});
  EXPECT_TRUE(token.check().is_ok()) << token.check().to_string();
  EXPECT_EQ(token.bytes_for(1, 1), 4U);
  EXPECT_EQ(token.fields(), std::vector<std::uint32_t>{0});
  EXPECT_EQ(sum({{.bytes = {8}, .fields = {0, 1}}}).bytes_for(1, 1), 8U);
  EXPECT_THAT(sum({{.bytes = {4}, .fields = {1}}}).check().detail(),
              HasSubstr("\"token\" is required, and brought by none"));
  EXPECT_THAT(sum({{.bytes = {4}, .fields = {0}}, {.bytes = {4}, .fields = {0}}}).check().detail(),
              HasSubstr("\"token\" is brought by several"));
  EXPECT_THAT(sum({{.bytes = {8}, .fields = {0}}}).check().detail(), HasSubstr("8 of 4 bytes"));
  EXPECT_THAT(sum({{.bytes = {4}, .fields = {2}}}).check().detail(), HasSubstr("makes no sense"));
  EXPECT_FALSE(sum({{}, {}}).check().is_ok());
}

/// Random named pieces over random rows; `lengths` keeps one name's length on both sides.
AuxRank random_rank(const std::map<std::string, std::uint64_t>& lengths) {
  std::vector<std::uint64_t> rows(*rc::gen::inRange<std::size_t>(1, 4), 0);
  std::vector<KvField> fields;
  for (const auto& [name, length] : lengths) {
    if (*rc::gen::inRange(0, 3) == 0) continue;
    const auto buffer =
        *rc::gen::inRange<std::uint32_t>(0, static_cast<std::uint32_t>(rows.size()));
    rows[buffer] += *rc::gen::inRange<std::uint64_t>(0, 3);  // bytes of no field
    fields.push_back({.name = name, .buffer = buffer, .offset = rows[buffer], .bytes = length});
    rows[buffer] += length;
  }
  for (std::uint64_t& row : rows) row += *rc::gen::inRange<std::uint64_t>(row == 0 ? 1 : 0, 3);
  for (std::size_t i = fields.size(); i > 1; --i)
    std::swap(fields[i - 1], fields[*rc::gen::inRange<std::size_t>(0, i)]);
  return AuxRank(rows, fields);
}

// Whatever both sides have beside them, exactly the common fields move, each into its own place of
// the row that was announced, and nothing else is touched.
RC_GTEST_PROP(AuxFields, ExactlyTheCommonOnesMove, ()) {
  std::map<std::string, std::uint64_t> lengths;
  for (const char* name : {"a", "b", "c", "d", "e", "f"})
    lengths[name] = *rc::gen::inRange<std::uint64_t>(1, 9);
  AuxRank prefill = random_rank(lengths);
  AuxRank decode = random_rank(lengths);
  const KvComponent& here = prefill.layout.components[1];
  const KvComponent& there = decode.layout.components[1];
  RC_ASSERT(check_layout(prefill.layout).is_ok());
  std::set<std::string> common;
  for (const KvField& one : here.fields)
    for (const KvField& other : there.fields)
      if (one.name == other.name) common.insert(one.name);
  const wire::KvLayout described = decode.described();
  const auto plan = TransferPlan::prepare(prefill.layout, described);
  if (common.empty() && !(here.fields.empty() && there.fields.empty())) {
    RC_ASSERT(!plan.has_value() && plan.error().code() == Code::kIncompatible);
    return;
  }
  if (common.empty()) return;  // without names: by position, see plan_test.cc
  RC_ASSERT(plan.has_value());

  std::vector<std::vector<std::byte>> wanted;
  for (auto& buffer : prefill.memory)
    for (std::size_t i = 0; i < buffer->size(); ++i)
      (*buffer)[i] = static_cast<std::byte>(*rc::gen::inRange(1, 256));
  for (auto& buffer : decode.memory) wanted.push_back(*buffer);
  const std::uint32_t from = *rc::gen::inRange(0U, AuxRank::kRows);
  const std::uint32_t to = *rc::gen::inRange(0U, AuxRank::kRows);
  for (const KvField& target : there.fields)
    for (const KvField& source : here.fields) {
      if (source.name != target.name) continue;
      const std::byte* at = static_cast<const std::byte*>(here.buffers[source.buffer].base) +
                            from * here.buffers[source.buffer].item_len + source.offset;
      std::memcpy(wanted[1 + target.buffer].data() + to * there.buffers[target.buffer].item_len +
                      target.offset,
                  at, source.bytes);
    }

  std::vector<transport::Piece> pieces;
  const std::vector<std::uint32_t> sources{from};
  const std::vector<std::uint32_t> targets{to};
  const auto runs = plan->runs(1, {.source = sources, .destination = targets, .total = 1});
  plan->append(1, runs, pieces);
  RC_ASSERT(plan->amount(1, runs).pieces == pieces.size());
  std::uint64_t bytes = 0;
  for (const transport::Piece& piece : pieces) {
    std::memcpy(decode.memory[piece.region.slot]->data() + piece.offset, piece.local, piece.length);
    bytes += piece.length;
  }
  for (std::size_t i = 0; i < wanted.size(); ++i) RC_ASSERT(*decode.memory[i] == wanted[i]);

  const wire::KvCoverage& said = plan->components()[1].coverage;
  const std::vector<const wire::KvCoverage*> writers{&said};
  const Coverage coverage(decode.layout, 1, writers);
  RC_ASSERT(coverage.check().is_ok());
  RC_ASSERT(coverage.bytes_for(1, 1) == bytes);
  std::set<std::string> named;
  for (const std::uint32_t field : coverage.fields()) named.insert(there.fields[field].name);
  RC_ASSERT(named == common);
}

}  // namespace
}  // namespace kvmend::kv
