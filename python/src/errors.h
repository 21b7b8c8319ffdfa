// The one place where kvmend's errors become Python exceptions.
#pragma once

#include <exception>
#include <utility>

#include "kvmend/status.h"

namespace kvmend::python {

/// Carries a Status to the translator. Thrown only between a binding and nanobind.
class StatusError : public std::exception {
 public:
  explicit StatusError(Status status) : status_(std::move(status)) {}
  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] const char* what() const noexcept override { return status_.detail().c_str(); }

 private:
  Status status_;
};

inline void check(const Status& status) {
  if (!status.is_ok()) throw StatusError(status);
}

template <class T>
T unwrap(Result<T>&& result) {
  if (!result) throw StatusError(std::move(result).error());
  return std::move(*result);
}

/// Makes nanobind raise `kvmend.errors.error_for(...)` for every StatusError. Once per process.
void install_translator();

}  // namespace kvmend::python
