#include "engine/validate.h"

#include <fmt/format.h>

#include "base/address.h"
#include "wire/frame.h"

namespace kvmend::engine {
namespace {

template <class T>
Status check_range(const char* name, T value, T low, T high) {
  if (value >= low && value <= high) return Status::ok();
  return {Code::kInvalidArgument, Origin::kCaller,
          fmt::format("{} is {}, but must be from {} to {}", name, value, low, high)};
}

}  // namespace

Status validate(const EngineOptions& options) {
  const auto host = parse_address(options.host, options.port);
  if (!host) return host.error();
  if (!host->is_loopback() && !options.insecure)
    return {Code::kPermissionDenied, Origin::kCaller,
            fmt::format("listening at {} lets anybody who reaches it read and write registered "
                        "memory; peers don't authenticate each other yet: set insecure "
                        "(--insecure) to accept that, or listen on loopback",
                        options.host)};
  Status status =
      check_range<std::uint32_t>("chunk_bytes", options.chunk_bytes, 4096, wire::kMaxPayloadBytes);
  if (status.is_ok()) status = check_range("tcp.data_lanes", options.tcp.data_lanes, 1, 16);
  if (status.is_ok())
    status = check_range<std::uint64_t>("tcp.stage_below_bytes", options.tcp.stage_below_bytes, 0,
                                        1ULL << 20U);
  if (status.is_ok())
    status = check_range<std::uint64_t>("window_bytes", options.window_bytes, options.chunk_bytes,
                                        1ULL << 40U);
  if (status.is_ok())
    status = check_range<std::uint32_t>("window_chunks", options.window_chunks, 1, 65'536);
  if (status.is_ok() && options.default_deadline.count() <= 0)
    status = {Code::kInvalidArgument, Origin::kCaller,
              fmt::format("default_deadline is {} ms, but must be positive",
                          options.default_deadline.count())};
  return status;
}

}  // namespace kvmend::engine
