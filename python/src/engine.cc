#include "engine.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "errors.h"
#include "gil.h"
#include "options.h"
#include "slices.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvmend::python {

EngineHolder::~EngineHolder() {
  if (in_child()) {
    static_cast<void>(engine_.release());
    return;
  }
  unlocked([this] { engine_.reset(); });
}

Engine& EngineHolder::get() const {
  if (in_child())
    throw StatusError({Code::kInvalidArgument, Origin::kCaller,
                       fmt::format("engine {} was made in process {} and can't be used in its "
                                   "forked child {}: make one there",
                                   engine_->session_id(), pid_, getpid())});
  return *engine_;
}

namespace {

using Notes = std::vector<std::pair<nb::bytes, nb::bytes>>;

// Nothing yet: false. Over and well: true. Over and not well: raises.
bool finished(const std::optional<Status>& status) {
  if (status) check(*status);
  return status.has_value();
}

void bind_transfer(nb::module_& module) {
  nb::class_<Transfer>(module, "Transfer",
                       "A submitted batch. Any thread may use it; dropping it does not cancel.")
      .def_prop_ro("id", [](const Transfer& t) { return t.id().value; })
      .def(
          "done", [](const Transfer& t) { return t.poll().has_value(); },
          "Whether it is over, well or not. Never blocks.")
      .def(
          "poll", [](const Transfer& t) { return finished(t.poll()); },
          "False while it runs, True once the bytes are in their place; raises the KvmendError "
          "it ended with. Never blocks.")
      .def(
          "wait",
          [](const Transfer& t, std::optional<double> timeout) {
            return finished(interruptible_wait(
                to_duration(timeout), [&](std::chrono::nanoseconds d) { return t.wait(d); }));
          },
          "timeout"_a = nb::none(),
          "Like poll(), after waiting up to `timeout` seconds (None: until it is over).")
      .def(
          "cancel", [](Transfer& t) { unlocked([&] { t.cancel(); }); },
          "Ends it with CancelledError unless it was over. Once it is over nothing reads or "
          "writes local memory for it any more.");
}

void bind_infos(nb::module_& module) {
  nb::class_<SessionTransition>(module, "SessionTransition", "One change of a session's state.")
      .def_ro("seconds_ago", &SessionTransition::seconds_ago)
      .def_ro("from_state", &SessionTransition::from)
      .def_ro("to_state", &SessionTransition::to)
      .def_ro("cause", &SessionTransition::cause);
  nb::class_<SessionInfo>(module, "SessionInfo", "A session as it stood; see the attributes.")
      .def_ro("session_id", &SessionInfo::session_id, "\"host:port\" of the peer")
      .def_ro("state", &SessionInfo::state,
              "connecting, healthy, suspect, failed, probing or retired")
      .def_prop_ro("incarnation", [](const SessionInfo& s) { return s.incarnation.value; })
      .def_ro("epoch", &SessionInfo::epoch)
      .def_ro("lanes", &SessionInfo::lanes, "open connections")
      .def_ro("transport", &SessionInfo::transport)
      .def_ro("queued_transfers", &SessionInfo::queued_transfers)
      .def_ro("pair_parked", &SessionInfo::pair_parked,
              "of these: wait because another session of their pair is blacklisted")
      .def_ro("pair_waits_for", &SessionInfo::pair_waits_for, "that session, or \"\"")
      .def_ro("outstanding_bytes", &SessionInfo::outstanding_bytes)
      .def_ro("bytes_written", &SessionInfo::bytes_written)
      .def_ro("bytes_read", &SessionInfo::bytes_read)
      .def_ro("transfers_ok", &SessionInfo::transfers_ok)
      .def_ro("transfers_failed", &SessionInfo::transfers_failed)
      .def_ro("retries", &SessionInfo::retries, "chunks sent again")
      .def_ro("recoveries", &SessionInfo::recoveries, "from blacklisted to usable")
      .def_ro("last_detect_seconds", &SessionInfo::last_detect_seconds)
      .def_ro("last_recover_seconds", &SessionInfo::last_recover_seconds)
      .def_ro("last_error", &SessionInfo::last_error)
      .def_ro("history", &SessionInfo::history, "oldest first")
      .def("__repr__", [](const SessionInfo& s) {
        return fmt::format("<SessionInfo {} {} epoch={} retries={} recoveries={}>", s.session_id,
                           s.state, s.epoch, s.retries, s.recoveries);
      });
  nb::class_<EngineStats>(module, "EngineStats", "Counters of an engine since its start.")
      .def_ro("bytes_sent", &EngineStats::bytes_sent)
      .def_ro("local_bytes_sent", &EngineStats::local_bytes_sent)
      .def_ro("local_bytes_received", &EngineStats::local_bytes_received)
      .def_ro("bytes_received", &EngineStats::bytes_received)
      .def_ro("bytes_discarded", &EngineStats::bytes_discarded,
              "arrived for refused or revoked frames; never written to registered memory")
      .def_ro("frames_refused", &EngineStats::frames_refused)
      .def_ro("protocol_errors", &EngineStats::protocol_errors)
      .def_ro("contained_exceptions", &EngineStats::contained_exceptions)
      .def_ro("transfers_ok", &EngineStats::transfers_ok)
      .def_ro("transfers_failed", &EngineStats::transfers_failed)
      .def_ro("retries", &EngineStats::retries)
      .def_ro("recoveries", &EngineStats::recoveries)
      .def_ro("probes_ok", &EngineStats::probes_ok)
      .def_ro("probes_failed", &EngineStats::probes_failed)
      .def_ro("regions", &EngineStats::regions)
      .def_ro("registered_bytes", &EngineStats::registered_bytes)
      .def_ro("inbound_lanes", &EngineStats::inbound_lanes)
      .def_ro("grants", &EngineStats::grants)
      .def_ro("notifications_dropped", &EngineStats::notifications_dropped);
}

TransferHandle submit(const EngineHolder& self, const std::string& session_id, bool write,
                      const AddressArray& local, const AddressArray& remote,
                      const AddressArray& lengths, double deadline, bool checksum, bool urgent,
                      std::uint64_t target,
                      const std::optional<std::pair<std::string, nb::bytes>>& notify,
                      double linger) {
  Engine& engine = self.get();
  TransferOptions options;
  options.deadline = to_duration(deadline);
  options.checksum = checksum;
  options.urgent = urgent;
  options.target = Incarnation(target);
  options.linger = to_duration(linger);
  if (notify)
    options.notify =
        Notification{notify->first, std::string(notify->second.c_str(), notify->second.size())};
  return unlocked([&] {
    const std::vector<Slice> slices = slices_from(local, remote, lengths);
    return unwrap(engine.submit(session_id, write ? Opcode::kWrite : Opcode::kRead, slices,
                                std::move(options)));
  });
}

/// Keeps a pair of layouts; constant.
struct Prepared {
  PreparedHandle handle;
};
using PageArray = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

Prepared prepare(const EngineHolder& self, const std::string& session_id,
                 std::vector<std::uint64_t> local, std::vector<std::uint64_t> remote,
                 std::uint64_t page_bytes, std::pair<std::uint64_t, std::uint64_t> pages,
                 std::pair<std::uint64_t, std::uint64_t> strides) {
  Engine& engine = self.get();
  return unlocked([&] {
    return Prepared{unwrap(
        engine.prepare(session_id, {std::move(local), page_bytes, strides.first, pages.first},
                       {std::move(remote), page_bytes, strides.second, pages.second}))};
  });
}

std::shared_ptr<Transfer> submit_pages(const EngineHolder& self, const Prepared& prepared,
                                       bool write, const PageArray& local, const PageArray& remote,
                                       double deadline, bool checksum, bool urgent) {
  Engine& engine = self.get();
  TransferOptions options;
  options.deadline = to_duration(deadline);
  options.checksum = checksum;
  options.urgent = urgent;
  return unlocked([&] {
    return unwrap(engine.submit_pages(prepared.handle, write ? Opcode::kWrite : Opcode::kRead,
                                      std::span(local.data(), local.size()),
                                      std::span(remote.data(), remote.size()), std::move(options)));
  });
}

Notes take_notifications(const EngineHolder& self) {
  Engine& engine = self.get();
  Notes notes;
  for (const Notification& n : unlocked([&] { return engine.take_notifications(); }))
    notes.emplace_back(nb::bytes(n.name.data(), n.name.size()),
                       nb::bytes(n.message.data(), n.message.size()));
  return notes;
}

Access access_from(std::int64_t bits) {
  if (bits < 0 || bits > static_cast<std::int64_t>(Access::kReadWrite))
    throw StatusError({Code::kInvalidArgument, Origin::kCaller,
                       fmt::format("access={} must be a kvmend.Access: 0 to {}", bits,
                                   static_cast<int>(Access::kReadWrite))});
  return static_cast<Access>(bits);
}

}  // namespace

