// Messages of the KV manager.
#include "wire/kv_messages.h"

#include "fuzz.h"

using namespace kvmend;
using namespace kvmend::wire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto value = parse_kv(fuzz::bytes(data, size));
  if (!value) {
    KVM_CHECK(value.error().code() == Code::kProtocolError);
    return 0;
  }
  const std::string encoded = encode_kv(*value);
  const auto again = parse_kv(fuzz::bytes(encoded));
  KVM_CHECK(again && *again == *value);
  return 0;
}
