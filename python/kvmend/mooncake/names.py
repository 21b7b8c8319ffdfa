"""Names of hosts and peers: "host:port" in its forms, and addresses that hosts resolve to."""

from __future__ import annotations

import ipaddress
import socket

__all__ = ["UnknownName", "is_loopback", "join", "resolve", "split"]


class UnknownName(Exception):
    """No address belongs to that name; the text says which and why."""


def split(name: str) -> tuple[str, int]:
    """(host, port) of "host:port", "[v6]:port", "host" or a bare IPv6 address; port 0: none.

    Raises UnknownName.
    """
    host, port = name, ""
    if name.startswith("["):
        host, bracket, rest = name[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise UnknownName(f"{name!r} isn't [address]:port")
        port = rest[1:]
    elif name.count(":") == 1:
        host, _, port = name.partition(":")
    if not host or "\0" in host:
        raise UnknownName(f"{name!r} has no host")
    if not port:
        return host, 0
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= 65535):
        raise UnknownName(f"{name!r} has no port from 1 to 65535")
    return host, int(port)


def join(host: str, port: int) -> str:
    """The session id of a numeric address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def resolve(host: str) -> str:
    """The numeric address of a host, IPv4 preferred; numeric ones stay. Raises UnknownName."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UnknownName(f"host {host!r} isn't known: {error}") from None
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0])


def is_loopback(address: str) -> bool:
    """Whether a numeric address is of this host alone."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
