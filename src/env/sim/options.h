// What a simulated world is like, and what may go wrong in it.
#pragma once

#include <chrono>
#include <cstddef>

#include "base/time.h"

namespace kvmend::env::sim {

/// Properties of the whole world. Buffers are those of a stream that asks for none.
struct SimOptions {
  Duration delay = std::chrono::microseconds(50);   ///< one way, between two hosts
  Duration jitter = std::chrono::microseconds(20);  ///< up to so much more, by seed
  Duration loopback_delay = std::chrono::microseconds(5);
  double bytes_per_second = 0;  ///< of each direction of each pair of hosts; 0: unlimited
  std::size_t send_buffer_bytes = 256U << 10;
  std::size_t receive_buffer_bytes = 256U << 10;
  std::size_t max_segment_bytes = 64U << 10;
  std::size_t backlog = 128;           ///< connections that wait for accept, per listener
  double short_io_probability = 0.25;  ///< of a read, write or segment being cut short
  Duration turn_time = std::chrono::microseconds(1);  ///< between two turns that have I/O to do
  Duration gap_threshold = std::chrono::milliseconds(500);
};

/// What happens to packets from one host to another, on top of `SimOptions`. Connections in
/// progress are hit as well as new ones. A lost packet is sent again with a growing timeout, as TCP
/// does it.
struct Fault {
  Duration extra_delay{};
  Duration extra_jitter{};
  double bytes_per_second = 0;       ///< 0: as the world
  double drop_probability = 0;       ///< of any packet; 1 makes a one-way partition
  double drop_syn_probability = 0;   ///< of packets that open a connection; 1: a silent firewall
  std::size_t drop_larger_than = 0;  ///< segments with more payload vanish (0: none): an MTU hole
  double corrupt_probability = 0;    ///< of one bit of a segment's payload being flipped, unnoticed
  bool refuse_connections = false;   ///< answers every attempt with a reset
};

}  // namespace kvmend::env::sim
