#include "runtime/engine_runtime.h"

#include <pthread.h>

#include <fmt/format.h>

#include <latch>
#include <system_error>
#include <thread>

#include "admin/admin_server.h"
#include "base/config.h"
#include "base/log.h"
#include "base/try.h"
#include "env/posix/memory_keeper.h"
#include "env/posix/network.h"
#include "metrics/metrics.h"
#include "runtime/posix_fds.h"
#include "transport/local/local_transport.h"
#include "transport/tcp/tcp_transport.h"

namespace kvmend {
namespace runtime {
namespace {

/// Owns the environment and the thread that drives it. Must outlive the core, whose last words may
/// still post to the loop.
class EngineThread {
 public:
  explicit EngineThread(std::unique_ptr<env::posix::PosixEnv> env) : env_(std::move(env)) {}
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;
  ~EngineThread() { stop(); }

  Status start() {
    try {
      thread_ = std::jthread([this] {
        pthread_setname_np(pthread_self(), "kvmend-loop");
        env_->loop().run();
      });
    } catch (const std::system_error& error) {
      return {Code::kResourceExhausted, Origin::kLocal, "starting the engine's thread",
              error.code().value()};
    }
    // Until it runs the loop belongs to the caller, who must not touch it from here on.
    std::latch running(1);
    env_->loop().post([&running] { running.count_down(); });
    running.wait();
    return Status::ok();
  }
  void stop() {
    env_->loop().stop();
    if (thread_.joinable()) thread_.join();
    env_->loop().bind_to_this_thread();
  }
  env::posix::PosixEnv& env() { return *env_; }

 private:
  std::unique_ptr<env::posix::PosixEnv> env_;
  std::jthread thread_;
};

std::unique_ptr<transport::Transport> make_local_transport(env::posix::PosixEventLoop& loop,
                                                           transport::LaneContext context,
                                                           env::Network& network,
                                                           const env::StreamOptions& stream) {
  auto fds = std::make_unique<PosixFds>(loop);
  auto hub = transport::local::LocalHub::create(context, *fds);
  if (!hub) {
    spdlog::warn("the local transport isn't available: {}", hub.error().to_string());
    return transport::tcp::make_tcp_transport(context, network, stream);
  }
  context.pulls = hub->get();
  return std::make_unique<transport::local::LocalTransport>(
      std::move(fds), std::move(*hub),
      transport::tcp::make_tcp_transport(context, network, stream));
}

/// What an engine stands on, destroyed after it.
struct World {
  std::unique_ptr<metrics::Metrics> metrics;
  std::unique_ptr<EngineThread> thread;
  std::unique_ptr<http::Server> admin;
  std::shared_ptr<env::posix::MemoryKeeper> keeper;
};

Status start_admin(const EngineOptions& options, World& world, engine::EngineFacade& engine) {
  const auto listen = parse_address(options.admin_listen);
  if (!listen) return listen.error();
  admin::Sources sources;
  sources.metrics = [m = world.metrics.get(), e = &engine] {
    return m->expose(e->stats(), e->sessions());
  };
  sources.sessions = [e = &engine] { return e->sessions(); };
  sources.stats = [e = &engine] { return e->stats(); };
  sources.quarantined = [m = world.metrics.get()](KvRole role) { return m->quarantined(role); };
  sources.session_id = engine.session_id();
  sources.incarnation = fmt::format("{:016x}", engine.incarnation().value);
  auto server = admin::start_admin(*listen, options.insecure, std::move(sources));
  if (!server) return server.error();
  world.admin = std::move(*server);
  engine.set_watcher(world.admin->url(), [w = &world] { w->admin->stop(); });
  return Status::ok();
}

}  // namespace

Result<std::unique_ptr<engine::EngineFacade>> make_engine(const EngineOptions& options) {
  auto world = std::make_shared<World>();
  if (!options.admin_listen.empty()) world->metrics = std::make_unique<metrics::Metrics>();
  env::posix::EventLoopOptions loop_options;
  loop_options.spin = options.spin;
  KVM_ASSIGN_OR_RETURN(auto env, env::posix::PosixEnv::create(loop_options));
  world->thread = std::make_unique<EngineThread>(std::move(env));
  transport::TransportMaker make_transport = transport::tcp::make_tcp_transport;
  if (options.local == LocalMode::kAuto)
    make_transport = [&loop = world->thread->env().loop()](const auto& context, auto& network,
                                                           const auto& stream) {
      return make_local_transport(loop, context, network, stream);
    };
  auto core = std::make_unique<engine::EngineCore>(world->thread->env().env(), options,
                                                   std::move(make_transport), world->metrics.get());
  KVM_RETURN_IF_ERROR(core->start());
  KVM_RETURN_IF_ERROR(world->thread->start());
  auto engine = std::make_unique<engine::EngineFacade>(std::move(core), world,
                                                       [t = world->thread.get()] { t->stop(); });
  if (options.memory_keeper)
    engine->set_registration_watcher([w = world.get()](std::uint64_t registered) {
      if (registered >= config::kMemoryKeeperFrom && w->keeper == nullptr)
        w->keeper = env::posix::MemoryKeeper::of_this_process();
    });
  if (!options.admin_listen.empty()) KVM_RETURN_IF_ERROR(start_admin(options, *world, *engine));
  return engine;
}

}  // namespace runtime

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options) {
  KVM_ASSIGN_OR_RETURN(auto engine, runtime::make_engine(options));
  return engine;
}

}  // namespace kvmend
