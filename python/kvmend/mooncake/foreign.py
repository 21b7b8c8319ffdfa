"""Tells a real Mooncake engine from a kvmend engine that doesn't answer."""

from __future__ import annotations

import socket

__all__ = ["is_mooncake"]

TIMEOUT = 1.0  # seconds

# Mooncake's control port takes a length (8 bytes, little endian), then that many bytes: the kind of
# the message and JSON. Kind 3 is its probe, which any of its versions that have one answers in kind.
_PROBE = b"\x03{}\n"


def is_mooncake(host: str, port: int) -> bool:
    """Whether a Mooncake engine answers at that control port. Blocks up to a few seconds."""
    try:
        with socket.create_connection((host, port), TIMEOUT) as connection:
            connection.settimeout(TIMEOUT)
            connection.sendall(len(_PROBE).to_bytes(8, "little") + _PROBE)
            answer = b""
            while len(answer) < 10:
                more = connection.recv(64)
                if not more:
                    return False
                answer += more
    except OSError:
        return False
    length = int.from_bytes(answer[:8], "little")
    return 2 <= length <= 4096 and answer[8:10] == _PROBE[:2]
