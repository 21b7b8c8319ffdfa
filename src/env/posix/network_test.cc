// What only real sockets do; the contract that they share with the simulation is tested in env/sim.
#include "env/posix/network.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <new>
#include <vector>

#include "env/posix/no_descriptors.h"
#include "env/posix/stream.h"

namespace kvmend::env::posix {
namespace {

using namespace std::chrono_literals;

struct Recorder : StreamHandler {
  bool connected = false;
  int readable = 0;
  Status error;
  void on_connected() override { connected = true; }
  void on_readable() override { ++readable; }
  void on_writable() override {}
  void on_stream_error(Status status) override { error = std::move(status); }
};

struct Collector : AcceptHandler {
  std::vector<std::unique_ptr<Stream>> streams;
  bool sheds = false;
  int shed = 0;
  void on_accept(std::unique_ptr<Stream> stream) override { streams.push_back(std::move(stream)); }
  bool on_out_of_descriptors() override {
    if (!sheds || streams.empty()) return false;
    streams.erase(streams.begin());
    ++shed;
    return true;
  }
};

class PosixNetworkTest : public testing::Test {
 protected:
  template <class Condition>
  bool run_until(Condition condition) {
    const Time deadline = env_->loop().now() + 30s;
    while (!condition()) {
      if (env_->loop().now() > deadline) return false;
      env_->loop().run_once(10ms);
    }
    return true;
  }
  Network& network() { return env_->env().network; }
  std::unique_ptr<Listener> listen(const char* host = "127.0.0.1") {
    auto listener = network().listen({host, 0}, {}, &accepted_);
    EXPECT_TRUE(listener.has_value()) << listener.error().to_string();
    return std::move(*listener);
  }
  std::unique_ptr<PosixEnv> env_ = std::move(*PosixEnv::create());
  Collector accepted_;
};

// Case R2: shortage of a local resource never counts against a peer.
TEST_F(PosixNetworkTest, R2_ConnectWithoutDescriptorsIsALocalShortage) {
  if (kNeedsDescriptorsItself) GTEST_SKIP() << "UBSan needs descriptors";
  auto listener = listen();
  const Address address = listener->address();
  Recorder recorder;
  const NoDescriptors none(NoDescriptors::Closed::kIsFree);
  const auto stream = network().connect(address, {}, &recorder);
  ASSERT_FALSE(stream.has_value());
  EXPECT_EQ(stream.error().code(), Code::kResourceExhausted);
  EXPECT_EQ(stream.error().origin(), Origin::kLocal);
  EXPECT_NE(stream.error().detail().find(address.to_string()), std::string::npos);
}

TEST_F(PosixNetworkTest, AcceptWithoutDescriptorsWaitsAndDoesntSpin) {
  if (kNeedsDescriptorsItself) GTEST_SKIP() << "UBSan needs descriptors";
  auto listener = listen();
  Recorder recorder;
  auto stream = std::move(*network().connect(listener->address(), {}, &recorder));
  {
    // Not a turn with both in it: the connect itself must be finished before.
    const NoDescriptors none(NoDescriptors::Closed::kIsFree);
    ASSERT_TRUE(run_until([&] { return recorder.connected; }));
    const Time from = env_->loop().now();
    int turns = 0;
    while (env_->loop().now() < from + 50ms) {
      env_->loop().run_once(25ms);
      ++turns;
    }
    EXPECT_LT(turns, 20);
    EXPECT_TRUE(accepted_.streams.empty());
  }
  EXPECT_TRUE(run_until([&] { return accepted_.streams.size() == 1; }));
  EXPECT_TRUE(recorder.error.is_ok());
}

// A handler that has nothing to miss makes room for those who wait.
TEST_F(PosixNetworkTest, AcceptWithoutDescriptorsTakesOneOfAnotherConnection) {
  if (kNeedsDescriptorsItself) GTEST_SKIP() << "UBSan needs descriptors";
  auto listener = listen();
  Recorder silent;
  Recorder waiting;
  auto first = std::move(*network().connect(listener->address(), {}, &silent));
  ASSERT_TRUE(run_until([&] { return accepted_.streams.size() == 1; }));
  auto second = std::move(*network().connect(listener->address(), {}, &waiting));
  accepted_.sheds = true;
  const NoDescriptors none(NoDescriptors::Closed::kIsFree);
  ASSERT_TRUE(run_until([&] { return accepted_.shed == 1 && accepted_.streams.size() == 1; }));
  ASSERT_TRUE(run_until([&] { return waiting.connected; }));
}

// What one connection's handler throws ends that connection, and the other side learns it.
TEST_F(PosixNetworkTest, AHandlerThatThrowsLosesItsConnectionOnly) {
  struct Thrower : Recorder {
    void on_readable() override { throw std::bad_alloc(); }
  };
  auto listener = listen();
  Recorder one;
  Recorder two;
  auto first = std::move(*network().connect(listener->address(), {}, &one));
  auto second = std::move(*network().connect(listener->address(), {}, &two));
  ASSERT_TRUE(
      run_until([&] { return one.connected && two.connected && accepted_.streams.size() == 2; }));
  Thrower thrower;
  Recorder good;
  accepted_.streams[0]->set_handler(&thrower);
  accepted_.streams[1]->set_handler(&good);
  std::byte byte{1};
  const iovec bytes{&byte, 1};
  ASSERT_EQ(first->writev({&bytes, 1}).kind, IoResult::Kind::kOk);
  ASSERT_EQ(second->writev({&bytes, 1}).kind, IoResult::Kind::kOk);
  ASSERT_TRUE(run_until([&] { return !thrower.error.is_ok() && good.readable > 0; }));
  EXPECT_EQ(thrower.error.code(), Code::kResourceExhausted);
  EXPECT_EQ(thrower.error.origin(), Origin::kLocal) << "no fault of the peer";
  ASSERT_TRUE(run_until([&] {
    return one.readable > 0 && first->readv({&bytes, 1}).kind != IoResult::Kind::kAgain;
  }));
  EXPECT_EQ(accepted_.streams[1]->readv({&bytes, 1}).kind, IoResult::Kind::kOk);
}

TEST_F(PosixNetworkTest, AConnectionToItselfIsRefused) {
  // The address of a socket that is its own peer: what a connect to an unused ephemeral port may
  // become by chance.
  GuardedFd fd = open_tcp_socket(AF_INET);
  SocketAddress any = *to_socket_address({"127.0.0.1", 0});
  ASSERT_EQ(::bind(fd.get(), any.get(), any.length), 0);
  const Address self = local_address(fd.get());
  const SocketAddress own = *to_socket_address(self);
  const int error = ::connect(fd.get(), own.get(), own.length) == 0 ? 0 : errno;
  Recorder recorder;
  PosixStream stream(env_->loop(), std::move(fd), self, PosixStream::State::kConnecting, &recorder);
  ASSERT_TRUE(stream.start_connecting(error).is_ok());
  ASSERT_TRUE(run_until([&] { return !recorder.error.is_ok(); }));
  EXPECT_FALSE(recorder.connected);
  EXPECT_EQ(recorder.error.code(), Code::kConnectionRefused);
  EXPECT_EQ(recorder.error.origin(), Origin::kPeer);
}

TEST_F(PosixNetworkTest, AnErrorThatConnectReportsAtOnceComesFromTheLoop) {
  Recorder recorder;
  PosixStream stream(env_->loop(), open_tcp_socket(AF_INET), {"10.1.2.3", 1},
                     PosixStream::State::kConnecting, &recorder);
  ASSERT_TRUE(stream.start_connecting(ENETUNREACH).is_ok());
  EXPECT_TRUE(recorder.error.is_ok());
  ASSERT_TRUE(run_until([&] { return !recorder.error.is_ok(); }));
  EXPECT_EQ(recorder.error.code(), Code::kUnavailable);
  EXPECT_EQ(recorder.error.origin(), Origin::kLink);
}

TEST_F(PosixNetworkTest, SocketsAreCloseOnExecAndTakeTheirOptions) {
  auto listener = listen();
  Recorder recorder;
  auto stream = network().connect(listener->address(),
                                  {.congestion = "no-such-algorithm",
                                   .send_buffer_bytes = 64 << 10,
                                   .receive_buffer_bytes = 64 << 10,
                                   .user_timeout = 1500us},
                                  &recorder);
  ASSERT_TRUE(stream.has_value()) << stream.error().to_string();
  ASSERT_TRUE(run_until([&] { return recorder.connected; }));
  for (int fd = 3; fd < 64; ++fd) {
    const int flags = ::fcntl(fd, F_GETFD);
    if (flags >= 0 && peer_address(fd).port == listener->address().port) {
      EXPECT_NE(flags & FD_CLOEXEC, 0);
    }
  }
}

TEST_F(PosixNetworkTest, ListensOnIpv6Only) {
  auto listener = network().listen({"::1", 0}, {}, &accepted_);
  if (!listener) GTEST_SKIP() << "no IPv6 here: " << listener.error().to_string();
  Recorder six;
  Recorder four;
  auto to_six = network().connect((*listener)->address(), {}, &six);
  auto to_four = network().connect({"127.0.0.1", (*listener)->address().port}, {}, &four);
  ASSERT_TRUE(to_six.has_value() && to_four.has_value());
  ASSERT_TRUE(run_until([&] { return six.connected && !four.error.is_ok(); }));
  ASSERT_TRUE(run_until([&] { return accepted_.streams.size() == 1; }));
  EXPECT_EQ(accepted_.streams[0]->peer().host, "::1");
  EXPECT_EQ(four.error.code(), Code::kConnectionRefused);
}

TEST_F(PosixNetworkTest, APortInUseIsALocalShortageWithErrno) {
  auto listener = listen();
  const auto second = network().listen(listener->address(), {}, &accepted_);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code(), Code::kResourceExhausted);
  EXPECT_EQ(second.error().sys_errno(), EADDRINUSE);
  EXPECT_EQ(network().listen({"not an ip", 0}, {}, &accepted_).error().code(),
            Code::kInvalidArgument);
}

// A forked child doesn't keep the listener's port or the connection of its parent alive.
TEST_F(PosixNetworkTest, AForkedChildLetsGoOfAllSockets) {
  auto listener = listen();
  const Address address = listener->address();
  Recorder recorder;
  auto stream = std::move(*network().connect(address, {}, &recorder));
  ASSERT_TRUE(run_until([&] { return accepted_.streams.size() == 1 && recorder.connected; }));
  int hold[2];
  ASSERT_EQ(::pipe(hold), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(hold[1]);
    // Destroying the inherited objects must not disturb the parent's epoll or sockets.
    accepted_.streams.clear();
    stream.reset();
    char byte = 0;
    static_cast<void>(::read(hold[0], &byte, 1));
    ::_exit(0);
  }
  ::close(hold[0]);
  accepted_.streams.clear();
  ASSERT_TRUE(run_until([&] { return recorder.readable > 0; }));
  std::byte byte{};
  const iovec into{&byte, 1};
  EXPECT_EQ(stream->readv({&into, 1}).kind, IoResult::Kind::kEof);
  listener.reset();
  Recorder second;
  auto refused = std::move(*network().connect(address, {}, &second));
  EXPECT_TRUE(run_until([&] { return second.error.code() == Code::kConnectionRefused; }));
  ::close(hold[1]);
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
}

}  // namespace
}  // namespace kvmend::env::posix
