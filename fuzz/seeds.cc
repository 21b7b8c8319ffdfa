// fuzz_seeds <folder>: writes one small file per kind of message to <folder>/<target>/.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "fuzz.h"
#include "wire/control.h"
#include "wire/frame.h"
#include "wire/kv_messages.h"

namespace {

using namespace kvmend;
using namespace kvmend::wire;

class Corpus {
 public:
  explicit Corpus(std::filesystem::path root) : root_(std::move(root)) {}

  void add(const std::string& target, const std::string& name, Bytes content,
           const std::string& prefix = {}) const {
    std::filesystem::create_directories(root_ / target);
    std::ofstream out(root_ / target / name, std::ios::binary);
    out << prefix;
    out.write(reinterpret_cast<const char*>(content.data()),
              static_cast<std::streamsize>(content.size()));
    KVM_CHECK(out.good());
  }

 private:
  std::filesystem::path root_;
};

void add_addresses(const Corpus& corpus) {
  int i = 0;
  for (const std::string text : {"127.0.0.1:7001", "[::1]:7001", "::1", "localhost:80", "1.2.3.4"})
    corpus.add("address", fmt::format("seed{}", i++), fuzz::bytes(text));
}

void add_frames(const Corpus& corpus) {
  const std::vector<WireSlice> slices = {{{1, 2}, 4096, 4096}, {{3, 4}, 0, 100}};
  const DataBody body{GrantId{9}, 7};
  std::vector<std::byte> all;
  const auto add = [&](const std::string& name, auto&& write) {
    std::vector<std::byte> frame;
    write(frame);
    corpus.add("frame", name, frame);
    all.insert(all.end(), frame.begin(), frame.end());
  };
  add("write", [&](auto& out) {
    append_data_frame(out, FrameType::kWrite, kFlagChecksum, ChunkId{1}, body, slices, 4196);
  });
  add("read",
      [&](auto& out) { append_data_frame(out, FrameType::kRead, 0, ChunkId{2}, body, slices, 0); });
  add("read_data", [&](auto& out) {
    append_data_frame(out, FrameType::kReadData, kFlagChecksum, ChunkId{2}, {{}, 7}, {}, 4196);
  });
  add("pull", [&](auto& out) {
    append_pull_frame(out, 0, ChunkId{3}, body, slices,
                      std::vector<PullSource>{{0, 64}, {PullSource::kForeignMemory, 1ULL << 46}});
  });
  const std::vector<AckEntry> acks = {
      {.chunk = ChunkId{2}, .code = Code::kOutOfRange, .origin = Origin::kCaller, .argument = 1}};
  add("ack", [&](auto& out) { append_acks(out, FrameType::kAck, 0, acks); });
  add("read_end", [&](auto& out) { append_acks(out, FrameType::kReadEnd, 2, acks); });
  add("read_taken", [&](auto& out) { append_acks(out, FrameType::kReadTaken, 2, acks); });
  add("read_offer", [&](auto& out) {
    const std::vector<PullSource> sources{{.segment = 1, .offset = 4096}};
    append_read_offer(out, 0, ChunkId{2}, {.loan = ChunkId{3}}, sources);
  });
  add("ping", [&](auto& out) { append_frame(out, FrameType::kPing, 4, {}); });
  add("control", [&](auto& out) {
    append_frame(out, FrameType::kControl, 1, encode_control(Goodbye{"drain"}));
  });
  corpus.add("frame", "stream", all);
}

void add_hellos(const Corpus& corpus) {
  const HostIdentity host{.uid = 1000, .pid = 7, .pid_start = 99, .local_address = "sock"};
  const auto zero = std::string(1, '\0');
  corpus.add("hello", "data",
             encode_hello({.kind = LaneKind::kData,
                           .incarnation = Incarnation{1},
                           .session_id = "[::1]:7001",
                           .epoch = Epoch{3},
                           .token = Token{},
                           .host = host,
                           .auth = {.scheme = 1, .payload = {std::byte{1}}}}),
             zero);
  corpus.add("hello", "probe",
             encode_hello({.kind = LaneKind::kProbe, .incarnation = Incarnation{1}}), zero);
  corpus.add("hello", "ack",
             encode_hello_ack({.incarnation = Incarnation{5},
                               .epoch = Epoch{1},
                               .token = Token{},
                               .scratch = Scratch{{0, 9}, GrantId{77}, 16'384}}),
             "\x01");
  corpus.add("hello", "reject",
             encode_hello_reject(
                 {.code = Code::kStaleEpoch, .message = "older", .incarnation = Incarnation{5}}),
             "\x02");
}

void add_control(const Corpus& corpus) {
  const std::vector<Control> all = {
      RegionTablePart{.version = 4,
                      .first = true,
                      .more = true,
                      .added = {{{1, 2}, 0x1000, 0x100, Access::kReadWrite}}},
      RegionTableRequest{}, Notify{"name", "message"}, Goodbye{"draining"}, Upper{1, "body"}};
  for (const Control& control : all)
    corpus.add("control", fmt::format("kind{}", control.index()), encode_control(control));
}

void add_kv(const Corpus& corpus) {
  const RoomId room{77};
  const wire::KvComponent component{.regions = {{1, 2}, {3, 4}},
                                    .item_len = {4096},
                                    .items = 1000,
                                    .layer_ids = {0, 1},
                                    .dtype = "bfloat16",
                                    .base_offset = {0, 64}};
  const std::vector<KvMessage> all = {
      KvRegister{3,
                 {.page_tokens = 16,
                  .element_order = "nhd",
                  .components = {component},
                  .version = kKvLayoutVersion}},
      KvRegisterReply{3, Code::kIncompatible, "head_dim"},
      KvRoomMetadata{.room = room,
                     .attempt = 2,
                     .grant = GrantId{9},
                     .expires_in = std::chrono::milliseconds{60'000},
                     .pages = {{0, {5, 3, 9}}, {1, {7}}}},
      KvRoomDone{.room = room, .grant = GrantId{8}, .declared_bytes = {4096, 100}},
      KvRoomStatus{.room = room, .status = 4, .reason = "r"},
      KvRoomAbort{.room = room, .reason = "r"},
      KvRoomAbortAck{.room = room}};
  for (const KvMessage& message : all)
    corpus.add("kv_messages", fmt::format("kind{}", message.index()),
               fuzz::bytes(encode_kv(message)));
  corpus.add("kv_messages", "coverage",
             fuzz::bytes(encode_kv(KvRegisterReply{
                 .registration = 3,
                 .coverage = {{.bytes = {64, 0, 8}, .elided = {1}, .divisor = 2}, {}}})));
}

// Layouts that the ones of kv_plan_fuzz.cc can be mapped to; the first byte chooses ours.
void add_plans(const Corpus& corpus) {
  const auto layout = [](std::uint32_t heads, std::uint32_t tp_rank, std::uint32_t tp_size) {
    const std::uint32_t channels = 16 / tp_size;
    return wire::KvLayout{
        .page_tokens = 4,
        .kv_heads = heads,
        .head_dim = 8,
        .element_order = "nhd",
        .rank = {.tp_rank = tp_rank, .tp_size = tp_size},
        .components =
            {{.regions = {{1, 1}, {2, 1}, {3, 1}},
              .item_len = {64ULL * heads},
              .items = 20,
              .layer_ids = {2, 1, 0},
              .base_offset = {0, 64, 128}},
             {.kind = 1, .regions = {{4, 1}}, .item_len = {24}, .items = 8},
             {.kind = 2,
              .regions = {{5, 1}},
              .item_len = {6ULL * channels},
              .items = 8,
              .layer_ids = {1},
              .shapes = {{.rows = 3, .columns = channels, .total_columns = 16, .groups = {8, 8}}}}},
        .total_kv_heads = 4,
        .version = kKvLayoutVersion};
  };
  const auto add = [&](const char* name, char ours, const wire::KvLayout& there) {
    corpus.add("kv_plan", name, fuzz::bytes(ours + encode_kv(KvRegister{3, there})));
  };
  add("equal", 0, layout(4, 0, 1));
  add("tp1_to_2", 0, layout(2, 1, 2));
  add("tp4_to_2", 0x22, layout(2, 1, 2));
  add("hnd_to_nhd", 4, layout(4, 0, 1));
  wire::KvLayout dealt = layout(4, 0, 1);
  dealt.rank.dcp_rank = 1;
  dealt.rank.dcp_size = 3;
  add("dcp3", 0, dealt);
}

}  // namespace

int main(int argc, char** argv) {
  const Corpus corpus(argc > 1 ? argv[1] : "fuzz/corpus");
  add_addresses(corpus);
  add_frames(corpus);
  add_hellos(corpus);
  add_control(corpus);
  add_kv(corpus);
  add_plans(corpus);
  return 0;
}
