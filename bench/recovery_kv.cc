// Rooms without pause between decode engines that are killed and one prefill engine. Both sides
// map a board (a file): decode says there which room is next and how each one ended, so that
// nothing is lost when it is killed.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "kvmend/engine.h"
#include "kvmend/kv.h"
#include "recovery_common.h"

namespace kvmend::bench {
namespace {

constexpr std::uint32_t kSetsPerLife = 6;      // page sets that one life of decode uses
constexpr std::uint32_t kEntries = 1U << 15U;  // per engine
constexpr double kCanaryHold = 0.15;           // seconds an aborted room's pages are watched

/// One room that decode saw end. bench/recovery.py reads it.
struct Entry {
  std::uint64_t room;
  double started;
  double done;
  std::uint32_t status;
  std::uint32_t code;  ///< of the failure
};

/// One engine's part of the board.
struct Place {
  std::atomic<std::uint64_t> room;  ///< to be filled now
  std::atomic<std::uint64_t> entries;
  std::atomic<std::uint64_t> stale_bytes;
  std::atomic<std::uint64_t> aborts_watched;
  std::atomic<std::uint64_t> prefill_failed;
  std::atomic<std::uint64_t> reserved[3];
  Entry log[kEntries];
};

Place* map_board(const RecoverySettings& s, std::size_t engines) {
  const int fd = open(s.board.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const std::size_t bytes = engines * sizeof(Place);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) give_up("can't map " + s.board);
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) give_up("can't map " + s.board);
  close(fd);
  return static_cast<Place*>(at);
}

KvLayout layout(const CanaryPool& pool, const RecoverySettings& s) {
  KvLayout layout;
  layout.page_tokens = 16;
  layout.kv_heads = 1;
  layout.head_dim = 16;
  KvComponent kv;
  kv.pool = KvPool::kKv;
  kv.dtype = "bfloat16";
  kv.items = pool.size() / s.page_bytes;
  kv.buffers.push_back({pool.data(), s.page_bytes});
  layout.components.push_back(std::move(kv));
  return layout;
}

std::unique_ptr<Engine> start_engine(const RecoverySettings& s, std::uint16_t port) {
  EngineOptions options;
  options.host = s.host;
  options.port = port;
  options.insecure = true;
  if (!s.local) options.local = LocalMode::kOff;
  auto engine = Engine::create(options);
  if (!engine) give_up(engine.error().to_string());
  return std::move(*engine);
}

/// One decode engine. Only its own thread of control; `step` never blocks.
class Decode {
 public:
  Decode(const RecoverySettings& s, std::size_t index, Place& place)
      : settings_(s),
        place_(place),
        pool_(s.base == 0 ? 0 : s.base + index * pool_bytes(s), pool_bytes(s)),
        engine_(start_engine(s, s.ports[index])),
        next_room_((std::uint64_t{s.generation} + 1) << 40U | std::uint64_t{index} << 24U),
        random_(static_cast<std::uint32_t>(next_room_ >> 24U)) {
    KvOptions options;
    options.room_deadline = std::chrono::nanoseconds(static_cast<std::int64_t>(s.deadline_s * 1e9));
    auto manager = KvManager::create(*engine_, KvRole::kDecode, layout(pool_, s), options);
    if (!manager) give_up(manager.error().to_string());
    manager_ = std::move(*manager);
  }

  [[nodiscard]] std::string session() const { return engine_->session_id(); }

  void step(double now) {
    watch_aborted(now);
    if (!room_) {
      if (now >= due_) begin(now);
      return;
    }
    if (abort_at_ > 0 && now >= abort_at_) {
      room_->abort("the benchmark aborts some");
      aborted_ = true;
      abort_at_ = 0;
    }
    const KvStatus status = room_->poll();
    if (is_terminal(status)) end(status, now);
  }

  /// Bytes of the sets that this life never offered to anybody, and that changed nevertheless.
  [[nodiscard]] std::uint64_t changed_elsewhere() const {
    const std::size_t half = pool_.size() / 2;
    return pool_.changed(settings_.generation % 2 == 0 ? half : 0, half);
  }

 private:
  struct Watched {
    std::uint32_t set;
    double until;
  };

  static std::size_t pool_bytes(const RecoverySettings& s) {
    return std::size_t{2} * kSetsPerLife * s.room_pages * s.page_bytes;
  }

  void begin(double now) {
    std::uint32_t set = 0;
    while (std::ranges::any_of(watched_, [&](const Watched& w) { return w.set == set; })) ++set;
    if (set == kSetsPerLife) return;  // all are watched
    set_ = settings_.generation % 2 * kSetsPerLife + set;
    std::vector<std::uint32_t> pages(settings_.room_pages);
    std::iota(pages.begin(), pages.end(), set_ * settings_.room_pages);
    const RoomId room(next_room_++);
    started_ = now;
    aborted_ = false;
    abort_at_ = random_() % 100 < settings_.abort_percent
                    ? now + 1e-6 * static_cast<double>(random_() % 2000)
                    : 0;
    place_.room.store(room.value);
    room_.emplace(*manager_, settings_.prefill, room);
    room_->init();
    const Status status = room_->send_metadata(pages);
    if (!status.is_ok()) std::fprintf(stderr, "metadata: %s\n", status.to_string().c_str());
  }

