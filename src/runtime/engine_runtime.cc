#include "runtime/engine_runtime.h"

#include <pthread.h>

#include <thread>

#include "base/try.h"
#include "env/posix/network.h"
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

  void start() {
    thread_ = std::jthread([this] {
      pthread_setname_np(pthread_self(), "kvmend-loop");
      env_->loop().run();
    });
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

}  // namespace

Result<std::unique_ptr<engine::EngineFacade>> make_engine(const EngineOptions& options,
                                                          session::SessionEvents* metrics) {
  env::posix::EventLoopOptions loop_options;
  loop_options.spin = options.spin;
  KVM_ASSIGN_OR_RETURN(auto env, env::posix::PosixEnv::create(loop_options));
  auto thread = std::make_shared<EngineThread>(std::move(env));
  auto core = std::make_unique<engine::EngineCore>(thread->env().env(), options,
                                                   transport::tcp::make_tcp_transport, metrics);
  KVM_RETURN_IF_ERROR(core->start());
  thread->start();
  return std::make_unique<engine::EngineFacade>(std::move(core), thread,
                                                [t = thread.get()] { t->stop(); });
}

}  // namespace runtime

Result<std::unique_ptr<Engine>> Engine::create(EngineOptions options) {
  KVM_ASSIGN_OR_RETURN(auto engine, runtime::make_engine(options, nullptr));
  return engine;
}

}  // namespace kvmend
