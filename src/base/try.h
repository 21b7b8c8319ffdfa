// The two small macros that stand in for `expected::and_then`, which GCC 12 lacks.
#pragma once

#include "kvmend/status.h"

#define KVM_CONCAT_INNER(a, b) a##b
#define KVM_CONCAT(a, b) KVM_CONCAT_INNER(a, b)

/// Evaluates an expression of type Status; returns it from the function unless it is OK.
#define KVM_RETURN_IF_ERROR(expression)                                         \
  do {                                                                          \
    ::kvmend::Status KVM_CONCAT(kvm_status_, __LINE__) = (expression);          \
    if (!KVM_CONCAT(kvm_status_, __LINE__).is_ok())                             \
      return ::std::unexpected(::std::move(KVM_CONCAT(kvm_status_, __LINE__))); \
  } while (false)

/// `KVM_ASSIGN_OR_RETURN(auto value, make_result());`
// A declaration can't stand in parentheses. NOLINTBEGIN(bugprone-macro-parentheses)
#define KVM_ASSIGN_OR_RETURN(declaration, expression)                    \
  auto KVM_CONCAT(kvm_result_, __LINE__) = (expression);                 \
  if (!KVM_CONCAT(kvm_result_, __LINE__))                                \
    return ::std::unexpected(KVM_CONCAT(kvm_result_, __LINE__).error()); \
  declaration = ::std::move(*KVM_CONCAT(kvm_result_, __LINE__))
// NOLINTEND(bugprone-macro-parentheses)
