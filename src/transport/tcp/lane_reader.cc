#include "transport/tcp/lane_reader.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/check.h"
#include "base/config.h"
#include "env/errors.h"
#include "memory/guarded.h"

namespace kvmend::transport::tcp {
namespace {

constexpr std::size_t kIovEntries = 1000;
constexpr std::size_t kBigBodyStep = 65'536;

// Discarded payload lands here; nobody reads it. Shared by all lanes: contents are irrelevant.
std::byte* discard_buffer() {
  alignas(64) thread_local static std::byte buffer[65'536];
  return buffer;
}
constexpr std::size_t kDiscardBytes = 65'536;

// Staged payload on its way to its places: used within one read, so all lanes of a loop share it.
std::byte* stage_buffer() {
  thread_local const auto buffer =
      std::make_unique_for_overwrite<std::byte[]>(config::kStageReceiveBytes);
  return buffer.get();
}

}  // namespace

LaneReader::LaneReader(FrameSink& sink, std::uint32_t max_first_body, SliceCopier& copier)
    : sink_(sink),
      copier_(copier),
      staging_(config::kReadAheadBytes),
      max_first_body_(max_first_body) {}

void LaneReader::discard_rest() {
  discarding_ = true;
  places_.clear();
  place_ = 0;
}

std::size_t LaneReader::fill_iov() {
  iov_.clear();
  std::size_t wanted = 0;
  if (payload_left_ > 0) {
    if (!discarding_ && !sink_.payload_still_allowed()) discard_rest();
    if (discarding_) {
      std::uint64_t left = payload_left_;
      while (left > 0 && iov_.size() < 16) {
        const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(left, kDiscardBytes));
        iov_.push_back({discard_buffer(), n});
        left -= n;
        wanted += n;
      }
      if (left > 0) return wanted;  // no read-ahead before the payload's end
    } else if (staging_payload_) {
      const auto n = static_cast<std::size_t>(
          std::min<std::uint64_t>(payload_left_, config::kStageReceiveBytes));
      iov_.push_back({stage_buffer(), n});
      wanted += n;
      if (n < payload_left_) return wanted;
    } else {
      std::size_t index = place_;
      while (index < places_.size() && iov_.size() < kIovEntries) {
        iov_.push_back(places_[index]);
        wanted += places_[index].iov_len;
        ++index;
      }
      if (index < places_.size()) return wanted;
    }
  } else if (have_header_ && !big_body_.empty()) {
    // The rest of a large body, grown as it arrives so that a peer can't make us reserve it.
    const std::size_t total = wire::kHeaderBytes + header_.body_bytes;
    const std::size_t have = end_;
    const std::size_t step = std::min(total - have, kBigBodyStep);
    if (big_body_.size() < have + step) big_body_.resize(have + step);
    iov_.push_back({big_body_.data() + have, step});
    return step;
  }
  // Read ahead: the next header and usually its slices come with the same system call.
  if (begin_ > 0) {
    std::memmove(staging_.data(), staging_.data() + begin_, buffered());
    end_ -= begin_;
    begin_ = 0;
  }
  const std::size_t needed =
      have_header_ ? wire::kHeaderBytes + header_.body_bytes : config::kReadAheadBytes;
  if (staging_.size() < needed) staging_.resize(needed);
  const std::size_t room = std::max(needed, config::kReadAheadBytes) - end_;
  iov_.push_back({staging_.data() + end_, std::min(room, staging_.size() - end_)});
  return wanted + iov_.back().iov_len;
}

void LaneReader::advance_payload(std::size_t bytes) {
  payload_left_ -= bytes;
  if (discarding_) {
    sink_.on_payload_discarded(bytes);
    return;
  }
  sink_.on_payload_bytes(next_places(bytes), bytes);
}

// Where the next `bytes` of the payload belong; moves on behind them.
std::span<const iovec> LaneReader::next_places(std::size_t bytes) {
  landed_.clear();
  while (bytes > 0) {
    iovec& place = places_[place_];
    const std::size_t n = std::min(bytes, place.iov_len);
    landed_.push_back({place.iov_base, n});
    place.iov_base = static_cast<std::byte*>(place.iov_base) + n;
    place.iov_len -= n;
    if (place.iov_len == 0) ++place_;
    bytes -= n;
  }
  return landed_;
}

// From the shared buffer to the places; the grant is asked once more, at this moment.
void LaneReader::scatter(std::size_t bytes) {
  if (!sink_.payload_still_allowed()) {
    discard_rest();
    return advance_payload(bytes);
  }
  const std::span<const iovec> places = next_places(bytes);
  if (!copier_.scatter({stage_buffer(), bytes}, places)) {
    sink_.on_payload_fault();
    discard_rest();
    return advance_payload(bytes);
  }
  payload_left_ -= bytes;
  sink_.on_payload_bytes(places, bytes);
}

LaneReader::Outcome LaneReader::pump(env::Stream& stream, std::size_t budget) {
  Outcome outcome;
  while (outcome.bytes < budget) {
    if (paused_ && payload_left_ == 0) return outcome;
    const std::uint64_t payload_before = payload_left_;
    const std::size_t wanted = fill_iov();
    const env::IoResult io = stream.readv(iov_);
    switch (io.kind) {
      case env::IoResult::Kind::kAgain:
        return outcome;
      case env::IoResult::Kind::kEof:
        outcome.eof = true;
        return outcome;
      case env::IoResult::Kind::kError:
        outcome.error = env::status_of_errno(
            io.sys_errno, "connection to " + stream.peer().to_string() + " broke");
        return outcome;
      case env::IoResult::Kind::kFault:
        KVM_CHECK(payload_left_ > 0 && !discarding_, "fault outside of a payload");
        sink_.on_payload_fault();
        discard_rest();
        continue;
      case env::IoResult::Kind::kOk:
        break;
    }
    outcome.bytes += io.bytes;
    std::size_t rest = io.bytes;
    if (payload_before > 0) {
      const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(payload_before, rest));
      if (staging_payload_ && !discarding_) {
        scatter(n);
      } else {
        advance_payload(n);
      }
      rest -= n;
      if (payload_left_ == 0) {
        sink_.on_payload_end();
        if (sink_.closed()) return outcome;
      }
    }
    end_ += rest;
    KVM_CHECK(end_ <= (big_body_.empty() ? staging_ : big_body_).size(), "staging overrun");
    outcome.error = parse();
    if (!outcome.error.is_ok() || sink_.closed()) return outcome;
    if (io.bytes < wanted) return outcome;  // drained: readiness will tell of more
  }
  outcome.budget_used = true;
  return outcome;
}