void bind_engine(nb::module_& module) {
  bind_transfer(module);
  bind_infos(module);
  module.def("default_options", &default_options, "Engine options and their defaults.");

  nb::class_<Prepared>(module, "PreparedPages",
                       "Two layouts that go together, made by TransferEngine.prepare.");

  nb::class_<EngineHolder>(module, "Engine", "kvmend.TransferEngine's inside; no public API.")
      .def(
          "__init__",
          [](EngineHolder* self, const OptionDict& options) {
            EngineOptions parsed = options_from(options);
            auto engine = unlocked([&] { return unwrap(Engine::create(std::move(parsed))); });
            new (self) EngineHolder(std::move(engine));
          },
          "options"_a)
      .def_prop_ro("session_id", [](const EngineHolder& h) { return h.get().session_id(); })
      .def_prop_ro("incarnation", [](const EngineHolder& h) { return h.get().incarnation().value; })
      .def_prop_ro("admin_url", [](const EngineHolder& h) { return h.get().admin_url(); })
      .def_prop_ro("in_child", &EngineHolder::in_child)
      .def(
          "register_memory",
          [](const EngineHolder& h, const std::vector<std::pair<std::uint64_t, std::uint64_t>>& in,
             std::int64_t access) {
            Engine& engine = h.get();
            const Access opened = access_from(access);
            std::vector<MemoryRange> ranges;
            ranges.reserve(in.size());
            for (const auto& [base, length] : in)
              ranges.push_back({reinterpret_cast<void*>(base), length});
            check(
                unlocked([&] { return engine.register_batch(ranges, MemoryKind::kHost, opened); }));
          },
          "ranges"_a, "access"_a)
      .def(
          "unregister_memory",
          [](const EngineHolder& h, std::uint64_t base) {
            Engine& engine = h.get();
            check(
                unlocked([&] { return engine.unregister_memory(reinterpret_cast<void*>(base)); }));
          },
          "base"_a)
      .def(
          "open_session",
          [](const EngineHolder& h, const std::string& id, double timeout) {
            return unwrap(settled(h.get().start_open_session(id, to_duration(timeout))));
          },
          "session_id"_a, "timeout"_a)
      .def("submit", &submit, "session_id"_a, "write"_a, "local"_a, "remote"_a, "lengths"_a,
           "deadline"_a, "checksum"_a, "urgent"_a, "target"_a, "notify"_a.none(), "linger"_a)
      .def("prepare", &prepare, "session_id"_a, "local"_a, "remote"_a, "page_bytes"_a, "pages"_a,
           "strides"_a)
      .def("submit_pages", &submit_pages, "prepared"_a, "write"_a, "local"_a, "remote"_a,
           "deadline"_a, "checksum"_a, "urgent"_a)
      .def(
          "probe",
          [](const EngineHolder& h, const std::string& id, double timeout) {
            const Status status = settled(h.get().start_probe(id, to_duration(timeout)));
            return -static_cast<int>(status.code());
          },
          "session_id"_a, "timeout"_a)
      .def(
          "peer_regions",
          [](const EngineHolder& h, const std::string& id, double timeout) {
            Engine& engine = h.get();
            unwrap(settled(engine.start_open_session(id, to_duration(timeout))));
            return unlocked([&] { return unwrap(engine.peer_regions(id, to_duration(timeout))); });
          },
          "session_id"_a, "timeout"_a)
      .def(
          "notify",
          [](const EngineHolder& h, const std::string& id, const std::string& name,
             const nb::bytes& message, double timeout) {
            Engine& engine = h.get();
            TransferOptions options;
            options.deadline = to_duration(timeout);
            options.notify = Notification{name, std::string(message.c_str(), message.size())};
            const TransferHandle sent = unlocked(
                [&] { return unwrap(engine.submit(id, Opcode::kWrite, {}, std::move(options))); });
            try {
              check(*interruptible_wait(to_duration(kMaxSeconds),
                                        [&](auto d) { return sent->wait(d); }));
            } catch (nb::python_error&) {  // Ctrl-C: nobody would learn whether it arrives later
              unlocked([&] { sent->cancel(); });
              throw;
            }
          },
          "session_id"_a, "name"_a, "message"_a, "timeout"_a)
      .def("take_notifications", &take_notifications)
      .def("sessions",
           [](const EngineHolder& h) {
             Engine& engine = h.get();
             return unlocked([&] { return engine.sessions(); });
           })
      .def(
          "sessions_as_of",
          [](const EngineHolder& h) {
            Engine& engine = h.get();
            double as_of = 0;
            auto sessions = unlocked([&] {
              auto taken = engine.sessions();
              as_of =
                  std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
                      .count();
              return taken;
            });
            return std::pair(as_of, std::move(sessions));
          },
          "The moment (time.monotonic()) that `seconds_ago` counts from, and sessions().")
      .def("stats",
           [](const EngineHolder& h) {
             Engine& engine = h.get();
             return unlocked([&] { return engine.stats(); });
           })
      .def(
          "shutdown",
          [](const EngineHolder& h, double grace) {
            Engine& engine = h.get();
            const std::chrono::nanoseconds wanted = to_duration(grace);
            std::future<void> down =
                std::async(std::launch::async, [&engine, wanted] { engine.shutdown(wanted); });
            try {
              settled(std::move(down));
            } catch (nb::python_error&) {  // Ctrl-C: what still runs ends now
              unlocked([&] { engine.shutdown({}); });
              throw;
            }
          },
          "grace"_a);
}

}  // namespace kvmend::python
