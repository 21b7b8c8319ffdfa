// The registry's errors as HTTP status codes, and back.
#pragma once

#include "kvmend/status.h"

namespace kvmend::bootstrap {

/// 400, 401, 404, 409, 410, 503; 500 for what no route can answer.
[[nodiscard]] constexpr int http_status(Code code) {
  switch (code) {
    case Code::kOk:
      return 200;
    case Code::kInvalidArgument:
      return 400;
    case Code::kAuthFailed:
      return 401;
    case Code::kNotFound:
      return 404;
    case Code::kIncompatible:
      return 409;
    case Code::kPeerRestarted:
      return 410;
    case Code::kUnavailable:
      return 503;
    default:
      return 500;
  }
}

/// What an answer means to a client; every 5xx, 408 and 429 is worth asking again.
[[nodiscard]] constexpr Code code_of_http_status(int status) {
  if (status >= 200 && status < 300) return Code::kOk;
  switch (status) {
    case 401:
    case 403:
      return Code::kAuthFailed;
    case 404:
      return Code::kNotFound;
    case 409:
      return Code::kIncompatible;
    case 410:
      return Code::kPeerRestarted;
    case 408:
    case 429:
      return Code::kUnavailable;
    default:
      return status >= 500 ? Code::kUnavailable : Code::kInvalidArgument;
  }
}

}  // namespace kvmend::bootstrap
