// The three handshake messages; the first byte picks one.
#include "fuzz.h"
#include "wire/control.h"
#include "wire/frame.h"

using namespace kvmend;
using namespace kvmend::wire;

namespace {

template <class Parse, class Encode>
void round_trip(Bytes body, Parse parse, Encode encode) {
  const auto value = parse(body);
  if (!value) {
    KVM_CHECK(value.error().code() == Code::kProtocolError);
    return;
  }
  const auto encoded = encode(*value);
  KVM_CHECK(encoded.size() <= kMaxHelloBytes);
  const auto again = parse(encoded);
  KVM_CHECK(again && *again == *value);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const Bytes body = fuzz::bytes(data + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      round_trip(body, parse_hello, encode_hello);
      break;
    case 1:
      round_trip(body, parse_hello_ack, encode_hello_ack);
      break;
    default:
      round_trip(body, parse_hello_reject, encode_hello_reject);
      break;
  }
  return 0;
}
