#include "kv.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "engine.h"
#include "errors.h"
#include "gil.h"
#include "kv_layout.h"
#include "kvmend/foreign.h"
#include "kvmend/kv.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvmend::python {
namespace {

using PageArray = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/// Any of the KV objects, with the rule of forked children (see EngineHolder).
template <class T>
class Holder {
 public:
  explicit Holder(std::unique_ptr<T> object) : object_(std::move(object)) {}
  ~Holder() {
    if (getpid() == pid_) {
      unlocked([this] { object_.reset(); });
    } else {
      static_cast<void>(object_.release());
    }
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  [[nodiscard]] T& get() const {
    if (getpid() != pid_)
      throw StatusError({Code::kInvalidArgument, Origin::kCaller,
                         "a manager, sender or receiver of another process can't be used in its "
                         "forked child: make an engine there"});
    return *object_;
  }

 private:
  std::unique_ptr<T> object_;
  pid_t pid_ = getpid();
};

using Manager = Holder<KvManager>;
using Sender = Holder<KvSender>;
using Receiver = Holder<KvReceiver>;
using Source = std::tuple<std::string, std::uint32_t, bool>;  // a KvSource

std::span<const std::uint32_t> span_of(const PageArray& pages) {
  return {pages.data(), pages.size()};
}

// --------------------------------------------------- what senders and receivers have in common

// A wait that ends early at a signal; nothing else ends it but the status or the time.
template <class T>
int wait_for(const Holder<T>& holder, int status, std::optional<double> timeout) {
  T& room = holder.get();
  const auto wanted = static_cast<KvStatus>(status);
  const auto reached = [&](KvStatus now) { return now >= wanted || is_terminal(now); };
  interruptible_wait(to_duration(timeout), [&](std::chrono::nanoseconds step) {
    return reached(room.wait_for(wanted, step));
  });
  return static_cast<int>(room.poll());
}

template <class T>
void raise_failure(const Holder<T>& holder) {
  check(holder.get().failure());
}

template <class T, class Class>
void bind_room(Class& cls) {
  cls.def("poll", [](const Holder<T>& h) { return static_cast<int>(h.get().poll()); })
      .def("wait_for", &wait_for<T>, "status"_a, "timeout"_a.none())
      .def(
          "abort",
          [](const Holder<T>& h, const std::string& reason) {
            T& room = h.get();
            unlocked([&] { room.abort(reason); });
          },
          "reason"_a)
      .def("clear",
           [](const Holder<T>& h) {
             T& room = h.get();
             unlocked([&] { room.clear(); });
           })
      .def("raise_failure", &raise_failure<T>)
      .def("pages_released", [](const Holder<T>& h) { return h.get().pages_released(); })
      .def("metrics", [](const Holder<T>& h) { return h.get().metrics(); })
      .def_prop_ro("room", [](const Holder<T>& h) { return h.get().room().value; });
}

// ---------------------------------------------------------------------------------------- classes

void bind_stats(nb::module_& module) {
  const auto seconds = [](std::chrono::nanoseconds d) {
    return std::chrono::duration<double>(d).count();
  };
  nb::class_<KvRoomMetrics>(module, "RoomMetrics", "What a room cost until now, or to its end.")
      .def_ro("bytes", &KvRoomMetrics::bytes,
              "sender: acknowledged; receiver: landed, counted at the end")
      .def_ro("chunks", &KvRoomMetrics::chunks, "sender: calls of send()")
      .def_ro("retries", &KvRoomMetrics::retries, "sender: frames sent again")
      .def_prop_ro("bootstrapping_seconds",
                   [=](const KvRoomMetrics& m) { return seconds(m.bootstrapping); })
      .def_prop_ro("waiting_seconds", [=](const KvRoomMetrics& m) { return seconds(m.waiting); })
      .def_prop_ro("transferring_seconds",
                   [=](const KvRoomMetrics& m) { return seconds(m.transferring); })
      .def_ro("reason", &KvRoomMetrics::reason, "of a failure, else empty");
  nb::class_<KvManagerStats>(module, "ManagerStats", "A manager's rooms: now, and in total.")
      .def_ro("rooms", &KvManagerStats::rooms, "live now")
      .def_ro("announced", &KvManagerStats::announced, "prefill: unclaimed now")
      .def_ro("announced_bytes", &KvManagerStats::announced_bytes)
      .def_ro("peers", &KvManagerStats::peers, "registered counterparts now")
      .def_ro("transfers", &KvManagerStats::transfers, "in flight now")
      .def_ro("rooms_succeeded", &KvManagerStats::rooms_succeeded)
      .def_ro("rooms_failed", &KvManagerStats::rooms_failed)
      .def_ro("rooms_refused", &KvManagerStats::rooms_refused)
      .def_ro("announced_refused", &KvManagerStats::announced_refused)
      .def_ro("announced_expired", &KvManagerStats::announced_expired)
      .def_ro("registrations_refused", &KvManagerStats::registrations_refused)
      .def_ro("unknown_messages", &KvManagerStats::unknown_messages)
      .def_ro("malformed_messages", &KvManagerStats::malformed_messages)
      .def_ro("late_messages", &KvManagerStats::late_messages)
      .def_ro("messages_repeated", &KvManagerStats::messages_repeated)
      .def_ro("bytes", &KvManagerStats::bytes, "of rooms that succeeded")
      .def_ro("quarantined_rooms", &KvManagerStats::quarantined_rooms,
              "over, and their pages wait for a proof, now")
      .def_ro("quarantined_pages", &KvManagerStats::quarantined_pages, "of the KV pool, now")
      .def_ro("quarantine_refused", &KvManagerStats::quarantine_refused,
              "rooms, since too many pages waited")
      .def_ro("quarantine_released", &KvManagerStats::quarantine_released, "rooms whose proof came")
      .def_ro("quarantine_unproven", &KvManagerStats::quarantine_unproven,
              "rooms whose pages were given back without one");
}

void bind_manager(nb::module_& module) {
  nb::class_<Manager>(module, "Manager", "kvmend.KVManager's inside; no public API.")
      .def(
          "__init__",
          [](Manager* self, const EngineHolder& engine, bool decode, nb::handle layout,
             double room_deadline, double announced_ttl, bool checksum,
             double parked_share_per_session, double parked_share, double quarantine_share,
             double quarantine_unproven_after, std::shared_ptr<ForeignCalls> foreign) {
            KvLayout parsed = layout_from(layout);
            const KvOptions options{
                .room_deadline = to_duration(room_deadline),
                .announced_ttl = to_duration(announced_ttl),
                .checksum = checksum,
                .parked_share_per_session = parked_share_per_session,
                .parked_share = parked_share,
                .quarantine_share = quarantine_share,
                .quarantine_unproven_after = to_duration(quarantine_unproven_after)};
            Engine& under = engine.get();
            auto manager = unlocked([&] {
              const KvRole role = decode ? KvRole::kDecode : KvRole::kPrefill;
              if (foreign)
                return unwrap(create_foreign_manager(under, std::move(foreign), role,
                                                     std::move(parsed), options));
              return unwrap(KvManager::create(under, role, std::move(parsed), options));
            });
            new (self) Manager(std::move(manager));
          },
          "engine"_a, "decode"_a, "layout"_a, "room_deadline"_a, "announced_ttl"_a, "checksum"_a,
          "parked_share_per_session"_a, "parked_share"_a, "quarantine_share"_a,
          "quarantine_unproven_after"_a, "foreign"_a.none(), nb::keep_alive<1, 2>())
      .def("stats",
           [](const Manager& h) {
             KvManager& manager = h.get();
             return unlocked([&] { return manager.stats(); });
           })
      .def("teardown", [](const Manager& h) {
        KvManager& manager = h.get();
        unlocked([&] { manager.teardown(); });
      });
}

void bind_sender(nb::module_& module) {
  nb::class_<KvGate>(module, "Gate",
                     "Holds chunks back until their source pages are filled: pass it to "
                     "KVSender.send as `ready`. One gate may hold several chunks.")
      .def(nb::init<>())
      .def("open", &KvGate::open, nb::call_guard<WithoutLock>(),
           "Lets the chunks go. From any thread; calling it again changes nothing.")
      .def_prop_ro("is_open", &KvGate::is_open);
  nb::class_<Sender> cls(module, "Sender", "kvmend.KVSender's inside; no public API.");
  cls.def(
      "__init__",
      [](Sender* self, const Manager& manager, std::uint64_t room,
         const std::string& decode_session) {
        KvManager& under = manager.get();
        new (self) Sender(unlocked(
            [&] { return std::make_unique<KvSender>(under, RoomId(room), decode_session); }));
      },
      "manager"_a, "room"_a, "decode_session"_a, nb::keep_alive<1, 2>());
  cls.def(
      "init",
      [](const Sender& h, std::uint32_t num_pages, std::optional<std::uint32_t> aux_index) {
        KvSender& sender = h.get();
        check(unlocked([&] { return sender.init(num_pages, aux_index); }));
      },
      "num_pages"_a, "aux_index"_a.none());
  cls.def(
      "send",
      [](const Sender& h, const PageArray& pages, const KvStateIndices& states,
         const KvGate* ready) {
        KvSender& sender = h.get();
        check(unlocked([&] { return sender.send(span_of(pages), states, ready); }));
      },
      "pages"_a, "states"_a, "ready"_a.none());
  cls.def_prop_ro("decode_session", [](const Sender& h) { return h.get().decode_session(); });
  cls.def_prop_ro("prefix_tokens", [](const Sender& h) { return h.get().prefix_tokens(); });
  bind_room<KvSender>(cls);
}

void bind_receiver(nb::module_& module) {
  nb::class_<Receiver> cls(module, "Receiver", "kvmend.KVReceiver's inside; no public API.");
  cls.def(
      "__init__",
      [](Receiver* self, const Manager& manager, const std::vector<Source>& sources,
         std::uint64_t room) {
        std::vector<KvSource> all;
        for (const auto& [session, destinations, dummy] : sources)
          all.push_back({session, destinations, dummy});
        KvManager& under = manager.get();
        new (self) Receiver(
            unlocked([&] { return std::make_unique<KvReceiver>(under, all, RoomId(room)); }));
      },
      "manager"_a, "sources"_a, "room"_a, nb::keep_alive<1, 2>());
  cls.def("init", [](const Receiver& h) {
    KvReceiver& receiver = h.get();
    unlocked([&] { receiver.init(); });
  });
  cls.def(
      "send_metadata",
      [](const Receiver& h, const PageArray& pages, std::optional<std::uint32_t> aux_index,
         const KvStateIndices& states, std::uint64_t prefix_tokens, const PageArray& device_pages) {
        KvReceiver& receiver = h.get();
        check(unlocked([&] {
          return receiver.send_metadata(span_of(pages), aux_index, states, prefix_tokens,
                                        span_of(device_pages));
        }));
      },
      "pages"_a, "aux_index"_a.none(), "states"_a, "prefix_tokens"_a, "device_pages"_a);
  cls.def("aux_fields", [](const Receiver& h) { return h.get().aux_fields(); });
  cls.def("abort_acknowledged", [](const Receiver& h) { return h.get().abort_acknowledged(); });
  bind_room<KvReceiver>(cls);
}

}  // namespace

void bind_kv(nb::module_& module) {
  bind_stats(module);
  bind_kv_ranks(module);
  bind_manager(module);
  bind_sender(module);
  bind_receiver(module);
}

}  // namespace kvmend::python
