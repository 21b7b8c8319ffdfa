// Control messages.
#include "fuzz.h"
#include "wire/control.h"

using namespace kvmend;
using namespace kvmend::wire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto value = parse_control(fuzz::bytes(data, size));
  if (!value) {
    KVM_CHECK(value.error().code() == Code::kProtocolError);
    return 0;
  }
  const auto again = parse_control(encode_control(*value));
  KVM_CHECK(again && *again == *value);
  return 0;
}
