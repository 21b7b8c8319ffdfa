// The contract of env::Env, checked against real sockets and against the simulation: code tested in
// the one must be able to rely on the same in the other.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "env/network.h"
#include "env/posix/network.h"
#include "env/sim/world.h"

namespace kvmend::env {
namespace {

using namespace std::chrono_literals;

/// Two environments that reach each other, and a way to let time pass.
class Bench {
 public:
  virtual ~Bench() = default;
  virtual Env client() = 0;
  virtual Env server() = 0;
  virtual Address server_address() = 0;
  virtual bool run_until(const std::function<bool()>& done) = 0;
  virtual void run_for(Duration duration) = 0;
  /// Makes pages inaccessible to the I/O of the client, or accessible again.
  virtual void protect(void* begin, std::size_t length, bool on) = 0;
};

class PosixBench final : public Bench {
 public:
  Env client() override { return env_->env(); }
  Env server() override { return env_->env(); }
  Address server_address() override { return {"127.0.0.1", 0}; }
  bool run_until(const std::function<bool()>& done) override {
    const Time deadline = env_->loop().now() + 60s;
    while (!done()) {
      if (env_->loop().now() > deadline) return false;
      env_->loop().run_once(10ms);
    }
    return true;
  }
  void run_for(Duration duration) override {
    const Time end = env_->loop().now() + duration;
    run_until([&] { return env_->loop().now() >= end; });
  }
  void protect(void* begin, std::size_t length, bool on) override {
    ASSERT_EQ(::mprotect(begin, length, on ? PROT_NONE : PROT_READ | PROT_WRITE), 0);
  }

 private:
  std::unique_ptr<posix::PosixEnv> env_ = std::move(*posix::PosixEnv::create());
};

class SimBench final : public Bench {
 public:
  explicit SimBench(std::uint64_t seed) : world_(seed) {
    client_ = &world_.add_host("10.0.0.1").start_process("client");
    server_ = &world_.add_host("10.0.0.2").start_process("server");
  }
  Env client() override { return client_->env(); }
  Env server() override { return server_->env(); }
  Address server_address() override { return {"10.0.0.2", 0}; }
  bool run_until(const std::function<bool()>& done) override { return world_.run_until(done, 60s); }
  void run_for(Duration duration) override { world_.run_for(duration); }
  void protect(void* begin, std::size_t length, bool on) override {
    client_->clear_inaccessible();
    if (on) client_->set_inaccessible(begin, length);
  }

 private:
  sim::SimWorld world_;
  sim::SimProcess* client_ = nullptr;
  sim::SimProcess* server_ = nullptr;
};

struct Kind {
  std::string name;
  std::function<std::unique_ptr<Bench>()> make;
};

/// A stream's handler that records, and whose reactions a test may set.
struct Peer : StreamHandler {
  std::unique_ptr<Stream> stream;
  bool connected = false;
  int readable = 0;
  Status error;
  std::function<void()> when_readable;
  std::function<void()> when_writable;
  std::function<void()> when_connected;
  std::function<void()> when_broken;

  void on_connected() override {
    connected = true;
    if (when_connected) when_connected();
  }
  void on_readable() override {
    ++readable;
    if (when_readable) when_readable();
  }
  void on_writable() override {
    if (when_writable) when_writable();
  }
  void on_stream_error(Status status) override {
    error = std::move(status);
    if (when_broken) when_broken();
  }
  IoResult read(void* into, std::size_t size) {
    const iovec part{into, size};
    return stream->readv({&part, 1});
  }
  IoResult write(const std::string& text) {
    std::string copy = text;
    const iovec part{copy.data(), copy.size()};
    return stream->writev({&part, 1});
  }
};

struct Acceptor : AcceptHandler {
  std::vector<std::unique_ptr<Peer>> peers;
  std::function<void(Peer&)> when_accepted;
  void on_accept(std::unique_ptr<Stream> stream) override {
    peers.push_back(std::make_unique<Peer>());
    Peer& peer = *peers.back();
    peer.stream = std::move(stream);
    peer.stream->set_handler(&peer);
    if (when_accepted) when_accepted(peer);
  }
};

class Contract : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    bench_ = GetParam().make();
    listener_ =
        std::move(*bench_->server().network.listen(bench_->server_address(), {}, &acceptor_));
  }
  std::unique_ptr<Peer> connect(const StreamOptions& options = {}) {
    auto peer = std::make_unique<Peer>();
    auto stream = bench_->client().network.connect(listener_->address(), options, peer.get());
    EXPECT_TRUE(stream.has_value());
    peer->stream = std::move(*stream);
    return peer;
  }
  // A connection that stands on both sides.
  std::unique_ptr<Peer> connect_pair() {
    auto peer = connect();
    const std::size_t before = acceptor_.peers.size();
    EXPECT_TRUE(
        bench_->run_until([&] { return peer->connected && acceptor_.peers.size() == before + 1; }));
    return peer;
  }