  void end(KvStatus status, double now) {
    const Code code = room_->failure().code();
    if (code == Code::kOk || !aborted_) {
      const std::uint64_t at = place_.entries.load();
      place_.log[at % kEntries] = {next_room_ - 1, started_, now,
                                   static_cast<std::uint32_t>(status),
                                   static_cast<std::uint32_t>(code)};
      place_.entries.store(at + 1);
    }
    if (status == KvStatus::kFailed) {
      // Nobody may write these pages any more.
      pool_.fill(set_bytes() * set_, set_bytes());
      watched_.push_back({set_ % kSetsPerLife, now + kCanaryHold});
    }
    room_.reset();
    due_ = now + settings_.period_ms * 1e-3;
  }

  void watch_aborted(double now) {
    std::erase_if(watched_, [&](const Watched& w) {
      if (now < w.until) return false;
      const std::uint32_t set = settings_.generation % 2 * kSetsPerLife + w.set;
      place_.stale_bytes.fetch_add(pool_.changed(set_bytes() * set, set_bytes()));
      place_.aborts_watched.fetch_add(1);
      return true;
    });
  }

  [[nodiscard]] std::size_t set_bytes() const {
    return std::size_t{settings_.room_pages} * settings_.page_bytes;
  }

  const RecoverySettings& settings_;
  Place& place_;
  CanaryPool pool_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<KvManager> manager_;
  std::optional<KvReceiver> room_;
  std::uint64_t next_room_;
  std::uint32_t set_ = 0;
  double started_ = 0;
  double due_ = 0;
  double abort_at_ = 0;
  bool aborted_ = false;
  std::vector<Watched> watched_;
  std::minstd_rand random_;
};

}  // namespace

int run_decode(const RecoverySettings& s) {
  Place* board = map_board(s, s.ports.size());
  std::vector<std::unique_ptr<Decode>> decodes;
  nlohmann::json list = nlohmann::json::array();
  for (std::size_t i = 0; i < s.ports.size(); ++i) {
    decodes.push_back(std::make_unique<Decode>(s, i, board[i]));
    list.push_back({{"session", decodes.back()->session()}, {"listens", monotonic_seconds()}});
  }
  say({{"event", "ready"}, {"t", monotonic_seconds()}, {"engines", list}});
  std::atomic<bool> asked{false};
  std::atomic<bool> over{false};
  std::jthread commands([&] {
    std::string line;
    while (std::getline(std::cin, line))
      if (line == "stale") asked.store(true);
    over.store(true);
  });
  while (!over.load()) {
    const double now = monotonic_seconds();
    for (const auto& decode : decodes) decode->step(now);
    if (asked.exchange(false)) {
      std::uint64_t changed = 0;
      for (const auto& decode : decodes) changed += decode->changed_elsewhere();
      say({{"event", "stale"}, {"bytes", changed}});
    }
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  return 0;
}

int run_prefill(const RecoverySettings& s) {
  Place* board = map_board(s, s.engines);
  // Every room reads the same pages, but as many are there as the rooms of a fleet would have: a
  // share of the pool may wait for a dead decode.
  CanaryPool pool(0, std::size_t{s.room_pages} * s.page_bytes * 8 * s.engines);
  const std::unique_ptr<Engine> engine = start_engine(s, 0);
  KvOptions options;
  options.room_deadline = std::chrono::nanoseconds(static_cast<std::int64_t>(s.deadline_s * 1e9));
  auto manager = KvManager::create(*engine, KvRole::kPrefill, layout(pool, s), options);
  if (!manager) give_up(manager.error().to_string());
  std::vector<std::uint32_t> pages(s.room_pages);
  std::iota(pages.begin(), pages.end(), 0U);
  struct Sending {
    std::size_t engine;
    std::unique_ptr<KvSender> sender;
  };
  std::vector<Sending> sending;
  std::vector<std::uint64_t> last(s.engines, 0);
  say({{"event", "ready"}, {"t", monotonic_seconds()}, {"session", engine->session_id()}});
  std::atomic<bool> over{false};
  std::jthread commands([&] {
    std::string line;
    while (std::getline(std::cin, line)) {
    }
    over.store(true);
  });
  while (!over.load()) {
    for (std::size_t i = 0; i < s.engines; ++i) {
      const std::uint64_t room = board[i].room.load();
      if (room == last[i]) continue;
      last[i] = room;
      auto sender = std::make_unique<KvSender>(**manager, RoomId(room));
      Status status = sender->init(s.room_pages);
      if (status.is_ok()) status = sender->send(pages);
      if (!status.is_ok()) std::fprintf(stderr, "send: %s\n", status.to_string().c_str());
      sending.push_back({i, std::move(sender)});
    }
    std::erase_if(sending, [&](const Sending& one) {
      const KvStatus status = one.sender->poll();
      if (status == KvStatus::kFailed) board[one.engine].prefill_failed.fetch_add(1);
      return is_terminal(status);
    });
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  return 0;
}

}  // namespace kvmend::bench
