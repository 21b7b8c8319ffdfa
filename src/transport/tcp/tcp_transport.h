// Makes tcp lanes: connects to peers and listens for them.
#pragma once

#include <memory>

#include "env/network.h"
#include "transport/lane.h"
#include "transport/tcp/tcp_lane.h"

namespace kvmend::transport::tcp {

/// Loop thread.
class TcpTransport final : public Transport, private env::AcceptHandler {
 public:
  TcpTransport(LaneContext context, env::Network& network, env::StreamOptions options)
      : context_(context), network_(network), options_(std::move(options)) {}

  Result<std::unique_ptr<Lane>> connect(const Address& to, const wire::Hello& hello,
                                        LaneObserver* observer) override;
  Result<Address> listen(const Address& at, AcceptObserver* observer) override;
  void stop_listening() override { listener_.reset(); }

 private:
  void on_accept(std::unique_ptr<env::Stream> stream) override;
  bool on_out_of_descriptors() override { return acceptor_->on_out_of_descriptors(); }

  LaneContext context_;
  env::Network& network_;
  env::StreamOptions options_;
  std::unique_ptr<env::Listener> listener_;
  AcceptObserver* acceptor_ = nullptr;
};

/// A `TransportMaker`.
[[nodiscard]] inline std::unique_ptr<Transport> make_tcp_transport(
    const LaneContext& context, env::Network& network, const env::StreamOptions& options) {
  return std::make_unique<TcpTransport>(context, network, options);
}

}  // namespace kvmend::transport::tcp
