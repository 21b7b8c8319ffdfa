#include "transport/tcp/tcp_transport.h"

#include "base/try.h"

namespace kvmend::transport::tcp {

Result<std::unique_ptr<Lane>> TcpTransport::connect(const Address& to, const wire::Hello& hello,
                                                    LaneObserver* observer) {
  auto lane = std::make_unique<TcpLane>(context_, hello, observer);
  KVM_ASSIGN_OR_RETURN(auto stream, network_.connect(to, options_, lane->as_handler()));
  lane->attach(std::move(stream));
  return lane;
}

Result<Address> TcpTransport::listen(const Address& at, AcceptObserver* observer) {
  acceptor_ = observer;
  KVM_ASSIGN_OR_RETURN(listener_, network_.listen(at, options_, this));
  return listener_->address();
}

void TcpTransport::on_accept(std::unique_ptr<env::Stream> stream) {
  acceptor_->on_inbound_lane(std::make_unique<TcpLane>(context_, std::move(stream)));
}

}  // namespace kvmend::transport::tcp
