// Collects what two layouts don't agree on into one sentence with both sides' values (case I6).
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "kvmend/status.h"
#include "wire/kv_messages.h"

namespace kvmend::kv {

class Differences {
 public:
  template <class Here, class There>
  void compare(std::string_view what, const Here& here, const There& there) {
    if (here != there) add(fmt::format("{} {} here, {} there", what, here, there));
  }
  void add(const std::string& one) {
    if (text_.size() > wire::kMaxKvReasonBytes) return;
    if (!text_.empty()) text_ += "; ";
    text_ += one;
  }
  [[nodiscard]] bool empty() const { return text_.empty(); }
  /// kIncompatible, or OK when there are none.
  [[nodiscard]] Status status() const {
    if (text_.empty()) return {};
    return {Code::kIncompatible, Origin::kPeer, "layouts can't be mapped: " + text_};
  }

 private:
  std::string text_;
};

}  // namespace kvmend::kv
