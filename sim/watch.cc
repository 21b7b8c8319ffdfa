#include "sim/watch.h"

#include <algorithm>

namespace kvmend::sim {
namespace {

class WatchedStream final : public env::Stream {
 public:
  WatchedStream(std::unique_ptr<env::Stream> inner, MemoryWatch& watch)
      : inner_(std::move(inner)), watch_(watch) {}

  env::IoResult readv(std::span<const iovec> into) override {
    const env::IoResult result = inner_->readv(into);
    if (result.kind == env::IoResult::Kind::kOk)
      visit(into, result.bytes,
            [&](const void* at, std::size_t n) { watch_.on_received_into(at, n); });
    watch_.on_activity();
    return result;
  }
  env::IoResult writev(std::span<const iovec> from) override {
    const env::IoResult result = inner_->writev(from);
    if (result.kind == env::IoResult::Kind::kOk)
      visit(from, result.bytes, [&](const void* at, std::size_t n) { watch_.on_sent_from(at, n); });
    watch_.on_activity();
    return result;
  }
  void want_read(bool on) override { inner_->want_read(on); }
  void want_write(bool on) override { inner_->want_write(on); }
  void set_handler(env::StreamHandler* handler) override { inner_->set_handler(handler); }
  [[nodiscard]] std::size_t unacknowledged_bytes() const override {
    return inner_->unacknowledged_bytes();
  }
  void reset_on_close() override { inner_->reset_on_close(); }
  [[nodiscard]] const Address& peer() const override { return inner_->peer(); }

 private:
  template <class Visit>
  static void visit(std::span<const iovec> parts, std::size_t bytes, Visit&& each) {
    for (const iovec& part : parts) {
      if (bytes == 0) return;
      const std::size_t n = std::min(bytes, part.iov_len);
      if (n > 0) each(part.iov_base, n);
      bytes -= n;
    }
  }

  std::unique_ptr<env::Stream> inner_;
  MemoryWatch& watch_;
};

class WatchedListener final : public env::Listener, private env::AcceptHandler {
 public:
  WatchedListener(env::AcceptHandler* handler, MemoryWatch& watch)
      : handler_(handler), watch_(watch) {}
  env::AcceptHandler* as_handler() { return this; }
  void hold(std::unique_ptr<env::Listener> inner) { inner_ = std::move(inner); }
  [[nodiscard]] const Address& address() const override { return inner_->address(); }

 private:
  void on_accept(std::unique_ptr<env::Stream> stream) override {
    handler_->on_accept(std::make_unique<WatchedStream>(std::move(stream), watch_));
  }
  bool on_out_of_descriptors() override { return handler_->on_out_of_descriptors(); }

  env::AcceptHandler* handler_;
  MemoryWatch& watch_;
  std::unique_ptr<env::Listener> inner_;
};

}  // namespace

Result<std::unique_ptr<env::Listener>> WatchedNetwork::listen(const Address& at,
                                                              const env::StreamOptions& options,
                                                              env::AcceptHandler* handler) {
  auto listener = std::make_unique<WatchedListener>(handler, watch_);
  auto inner = inner_.listen(at, options, listener->as_handler());
  if (!inner) return std::unexpected(std::move(inner).error());
  listener->hold(std::move(*inner));
  return listener;
}

Result<std::unique_ptr<env::Stream>> WatchedNetwork::connect(const Address& to,
                                                             const env::StreamOptions& options,
                                                             env::StreamHandler* handler) {
  auto inner = inner_.connect(to, options, handler);
  if (!inner) return inner;
  return std::make_unique<WatchedStream>(std::move(*inner), watch_);
}

}  // namespace kvmend::sim
