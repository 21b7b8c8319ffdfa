// A blocking HTTP/1.1 client with a deadline.
#pragma once

#include <cstddef>
#include <string>

#include "base/time.h"
#include "http/limits.h"
#include "http/message.h"
#include "kvmend/status.h"

namespace kvmend::http {

struct ClientOptions {
  std::string content_type = "application/json";  ///< of the request's body
  std::string bearer_token;  ///< sent as "Authorization: Bearer ..." if not empty
  std::size_t max_response_bytes = limits::kMaxResponseBytes;
};

/// Sends one request over a connection of its own and waits for the whole answer, at most `timeout`
/// (a host *name* may take the system's resolver longer than that). Any answer is a success here,
/// whatever its status. Any thread; blocks.
///
/// Errors, all naming method and URL: `kInvalidArgument` (caller: the URL), `kConnectionRefused`,
/// `kConnectionReset`, `kProtocolError` (peer: not HTTP, or the answer is too large),
/// `kDeadlineExceeded` (link), `kUnavailable` (link: no route, unknown host), `kResourceExhausted`
/// (local: out of ports or descriptors).
[[nodiscard]] Result<Response> request(Method method, const std::string& url, std::string body,
                                       Duration timeout, const ClientOptions& options = {});

}  // namespace kvmend::http
