// The registry's JSON bodies, requests and answers; what parses goes through the registry too.
#include "bootstrap/codec.h"
#include "bootstrap/memory_store.h"
#include "bootstrap/registry.h"
#include "fuzz.h"

using namespace kvmend;
using namespace kvmend::bootstrap;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto registration = parse_registration(text)) {
    const auto again = parse_registration(encode_registration(*registration));
    KVM_CHECK(again && *again == *registration);
    MemoryStore store;
    Registry registry(store);
    KVM_CHECK(registry.register_rank(*registration, Time{}).is_ok());
    KVM_CHECK(registry.register_rank(*registration, Time{}).is_ok());
    KVM_CHECK(registry.stats().ranks == 1);
  }
  if (const auto topology = parse_topology(text))
    KVM_CHECK(parse_topology(encode_topology(*topology, true))->topology == topology->topology);
  if (const auto rank = parse_rank(text))
    KVM_CHECK(parse_rank(encode_rank(*rank, true))->rank.rank_ip == rank->rank.rank_ip);
  if (const auto room = parse_room(text))
    KVM_CHECK(parse_room(encode_room(*room))->room == room->room);
  if (const auto rooms = parse_room_query(text))
    KVM_CHECK(*parse_room_query(encode_room_query(*rooms)) == *rooms);
  if (const auto ranks = parse_room_ranks(text))
    KVM_CHECK(*parse_room_ranks(encode_room_ranks(*ranks)) == *ranks);
  return 0;
}