  std::unique_ptr<Bench> bench_;
  Acceptor acceptor_;
  std::unique_ptr<Listener> listener_;
};

std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::uint64_t x = 88172645463325252ULL;
  for (std::byte& b : bytes) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    b = static_cast<std::byte>(x);
  }
  return bytes;
}

std::vector<iovec> pieces(std::vector<std::byte>& bytes, std::size_t from, std::size_t size) {
  std::vector<iovec> parts;
  for (std::size_t at = from; at < bytes.size() && parts.size() < 2'000; at += size)
    parts.push_back({&bytes[at], std::min(size, bytes.size() - at)});
  return parts;
}

// The client writes and the server echoes, both scattered over pieces of odd sizes and over more of
// them than one call takes.
TEST_P(Contract, Echoes64MiBScattered) {
  constexpr std::size_t kSize = 64U << 20;
  std::vector<std::byte> source = pattern(kSize);
  std::vector<std::byte> echo(kSize);
  std::vector<std::byte> held;
  auto client = connect_pair();
  Peer& server = *acceptor_.peers[0];
  std::size_t sent = 0;
  std::size_t received = 0;
  std::vector<std::byte> buffer(300'001);
  server.when_readable = [&] {
    const auto parts = pieces(buffer, 0, 4'099);
    const IoResult io = server.stream->readv(parts);
    if (io.kind != IoResult::Kind::kOk) return;
    held.insert(held.end(), buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(io.bytes));
    server.stream->want_read(held.size() < (1U << 20));
    server.stream->want_write(true);
  };
  server.when_writable = [&] {
    const iovec part{held.data(), held.size()};
    const IoResult io = server.stream->writev({&part, 1});
    if (io.kind == IoResult::Kind::kOk)
      held.erase(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(io.bytes));
    server.stream->want_write(!held.empty());
    server.stream->want_read(held.size() < (1U << 20));
  };
  client->when_writable = [&] {
    const IoResult io = client->stream->writev(pieces(source, sent, 1'031));
    if (io.kind == IoResult::Kind::kOk) sent += io.bytes;
    client->stream->want_write(sent < kSize);
  };
  client->when_readable = [&] {
    const IoResult io = client->stream->readv(pieces(echo, received, 777));
    if (io.kind == IoResult::Kind::kOk) received += io.bytes;
  };
  client->stream->want_write(true);
  ASSERT_TRUE(bench_->run_until([&] { return received == kSize; }));
  EXPECT_TRUE(source == echo);
  EXPECT_TRUE(bench_->run_until([&] { return client->stream->unacknowledged_bytes() == 0; }));
}

TEST_P(Contract, ConnectToNobodyIsRefusedFromTheLoop) {
  const Address address = listener_->address();
  listener_.reset();
  Peer peer;
  auto stream = bench_->client().network.connect(address, {}, &peer);
  ASSERT_TRUE(stream.has_value());
  EXPECT_TRUE(peer.error.is_ok());
  ASSERT_TRUE(bench_->run_until([&] { return !peer.error.is_ok(); }));
  EXPECT_FALSE(peer.connected);
  EXPECT_EQ(peer.error.code(), Code::kConnectionRefused);
  EXPECT_EQ(peer.error.origin(), Origin::kPeer);
  EXPECT_NE(peer.error.detail().find(address.to_string()), std::string::npos);
}

TEST_P(Contract, ACloseIsSeenAsEndAfterTheLastBytes) {
  auto client = connect_pair();
  ASSERT_EQ(client->write("farewell").kind, IoResult::Kind::kOk);
  client.reset();
  Peer& server = *acceptor_.peers[0];
  std::string got;
  bool ended = false;
  server.when_readable = [&] {
    std::array<char, 3> some{};
    const IoResult io = server.read(some.data(), some.size());
    if (io.kind == IoResult::Kind::kOk) got.append(some.data(), io.bytes);
    ended = ended || io.kind == IoResult::Kind::kEof;
  };
  ASSERT_TRUE(bench_->run_until([&] { return ended; }));
  EXPECT_TRUE(std::string("farewell").starts_with(got));
  EXPECT_FALSE(got.empty());  // a short write may have sent less than all
  const int events = server.readable;
  bench_->run_for(20ms);
  EXPECT_EQ(server.readable, events) << "the end is reported once";
}

TEST_P(Contract, AResetIsAnErrorOfTheLink) {
  auto client = connect_pair();
  Peer& server = *acceptor_.peers[0];
  int read_errno = 0;
  server.when_readable = [&] {
    char byte = 0;
    const IoResult io = server.read(&byte, 1);
    if (io.kind == IoResult::Kind::kError) read_errno = io.sys_errno;
  };
  client->stream->reset_on_close();
  client.reset();
  ASSERT_TRUE(bench_->run_until([&] { return read_errno != 0 || !server.error.is_ok(); }));
  if (read_errno != 0) {
    EXPECT_EQ(read_errno, ECONNRESET);
  } else {
    EXPECT_EQ(server.error.code(), Code::kConnectionReset);
  }
  EXPECT_EQ(server.write("x").kind, IoResult::Kind::kError);
}

TEST_P(Contract, AResetReachesAlsoThoseWhoDontRead) {
  auto client = connect_pair();
  Peer& server = *acceptor_.peers[0];
  server.stream->want_read(false);
  bench_->run_for(5ms);
  client->stream->reset_on_close();
  client.reset();
  ASSERT_TRUE(bench_->run_until([&] { return !server.error.is_ok(); }));
  EXPECT_EQ(server.error.code(), Code::kConnectionReset);
  EXPECT_EQ(server.error.origin(), Origin::kLink);
  EXPECT_EQ(server.readable, 0);
}

TEST_P(Contract, AWriterSeesAgainWhenTheReaderStandsStill) {
  auto client = connect_pair();
  acceptor_.peers[0]->stream->want_read(false);
  const std::string block(64 << 10, 'x');
  std::size_t written = 0;
  bool blocked = false;
  client->when_writable = [&] {
    const IoResult io = client->write(block);
    if (io.kind == IoResult::Kind::kOk) written += io.bytes;
    blocked = io.kind == IoResult::Kind::kAgain;
  };
  client->stream->want_write(true);
  bench_->run_for(200ms);
  const std::size_t before = written;
  bench_->run_for(200ms);
  EXPECT_EQ(written, before);
  EXPECT_GT(client->stream->unacknowledged_bytes(), 0U);
  std::size_t read = 0;
  Peer& server = *acceptor_.peers[0];
  std::vector<char> sink(1 << 20);
  server.when_readable = [&] {
    const IoResult io = server.read(sink.data(), sink.size());
    if (io.kind == IoResult::Kind::kOk) read += io.bytes;
  };
  server.stream->want_read(true);
  EXPECT_TRUE(bench_->run_until([&] { return read > before && written > before; }));
}

// Each connection's handler destroys itself and its neighbour while both have an event due.
TEST_P(Contract, HandlersMayDestroyTheirOwnAndOtherStreams) {
  std::vector<std::unique_ptr<Peer>> clients;
  clients.reserve(32);
  for (int i = 0; i < 32; ++i) clients.push_back(connect_pair());
  std::vector<std::unique_ptr<Peer>>& servers = acceptor_.peers;
  int events = 0;
  for (std::size_t i = 0; i < servers.size(); ++i) {
    servers[i]->when_readable = [&, i] {
      ++events;
      servers[i ^ 1]->stream.reset();
      servers[i]->stream.reset();
    };
  }
  for (auto& client : clients) ASSERT_EQ(client->write("hello").kind, IoResult::Kind::kOk);
  ASSERT_TRUE(bench_->run_until([&] {
    return std::ranges::all_of(servers, [](const auto& s) { return s->stream == nullptr; });
  }));
  EXPECT_EQ(events, 16);
}

TEST_P(Contract, AHandlerMayDestroyItsStreamInEveryEvent) {
  {
    auto client = connect();
    client->when_connected = [&] { client->stream.reset(); };
    ASSERT_TRUE(bench_->run_until([&] { return client->connected; }));
    EXPECT_EQ(client->stream, nullptr);
  }
  auto client = connect_pair();
  bool called = false;
  client->when_writable = [&] {
    called = true;
    client->stream.reset();
  };
  client->stream->want_write(true);
  ASSERT_TRUE(bench_->run_until([&] { return called; }));
  const Address address = listener_->address();
  listener_.reset();
  Peer refused;
  refused.stream = std::move(*bench_->client().network.connect(address, {}, &refused));
  refused.when_broken = [&] { refused.stream.reset(); };
  ASSERT_TRUE(bench_->run_until([&] { return !refused.error.is_ok(); }));
}

TEST_P(Contract, AListenerMayBeDestroyedWhileItAccepts) {
  std::vector<std::unique_ptr<Peer>> clients;
  acceptor_.when_accepted = [&](Peer&) { listener_.reset(); };
  clients.reserve(8);
  for (int i = 0; i < 8; ++i) clients.push_back(connect());
  ASSERT_TRUE(bench_->run_until([&] { return listener_ == nullptr; }));
  bench_->run_for(50ms);
  EXPECT_EQ(acceptor_.peers.size(), 1U);
}

TEST_P(Contract, AStreamMayChangeItsHandler) {
  auto client = connect_pair();
  Peer& first = *acceptor_.peers[0];
  Peer second;
  first.when_readable = [&] {
    second.stream = std::move(first.stream);
    second.stream->set_handler(&second);
  };
  second.when_readable = [&] {
    std::array<char, 8> some{};
    static_cast<void>(second.read(some.data(), some.size()));
  };
  ASSERT_EQ(client->write("x").kind, IoResult::Kind::kOk);
  EXPECT_TRUE(bench_->run_until([&] { return second.readable > 0; }));
}

TEST_P(Contract, InaccessibleMemoryIsAFaultAndTheStreamGoesOn) {
  auto client = connect_pair();
  Peer& server = *acceptor_.peers[0];
  constexpr std::size_t kPage = 4'096;
  void* page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  bench_->protect(page, kPage, true);
  iovec part{page, kPage};
  EXPECT_EQ(client->stream->writev({&part, 1}).kind, IoResult::Kind::kFault);
  bool faulted = false;
  client->when_readable = [&] {
    const iovec into{page, kPage};
    const IoResult io = client->stream->readv({&into, 1});
    faulted = io.kind == IoResult::Kind::kFault;
    client->stream->want_read(false);
  };
  ASSERT_EQ(server.write("y").kind, IoResult::Kind::kOk);
  ASSERT_TRUE(bench_->run_until([&] { return faulted; }));
  bench_->protect(page, kPage, false);
  std::string got;
  client->when_readable = [&] {
    const IoResult io = client->read(page, kPage);
    if (io.kind == IoResult::Kind::kOk) got.append(static_cast<char*>(page), io.bytes);
  };
  client->stream->want_read(true);
  EXPECT_TRUE(bench_->run_until([&] { return got == "y"; }));
  EXPECT_EQ(client->write("z").kind, IoResult::Kind::kOk);
  ::munmap(page, kPage);
}

TEST_P(Contract, NothingToMoveIsNoEnd) {
  auto client = connect_pair();
  char none = 0;
  EXPECT_EQ(client->read(&none, 0).kind, IoResult::Kind::kAgain);
  EXPECT_EQ(client->stream->readv({}).kind, IoResult::Kind::kAgain);
  EXPECT_EQ(client->stream->writev({}).kind, IoResult::Kind::kAgain);
  EXPECT_EQ(client->read(&none, 1).kind, IoResult::Kind::kAgain);
}

// Case X4, its lower half: many connections at once are all accepted.
TEST_P(Contract, X4_AcceptsAFlood) {
  constexpr std::size_t kClients = 500;
  std::vector<std::unique_ptr<Peer>> clients;
  clients.reserve(kClients);
  for (std::size_t i = 0; i < kClients; ++i) clients.push_back(connect());
  ASSERT_TRUE(bench_->run_until([&] { return acceptor_.peers.size() == kClients; }));
  EXPECT_TRUE(bench_->run_until(
      [&] { return std::ranges::all_of(clients, [](const auto& c) { return c->connected; }); }));
}

TEST_P(Contract, TurnsHaveTheirOrder) {
  EventLoop& loop = bench_->client().loop;
  std::vector<std::string> order;
  loop.post([&] {
    loop.at_end_of_turn([&] { order.emplace_back("end of turn"); });
    order.emplace_back("posted 1");
    loop.post([&] { order.emplace_back("next turn"); });
  });
  loop.post([&] { order.emplace_back("posted 2"); });
  loop.add_timer(loop.now(), [&] { order.emplace_back("timer 1"); });
  const TimerId cancelled = loop.add_timer(loop.now(), [&] { order.emplace_back("cancelled"); });
  loop.add_timer(loop.now(), [&] { order.emplace_back("timer 2"); });
  loop.cancel_timer(cancelled);
  ASSERT_TRUE(bench_->run_until([&] { return order.size() == 6; }));
  EXPECT_EQ(order, (std::vector<std::string>{"posted 1", "posted 2", "timer 1", "timer 2",
                                             "end of turn", "next turn"}));
  EXPECT_TRUE(loop.in_loop_thread());
}

TEST_P(Contract, TimersFireInTheOrderOfTheirTimes) {
  EventLoop& loop = bench_->client().loop;
  std::vector<int> fired;
  ScopedTimer rearmed(loop);
  const Time start = loop.now();
  loop.add_timer(start + 3ms, [&] { fired.push_back(3); });
  loop.add_timer(start + 1ms, [&] { fired.push_back(1); });
  rearmed.arm(start + 1ms, [&] { fired.push_back(99); });
  rearmed.arm(start + 2ms, [&] { fired.push_back(2); });
  {
    ScopedTimer gone(loop);
    gone.arm(start + 1ms, [&] { fired.push_back(98); });
  }
  ASSERT_TRUE(bench_->run_until([&] { return fired.size() >= 3; }));
  EXPECT_EQ(fired, (std::vector{1, 2, 3}));
  EXPECT_GE(loop.now(), start + 3ms);
}

TEST_P(Contract, APortInUseIsALocalShortage) {
  const auto second = bench_->server().network.listen(listener_->address(), {}, &acceptor_);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code(), Code::kResourceExhausted);
  EXPECT_EQ(second.error().origin(), Origin::kLocal);
  const Address address = listener_->address();
  listener_.reset();
  EXPECT_TRUE(bench_->server().network.listen(address, {}, &acceptor_).has_value());
}

INSTANTIATE_TEST_SUITE_P(
    Env, Contract,
    testing::Values(Kind{"posix", [] { return std::make_unique<PosixBench>(); }},
                    Kind{"sim_seed_1", [] { return std::make_unique<SimBench>(1); }},
                    Kind{"sim_seed_2", [] { return std::make_unique<SimBench>(2); }}),
    [](const testing::TestParamInfo<Kind>& kind) { return kind.param.name; });

}  // namespace
}  // namespace kvmend::env
