#include "bootstrap/backend.h"

#include <fmt/format.h>

namespace kvmend::bootstrap {

std::string describe_backend(std::string_view backend, std::string_view version) {
  if (backend.empty()) return "SGLang's stock manager";
  return version.empty() ? std::string(backend) : fmt::format("{} {}", backend, version);
}

Status check_backends(std::string_view prefill, std::string_view prefill_version,
                      std::string_view decode, std::string_view decode_version) {
  if (prefill == decode) return Status::ok();
  return {Code::kIncompatible, Origin::kPeer,
          fmt::format("prefill runs {}, decode runs {}: they can't talk to each other; start both "
                      "with the same --disaggregation-transfer-backend",
                      describe_backend(prefill, prefill_version),
                      describe_backend(decode, decode_version))};
}

}  // namespace kvmend::bootstrap
