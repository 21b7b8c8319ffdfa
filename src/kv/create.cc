// The manager over kvmend's own engine.
#include "base/try.h"
#include "engine/facade.h"
#include "kv/core_port.h"
#include "kv/foreign_port.h"
#include "kv/link.h"
#include "kvmend/kv.h"

namespace kvmend {

Result<std::unique_ptr<KvManager>> KvManager::create(Engine& engine, KvRole role, KvLayout layout,
                                                     KvOptions options) {
  auto* facade = dynamic_cast<engine::EngineFacade*>(&engine);
  if (facade == nullptr)
    return fail(Code::kInvalidArgument, Origin::kCaller,
                "this engine wasn't made by Engine::create");
  auto link = kv::Link::open(std::make_unique<kv::CorePort>(facade->core()), role,
                             std::move(layout), options);
  if (!link) return std::unexpected(std::move(link).error());
  return std::make_unique<KvManager>(std::move(*link));
}

Result<std::unique_ptr<KvManager>> create_foreign_manager(Engine& control,
                                                          std::shared_ptr<ForeignCalls> calls,
                                                          KvRole role, KvLayout layout,
                                                          KvOptions options) {
  auto* facade = dynamic_cast<engine::EngineFacade*>(&control);
  if (facade == nullptr)
    return fail(Code::kInvalidArgument, Origin::kCaller,
                "this control engine wasn't made by Engine::create");
  KVM_RETURN_IF_ERROR(kv::check_foreign_options(calls->options()));
  auto link = kv::Link::open(
      std::make_unique<kv::ForeignPort>(std::make_unique<kv::CorePort>(facade->core()), calls),
      role, std::move(layout), options);
  if (!link) return std::unexpected(std::move(link).error());
  return std::make_unique<KvManager>(std::move(*link));
}

}  // namespace kvmend
