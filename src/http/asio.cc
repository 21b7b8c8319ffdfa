// The compiled parts of Asio and Beast, once; see beast.h.
#include "http/beast.h"

#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
