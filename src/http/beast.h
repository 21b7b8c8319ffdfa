// Private to src/http: Beast and Asio with their non-template parts compiled once, in asio.cc.
// Whoever includes this takes ten seconds to compile: keep it out of headers that others include.
#pragma once

#define BOOST_ASIO_SEPARATE_COMPILATION
#define BOOST_ASIO_NO_DEPRECATED
#define BOOST_BEAST_SEPARATE_COMPILATION

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

namespace kvmend::http {

namespace asio = boost::asio;
namespace beast = boost::beast;
using Tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

}  // namespace kvmend::http
