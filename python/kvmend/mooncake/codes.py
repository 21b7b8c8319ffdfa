"""Return numbers of the Mooncake API, and how kvmend's errors become them."""

from __future__ import annotations

import enum

from ..errors import Code, KvmendError

__all__ = ["Rc", "of_memory", "of_probe"]


class Rc(enum.IntEnum):
    """The original's numbers that kvmend returns."""

    OK = 0
    INVALID_ARGUMENT = -1
    NOT_REGISTERED = -3
    OVERLAP = -7
    DNS = -101
    SOCKET = -102
    REJECTED = -104
    METADATA = -200


_MEMORY = {
    Code.ALREADY_EXISTS: Rc.OVERLAP,
    Code.NOT_REGISTERED: Rc.NOT_REGISTERED,
}

_PROBE = {
    Code.OK: Rc.OK,
    Code.INVALID_ARGUMENT: Rc.DNS,
    Code.PEER_RESTARTED: Rc.REJECTED,
    Code.VERSION_MISMATCH: Rc.REJECTED,
    Code.AUTH_FAILED: Rc.REJECTED,
    Code.PROTOCOL_ERROR: Rc.REJECTED,
}


def of_memory(error: KvmendError) -> int:
    """What registering and unregistering return."""
    return int(_MEMORY.get(Code(error.code), Rc.INVALID_ARGUMENT))


def of_probe(negated_code: int) -> int:
    """What send_probe returns, from what kvmend's send_probe returned."""
    return int(_PROBE.get(Code(-negated_code), Rc.SOCKET))
