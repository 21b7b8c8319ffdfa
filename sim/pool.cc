#include "sim/pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "sim/arena.h"
#include "sim/content.h"

namespace kvmend::sim {
namespace {

constexpr std::size_t kBlock = 512;  // compared at once
constexpr std::size_t kRemembered = 64;

bool has(const Permit& permit, std::size_t at) {
  return std::ranges::any_of(permit.segments, [&](const Segment& segment) {
    return at >= segment.begin && at < segment.begin + segment.length;
  });
}

}  // namespace

Pool::Pool(std::string name, std::size_t bytes, std::function<Time()> clock, Verdict& verdict)
    : name_(std::move(name)),
      memory_(Arena::of_this_thread().take(bytes), bytes),
      before_(bytes),
      clock_(std::move(clock)),
      verdict_(verdict) {}

bool Pool::contains(const void* at) const {
  const auto* byte = static_cast<const std::byte*>(at);
  return byte >= memory_.data() && byte < memory_.data() + memory_.size();
}

PermitId Pool::allow(Permit permit) {
  look();
  permits_.push_back({++last_id_, std::move(permit)});
  return last_id_;
}

void Pool::end(PermitId id) {
  look();
  const auto at = std::ranges::find(permits_, id, &Entry::id);
  if (at == permits_.end()) return;
  ended_.emplace_front(clock_(), std::move(at->permit));
  if (ended_.size() > kRemembered) ended_.pop_back();
  permits_.erase(at);
}

std::string Pool::history(Use use, std::size_t at) const {
  std::string text;
  for (const Entry& entry : permits_)
    if (entry.permit.use == use && has(entry.permit, at))
      text += fmt::format("; {} may", entry.permit.what);
  for (const auto& [when, permit] : ended_)
    if (permit.use == use && has(permit, at))
      text +=
          fmt::format("; {} might until {:.6f} s before", permit.what, to_seconds(clock_() - when));
  return text;
}

bool Pool::is_live(PermitId id) const {
  const Time now = clock_();
  return std::ranges::any_of(
      permits_, [&](const Entry& entry) { return entry.id == id && entry.permit.expires > now; });
}

void Pool::write(std::size_t begin, std::size_t length, std::uint64_t seed) {
  look();
  fill(memory_.subspan(begin, length), seed);
  std::memcpy(before_.data() + begin, memory_.data() + begin, length);
}

bool Pool::matches(const Segment& segment) const {
  for (std::size_t i = 0; i < segment.length; ++i)
    if (memory_[segment.begin + i] != pattern(segment.seed, i)) return false;
  return true;
}

void Pool::look() {
  dirty_ = false;
  for (std::size_t block = 0; block < memory_.size(); block += kBlock) {
    const std::size_t end = std::min(block + kBlock, memory_.size());
    if (std::memcmp(memory_.data() + block, before_.data() + block, end - block) == 0) continue;
    for (std::size_t at = block; at < end; ++at)
      if (memory_[at] != before_[at]) judge_change(at);
    std::memcpy(before_.data() + block, memory_.data() + block, end - block);
  }
}

void Pool::judge_change(std::size_t at) {
  const Time now = clock_();
  const Permit* near = nullptr;
  for (const Entry& entry : permits_) {
    const Permit& permit = entry.permit;
    if (permit.use != Use::kLand || permit.expires <= now) continue;
    for (const Segment& segment : permit.segments) {
      if (at < segment.begin || at >= segment.begin + segment.length) continue;
      const std::byte value = memory_[at];
      if (permit.any_content || value == std::byte{0} ||
          value == pattern(segment.seed, at - segment.begin))
        return;
      near = &permit;
    }
  }
  verdict_.report(1, near == nullptr ? fmt::format("{}: byte {} changed without a live grant{}",
                                                   name_, at, history(Use::kLand, at))
                                     : fmt::format("{}: foreign bytes at {} in the pages of {}",
                                                   name_, at, near->what));
}

bool Pool::covered(Use use, std::size_t& at, std::size_t end, Time now) const {
  for (const Entry& entry : permits_) {
    if (entry.permit.use != use || entry.permit.expires <= now) continue;
    for (const Segment& segment : entry.permit.segments)
      if (at >= segment.begin && at < segment.begin + segment.length) {
        at = std::min(end, segment.begin + segment.length);
        return true;
      }
  }
  return false;
}

void Pool::need(Use use, std::size_t begin, std::size_t length, int rule, const char* doing) {
  const Time now = clock_();
  const std::size_t end = begin + length;
  for (std::size_t at = begin; at < end;)
    if (!covered(use, at, end, now))
      return verdict_.report(rule, fmt::format("{}: {} {} bytes at {}, byte {} isn't allowed{}",
                                               name_, doing, length, begin, at, history(use, at)));
}

void Pool::on_received_into(const void* at, std::size_t bytes) {
  if (contains(at)) need(Use::kLand, offset_of(at), bytes, 1, "received into");
}

void Pool::on_sent_from(const void* at, std::size_t bytes) {
  if (contains(at)) need(Use::kSend, offset_of(at), bytes, 7, "sent from");
}

}  // namespace kvmend::sim
