// A transport whose data lanes copy from the sender's memory where both ends share a host.
#pragma once

#include <memory>

#include "transport/lane.h"
#include "transport/local/local_hub.h"
#include "transport/local/pid_watch.h"

namespace kvmend::transport::local {

/// Keeps the hub beside the transport that carries its frames, which was made with the hub in its
/// context. Loop thread.
class LocalTransport final : public Transport {
 public:
  LocalTransport(std::unique_ptr<FdLoop> fds, std::unique_ptr<LocalHub> hub,
                 std::unique_ptr<Transport> frames)
      : fds_(std::move(fds)), hub_(std::move(hub)), frames_(std::move(frames)) {}

  Result<std::unique_ptr<Lane>> connect(const Address& to, const wire::Hello& hello,
                                        LaneObserver* observer) override {
    return frames_->connect(to, hello, observer);
  }
  Result<Address> listen(const Address& at, AcceptObserver* observer) override {
    return frames_->listen(at, observer);
  }
  void stop_listening() override { frames_->stop_listening(); }
  std::unique_ptr<ProcessWatch> watch_process(const wire::HostIdentity& peer,
                                              std::function<void()> died) override {
    return PidWatch::start(*fds_, hub_->identity(), peer, std::move(died));
  }

 private:
  std::unique_ptr<FdLoop> fds_;
  std::unique_ptr<LocalHub> hub_;
  std::unique_ptr<Transport> frames_;
};

}  // namespace kvmend::transport::local
