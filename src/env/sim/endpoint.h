// One end of a simulated TCP connection: what the kernel keeps of it, whether or not its process
// runs. Enough of TCP for its failures to look right: windows, acknowledgements, retransmission
// with backoff, zero-window probes, user timeout, orphans, resets.
//
//   kSynSent --SYN/ACK--> kEstablished <--ACK-- kSynReceived
//       \__________________ reset, timeout, close _________________\--> kClosed
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "env/sim/byte_queue.h"
#include "env/sim/core.h"
#include "env/sim/packet.h"

namespace kvmend::env::sim {

class SimHost;

struct EndpointOptions {
  std::size_t send_buffer = 0;
  std::size_t receive_buffer = 0;
  Duration user_timeout{};
};

/// Single-threaded.
class Endpoint : public std::enable_shared_from_this<Endpoint> {
 public:
  enum class State : std::uint8_t { kSynSent, kSynReceived, kEstablished, kClosed };

  Endpoint(SimCore& core, SimHost& host, Address local, Address remote, State state,
           const EndpointOptions& options);

  // The application's side.

  void start_connecting();
  /// Called after every change that may make the endpoint ready for something.
  void set_observer(std::function<void()> observer) { observer_ = std::move(observer); }
  [[nodiscard]] std::size_t readable_bytes() const { return in_.size(); }
  [[nodiscard]] std::size_t writable_bytes() const;
  [[nodiscard]] bool ended() const { return fin_received_; }
  /// The errno that broke it; 0 while it stands.
  [[nodiscard]] int error() const { return error_; }
  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] std::size_t unacknowledged_bytes() const { return out_.size(); }
  [[nodiscard]] Bytes peek(std::size_t offset, std::size_t length) const {
    return in_.peek(offset, length);
  }
  void consume(std::size_t length);
  /// At most `writable_bytes()`; sent by `push()`.
  void write(Bytes bytes);
  void push() { pump(); }
  /// The application is done: with a reset, or orderly. It hears nothing more.
  void close(bool reset);
  void set_options(const EndpointOptions& options) { options_ = options; }

  // The network's side.

  void receive(const Packet& packet);
  /// Breaks it off without a word to the other side.
  void fail(int sys_errno);
  void send_syn_ack();
  [[nodiscard]] const Address& local() const { return local_; }
  [[nodiscard]] const Address& remote() const { return remote_; }

 private:
  [[nodiscard]] std::uint64_t end() const { return first_ + out_.size(); }
  [[nodiscard]] std::uint64_t edge() const;
  [[nodiscard]] bool waits_for_peer() const;
  void receive_ack(const Packet& packet);
  void receive_payload(const Packet& packet);
  void pump();
  void send(Packet packet);
  void send_ack(bool probe = false);
  void send_reset();
  void arm_timer();
  void stop_timer();
  void on_timer();
  void retransmit();
  void notify();
  void vanish();

  SimCore& core_;
  SimHost& host_;
  const Address local_;
  const Address remote_;
  State state_;
  EndpointOptions options_;
  std::function<void()> observer_;
  int error_ = 0;
  bool closing_ = false;  // the application has closed it in order
  Time not_before_{};     // arrival of our last packet

  // Sending: out_ holds [first_, end()); next_ is sent next; a FIN counts as byte end().
  ByteQueue out_;
  std::uint64_t first_ = 0;
  std::uint64_t next_ = 0;
  std::uint64_t peer_edge_ = 0;
  bool fin_acked_ = false;
  Duration timeout_{};
  int retries_ = 0;
  Time stuck_since_{};  // when what is outstanding last made progress
  EventQueue::Key timer_ = EventQueue::kNone;

  // Receiving.
  ByteQueue in_;
  std::uint64_t expected_ = 0;
  std::uint64_t advertised_ = 0;  // highest edge told to the peer
  bool fin_received_ = false;
};

}  // namespace kvmend::env::sim
