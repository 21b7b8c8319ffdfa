// parse_address: session ids from users and peers.
#include "base/address.h"
#include "fuzz.h"

using namespace kvmend;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const int default_port : {-1, 8998}) {
    const auto address = parse_address(text, default_port);
    if (!address) {
      KVM_CHECK(address.error().code() == Code::kInvalidArgument);
      continue;
    }
    const auto again = parse_address(address->to_string());
    KVM_CHECK(again && *again == *address);
  }
  return 0;
}