LaneReader::Outcome LaneReader::drain_buffered() {
  Outcome outcome;
  outcome.error = parse();
  return outcome;
}

void LaneReader::take_payload_from_buffer() {
  const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(payload_left_, buffered()));
  const Bytes bytes = Bytes(staging_).subspan(begin_, n);
  begin_ += n;
  if (!discarding_) {
    const std::span<const iovec> places = next_places(n);
    if (memory::guarded_store(places, bytes)) {
      payload_left_ -= n;
      sink_.on_payload_bytes(places, n);
      return;
    }
    sink_.on_payload_fault();
    discard_rest();
  }
  advance_payload(n);
}

Status LaneReader::start_frame(Bytes header_bytes, Bytes body) {
  if (!wire::check_matches(header_bytes, body))
    return {Code::kProtocolError, Origin::kLink, "a frame's check doesn't match its header"};
  places_.clear();
  place_ = 0;
  Status status = sink_.on_frame(header_, body, places_);
  if (!status.is_ok() || sink_.closed()) return status;
  join_parts(places_);
  payload_left_ = header_.payload_bytes;
  discarding_ = places_.empty();
  staging_payload_ =
      sink_.places_stay() && is_worth_staging(payload_left_, places_.size(), stage_below_);
  return Status::ok();
}

Status LaneReader::parse() {
  while (!sink_.closed()) {
    if (payload_left_ > 0) {
      if (buffered() == 0 || !big_body_.empty()) return Status::ok();
      take_payload_from_buffer();
      if (payload_left_ > 0) return Status::ok();
      sink_.on_payload_end();
      continue;
    }
    if (paused_) return Status::ok();
    if (!have_header_) {
      // Another protocol's first message may be shorter than a header: it mustn't wait for one.
      if (!seen_first_ && buffered() >= sizeof wire::kMagic)
        if (Status alien = wire::check_magic(Bytes(staging_).subspan(begin_, buffered()));
            !alien.is_ok())
          return alien;
      if (buffered() < wire::kHeaderBytes) return Status::ok();
      const auto header = wire::parse_header(Bytes(staging_).subspan(begin_, wire::kHeaderBytes));
      if (!header) return header.error();
      header_ = *header;
      if (!seen_first_ && header_.body_bytes > max_first_body_)
        return {Code::kProtocolError, Origin::kPeer, "the first frame is too long for a hello"};
      have_header_ = true;
      if (wire::kHeaderBytes + header_.body_bytes > config::kStagingBytes) {
        big_body_.assign(staging_.begin() + static_cast<std::ptrdiff_t>(begin_),
                         staging_.begin() + static_cast<std::ptrdiff_t>(end_));
        begin_ = 0;
        end_ = big_body_.size();
      }
    }
    const std::size_t whole = wire::kHeaderBytes + header_.body_bytes;
    if (buffered() < whole) return Status::ok();
    seen_first_ = true;
    have_header_ = false;
    if (!big_body_.empty()) {
      const std::vector<std::byte> bytes = std::move(big_body_);
      big_body_.clear();
      begin_ = end_ = 0;
      const Bytes frame(bytes);
      const Status status = start_frame(frame.first(wire::kHeaderBytes),
                                        frame.subspan(wire::kHeaderBytes, header_.body_bytes));
      if (!status.is_ok()) return status;
    } else {
      const Bytes frame = Bytes(staging_).subspan(begin_, whole);
      begin_ += whole;
      const Status status =
          start_frame(frame.first(wire::kHeaderBytes), frame.subspan(wire::kHeaderBytes));
      if (!status.is_ok()) return status;
    }
  }
  return Status::ok();
}

}  // namespace kvmend::transport::tcp
