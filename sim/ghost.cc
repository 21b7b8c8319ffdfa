#include "sim/ghost.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "sim/content.h"
#include "wire/control.h"
#include "wire/frame.h"

namespace kvmend::sim {
namespace {

constexpr std::size_t kMaxCalls = 16;

}  // namespace

/// One connection: sends its bytes, and looks at the first frame that comes back.
class Ghost::Call final : public env::StreamHandler {
 public:
  Call(Ghost& ghost, std::string what, std::vector<std::byte> bytes, bool may_be_acked)
      : ghost_(ghost), what_(std::move(what)), bytes_(std::move(bytes)), acked_ok_(may_be_acked) {}
  void hold(std::unique_ptr<env::Stream> stream) { stream_ = std::move(stream); }
  [[nodiscard]] bool over() const { return over_; }

  void on_connected() override { on_writable(); }
  void on_writable() override {
    while (!bytes_.empty()) {
      const iovec part{bytes_.data(), bytes_.size()};
      const env::IoResult io = stream_->writev({&part, 1});
      if (io.kind != env::IoResult::Kind::kOk) break;
      bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(io.bytes));
    }
    stream_->want_write(!bytes_.empty());
  }
  void on_readable() override {
    std::array<std::byte, 512> some{};
    const iovec part{some.data(), some.size()};
    const env::IoResult io = stream_->readv({&part, 1});
    if (io.kind == env::IoResult::Kind::kAgain) return;
    if (io.kind != env::IoResult::Kind::kOk) {
      over_ = true;
      return stream_->want_read(false);
    }
    answer_.insert(answer_.end(), some.begin(),
                   some.begin() + static_cast<std::ptrdiff_t>(io.bytes));
    if (answer_.size() < wire::kHeaderBytes) return;
    const auto header = wire::parse_header(Bytes(answer_).first(wire::kHeaderBytes));
    if (header && header->type == wire::FrameType::kHelloAck && !acked_ok_)
      ghost_.cluster_.verdict().report(1, "accepted: " + what_);
    if (header && header->type == wire::FrameType::kHelloReject) ++ghost_.refused_;
    over_ = true;
  }
  void on_stream_error(Status) override { over_ = true; }

 private:
  Ghost& ghost_;
  const std::string what_;
  std::vector<std::byte> bytes_;
  std::vector<std::byte> answer_;
  std::unique_ptr<env::Stream> stream_;
  const bool acked_ok_;
  bool over_ = false;
};

Ghost::Ghost(Cluster& cluster, GhostOptions options)
    : cluster_(cluster),
      options_(options),
      dice_(mix(cluster.seed(), 0x60057)),
      elapsed_(options.from),
      process_(cluster.world().add_host("10.0.9.9").start_process("ghost")) {
  cluster.after(options.from, [this] { schedule(); });
}

Ghost::~Ghost() = default;

void Ghost::finish() {
  calls_.clear();
}

void Ghost::schedule() {
  const Duration gap = dice_.between(options_.gap / 4, options_.gap * 2);
  elapsed_ += gap;
  if (elapsed_ >= options_.until) return finish();
  cluster_.after(gap, [this] {
    haunt();
    schedule();
  });
}

std::vector<std::byte> Ghost::make_hello(Instance& from, Instance& to, std::string& what) {
  wire::Hello hello;
  hello.incarnation = from.incarnation();
  hello.target_incarnation = to.incarnation();
  session::Session* session = from.engine().sessions().find(to.node().session_id());
  // An epoch that the target has accepted: it stands, so this number is of the past.
  const bool stands =
      session != nullptr && session->incarnation() == to.incarnation() && session->info().lanes > 0;
  switch (dice_.below(3)) {
    case 0:
      if (stands) {
        hello.epoch = Epoch(session->info().epoch - dice_.below(session->info().epoch));
        what = fmt::format("an old hello of {} to {}", from.node().ip(), to.node().ip());
        break;
      }
      [[fallthrough]];
    case 1:
      hello.epoch = Epoch(1'000'000 + dice_.below(1'000));
      hello.incarnation = Incarnation(mix(dice_.next()) | 1U);
      hello.target_incarnation = Incarnation(to.incarnation().value + 1);
      what = "a hello for another incarnation of " + to.node().ip();
      break;
    default: {
      hello.kind = wire::LaneKind::kData;
      hello.epoch =
          Epoch(session == nullptr ? 1 : std::max<std::uint64_t>(1, session->info().epoch));
      wire::Token token{};
      fill(token, dice_.next());
      hello.token = token;
      what = "a data lane with a wrong token at " + to.node().ip();
    }
  }
  std::vector<std::byte> frame;
  wire::append_frame(frame, wire::FrameType::kHello, 0, wire::encode_hello(hello));
  return frame;
}

void Ghost::haunt() {
  std::erase_if(calls_, [](const auto& call) { return call->over(); });
  if (calls_.size() >= kMaxCalls) calls_.erase(calls_.begin());
  Node& a = *dice_.pick(cluster_.nodes());
  Node& b = *dice_.pick(cluster_.nodes());
  if (&a == &b || a.active() == nullptr || b.instance() == nullptr) return;
  std::string what;
  std::vector<std::byte> bytes = make_hello(*a.active(), *b.instance(), what);
  bool nonsense = false;
  if (dice_.chance(0.3)) {  // mutated, cut, or followed by junk
    nonsense = true;
    for (std::size_t i = 0; i < 1 + dice_.below(4); ++i)
      bytes[dice_.below(bytes.size())] ^= static_cast<std::byte>(1U << dice_.below(8));
    if (dice_.chance(0.3)) bytes.resize(dice_.below(bytes.size()));
    for (std::size_t i = dice_.below(200); i > 0; --i)
      bytes.push_back(static_cast<std::byte>(dice_.below(256)));
  }
  auto call = std::make_unique<Call>(*this, std::move(what), std::move(bytes), nonsense);
  auto stream = process_.env().network.connect(b.address(), {}, call.get());
  if (!stream) return;
  call->hold(std::move(*stream));
  calls_.push_back(std::move(call));
}

}  // namespace kvmend::sim
