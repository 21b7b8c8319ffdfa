// Request targets from peers, URLs from users.
#include "fuzz.h"
#include "http/url.h"

using namespace kvmend;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto target = http::parse_target(text)) {
    KVM_CHECK(target->path.starts_with('/') || text.starts_with("/%"));
  } else {
    KVM_CHECK(target.error().code() == Code::kProtocolError);
  }
  const auto base = http::base_url(text, 8998);
  if (!base) {
    KVM_CHECK(base.error().code() == Code::kInvalidArgument);
    return 0;
  }
  const auto again = http::base_url(*base, 1);
  KVM_CHECK(again && *again == *base);
  return 0;
}
