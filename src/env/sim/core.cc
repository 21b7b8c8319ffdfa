#include "env/sim/core.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace kvmend::env::sim {
namespace {

std::uint64_t mix(std::uint64_t h, std::uint64_t word) {
  h = (h ^ word) * 0xff51afd7ed558ccdULL;
  return h ^ (h >> 32);
}

}  // namespace

std::uint64_t SimRandom::next() {
  state_ += 0x9e3779b97f4a7c15ULL;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

bool SimRandom::chance(double probability) {
  if (probability <= 0) return false;
  constexpr double kTwoTo53 = 9007199254740992.0;
  return static_cast<double>(next() >> 11) / kTwoTo53 < probability;
}

std::size_t SimRandom::cut(std::size_t n, double probability) {
  if (n <= 1 || !chance(probability)) return n;
  constexpr std::size_t kTiny = 16;
  return 1 + below(chance(0.25) ? std::min(n, kTiny) : n);
}

EventQueue::Key EventQueue::add(Time when, Task task) {
  const Key key{when, sequence_++};
  events_.emplace(key, std::move(task));
  return key;
}

std::pair<Time, Task> EventQueue::pop() {
  KVM_CHECK(!events_.empty());
  auto node = events_.extract(events_.begin());
  return {node.key().first, std::move(node.mapped())};
}

void Trace::note(Time at, const char* what, std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  value_ = mix(value_, static_cast<std::uint64_t>(at.time_since_epoch().count()));
  value_ = mix(
      mix(mix(mix(value_, hash(Bytes(reinterpret_cast<const std::byte*>(what), std::strlen(what)))),
              a),
          b),
      c);
  if (sink_)
    sink_(fmt::format("{:.6f} {} {:x} {} {}", to_seconds(at.time_since_epoch()), what, a, b, c));
}

std::uint64_t Trace::hash(Bytes bytes) {
  std::uint64_t h = bytes.size();
  std::size_t i = 0;
  for (; i + sizeof h <= bytes.size(); i += sizeof h) h = mix(h, load_le<std::uint64_t>(&bytes[i]));
  for (; i < bytes.size(); ++i) h = mix(h, static_cast<std::uint64_t>(bytes[i]));
  return h;
}

std::uint64_t Trace::hash(const std::string& text) {
  return hash(Bytes(reinterpret_cast<const std::byte*>(text.data()), text.size()));
}

}  // namespace kvmend::env::sim
