#include "bootstrap.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <unistd.h>

#include <memory>
#include <tuple>

#include "base/address.h"
#include "bootstrap/client.h"
#include "bootstrap/server.h"
#include "env/posix/clock.h"
#include "errors.h"
#include "gil.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvmend::python {
namespace {

/// A server and the clock that it needs. In a forked child its thread doesn't exist: then it leaks.
class BootstrapServer {
 public:
  explicit BootstrapServer(bootstrap::ServerOptions options)
      : server_(unwrap(bootstrap::Server::start(std::move(options), clock_))) {}
  ~BootstrapServer() {
    if (getpid() != pid_) {
      static_cast<void>(server_.release());
    } else {
      unlocked([this] { server_.reset(); });
    }
  }
  BootstrapServer(const BootstrapServer&) = delete;
  BootstrapServer& operator=(const BootstrapServer&) = delete;
  [[nodiscard]] bootstrap::Server& get() const { return *server_; }

 private:
  env::posix::PosixClock clock_;
  std::unique_ptr<bootstrap::Server> server_;
  pid_t pid_ = getpid();
};

/// A client and its world.
class BootstrapClient {
 public:
  BootstrapClient(const std::string& registry, const std::string& key)
      : client_(unwrap(bootstrap::Client::create(
            {.registry = registry, .shared_key = key},
            {.clock = &clock_, .waiter = &waiter_, .jitter_seed = random_.next()}))) {}
  BootstrapClient(const BootstrapClient&) = delete;
  BootstrapClient& operator=(const BootstrapClient&) = delete;

  [[nodiscard]] const std::string& url() const { return client_.url(); }

  /// Runs `ask(client, deadline)` without the interpreter lock, in steps, so that Ctrl-C works.
  template <class Ask>
  auto call(double timeout, Ask&& ask) {
    const Time until = saturating_add(clock_.now(), to_duration(timeout));
    while (true) {
      const Time step = std::min(until, saturating_add(clock_.now(), kStep));
      auto result = unlocked([&] { return ask(client_, step); });
      if (result || result.error().code() != Code::kDeadlineExceeded || step == until)
        return unwrap(std::move(result));
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }

 private:
  static constexpr Duration kStep = std::chrono::seconds(1);
  env::posix::PosixClock clock_;
  env::posix::PosixRandom random_;
  bootstrap::CancellableWaiter waiter_;
  bootstrap::Client client_;
};

void register_rank(BootstrapClient& self, const std::string& session_id, std::uint64_t incarnation,
                   nb::handle rank, std::int64_t page_tokens, const std::string& dtype,
                   std::int64_t lease_seconds, double timeout) {
  const Address address = unwrap(parse_address(session_id));
  const auto number = [&](const char* name) { return nb::cast<std::int64_t>(rank.attr(name)); };
  bootstrap::Registration registration;
  registration.topology.attn_tp_size = number("tp_size");
  registration.topology.attn_cp_size = number("cp_size");
  registration.topology.dp_size = number("dp_size");
  registration.topology.pp_size = number("pp_size");
  registration.topology.page_size = page_tokens;
  if (!dtype.empty()) registration.topology.kv_cache_dtype = dtype;
  registration.key = {.dp = number("dp_rank"),
                      .cp = number("cp_rank"),
                      .tp = number("tp_rank"),
                      .pp = number("pp_rank")};
  registration.rank = {.rank_ip = address.host,
                       .rank_port = address.port,
                       .session_id = session_id,
                       .incarnation = Incarnation(incarnation),
                       .lease = std::chrono::seconds(lease_seconds)};
  self.call(timeout, [&](const bootstrap::Client& client, Time deadline) -> Result<bool> {
    const auto done = client.register_rank(registration, deadline);
    if (!done) return std::unexpected(done.error());
    return true;
  });
}

std::tuple<std::string, std::uint64_t> find_rank(BootstrapClient& self, std::int64_t dp,
                                                 std::int64_t cp, std::int64_t tp, std::int64_t pp,
                                                 double timeout) {
  const bootstrap::RankKey key{.dp = dp, .cp = cp, .tp = tp, .pp = pp};
  const auto answer = self.call(timeout, [&](const bootstrap::Client& client, Time deadline) {
    return client.rank(key, deadline);
  });
  return {answer.rank.session_id, answer.rank.incarnation.value};
}

nb::typed<nb::dict, nb::str, nb::object> topology(BootstrapClient& self, double timeout) {
  const auto answer = self.call(timeout, [](const bootstrap::Client& client, Time deadline) {
    return client.topology(deadline);
  });
  const bootstrap::Topology& t = answer.topology;
  nb::typed<nb::dict, nb::str, nb::object> found;
  found["tp_size"] = t.attn_tp_size;
  found["cp_size"] = t.attn_cp_size;
  found["dp_size"] = t.dp_size;
  found["pp_size"] = t.pp_size;
  found["page_tokens"] = t.page_size;
  found["dtype"] = t.kv_cache_dtype.value_or("");
  found["backend"] = t.backend;
  found["version"] = t.kvmend_version;
  found["epoch"] = answer.epoch;
  return found;
}

nb::typed<nb::dict, nb::str, int> stats(const BootstrapServer& self) {
  const bootstrap::ServerStats s = unlocked([&] { return self.get().stats(); });
  nb::typed<nb::dict, nb::str, int> found;
  found["registrations"] = s.registry.registrations;
  found["replaced"] = s.registry.replaced;
  found["started_over"] = s.registry.started_over;
  found["refused"] = s.registry.refused;
  found["expired_ranks"] = s.registry.expired_ranks;
  found["ranks"] = s.registry.ranks;
  found["rooms"] = s.registry.rooms;
  found["epoch"] = s.registry.epoch;
  found["unauthorized"] = s.unauthorized;
  return found;
}

}  // namespace

void bind_bootstrap(nb::module_& module) {
  nb::class_<BootstrapServer>(module, "BootstrapServer", "kvmend.BootstrapServer's inside.")
      .def(
          "__init__",
          [](BootstrapServer* self, const std::string& host, std::uint16_t port, bool insecure,
             const std::string& shared_key) {
            bootstrap::ServerOptions options;
            options.listen = unwrap(parse_address(host, port));
            options.allow_remote = insecure;
            options.shared_key = shared_key;
            new (self) BootstrapServer(std::move(options));
          },
          "host"_a, "port"_a, "insecure"_a, "shared_key"_a)
      .def_prop_ro("address",
                   [](const BootstrapServer& s) { return s.get().address().to_string(); })
      .def_prop_ro("url", [](const BootstrapServer& s) { return s.get().url(); })
      .def("stats", &stats)
      .def("stop", [](const BootstrapServer& s) { unlocked([&] { s.get().stop(); }); });
  nb::class_<BootstrapClient>(module, "BootstrapClient", "kvmend.BootstrapClient's inside.")
      .def(nb::init<const std::string&, const std::string&>(), "registry"_a, "shared_key"_a)
      .def_prop_ro("url", &BootstrapClient::url)
      .def("register_rank", &register_rank, "session_id"_a, "incarnation"_a, "rank"_a,
           "page_tokens"_a, "dtype"_a, "lease_seconds"_a, "timeout"_a)
      .def("find_rank", &find_rank, "dp"_a, "cp"_a, "tp"_a, "pp"_a, "timeout"_a)
      .def("topology", &topology, "timeout"_a);
}

}  // namespace kvmend::python
