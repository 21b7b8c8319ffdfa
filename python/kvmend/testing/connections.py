"""Reset TCP connections of this process, as a middlebox or a failing network card would.

A process can do that to itself without privileges: connecting a socket to "nowhere" (AF_UNSPEC)
makes the kernel drop the connection with a reset, so the owner of the socket, which knows nothing
of it, gets ECONNRESET, and so does the peer.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import stat

__all__ = ["reset_connections"]

_libc = ctypes.CDLL(None, use_errno=True)
_NOWHERE = bytes(16)  # struct sockaddr with sa_family = AF_UNSPEC


def reset_connections(port: int | None = None) -> int:
    """Resets every established TCP connection of this process; returns how many.

    `port`: only those with this port at one of their ends.
    """
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, or not connected
            count += _reset(int(name), port)
    return count


def _reset(fd: int, port: int | None) -> bool:
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        return False
    # A duplicate pins the connection: the number may mean something else by now.
    with socket.socket(fileno=os.dup(fd)) as duplicate:
        if duplicate.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        if duplicate.type != socket.SOCK_STREAM:
            return False
        ends = (duplicate.getsockname()[1], duplicate.getpeername()[1])
        if port is not None and port not in ends:
            return False
        return bool(_libc.connect(duplicate.fileno(), _NOWHERE, len(_NOWHERE)) == 0)
