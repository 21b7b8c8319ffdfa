"""Exceptions: one class per error code, all derived from KvmendError.

Where Python has a class of the same meaning, ours derive from it too, so `except TimeoutError`
catches a deadline that has passed.
"""

import enum

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "AuthFailedError",
    "CancelledError",
    "ChecksumMismatchError",
    "Code",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "DeadlineExceededError",
    "IncompatibleError",
    "InternalError",
    "InvalidArgumentError",
    "KvmendError",
    "NotFoundError",
    "NotRegisteredError",
    "OutOfRangeError",
    "PeerRestartedError",
    "PeerSilentError",
    "PermissionDeniedError",
    "ProtocolError",
    "ResourceExhaustedError",
    "SessionFailedError",
    "ShuttingDownError",
    "StaleEpochError",
    "UnavailableError",
    "VersionMismatchError",
    "error_for",
]


class Code(enum.IntEnum):
    """The closed list of error codes; the numbers are those of the C++ API and of the wire."""

    OK = 0
    INVALID_ARGUMENT = 1
    NOT_REGISTERED = 2
    OUT_OF_RANGE = 3
    ALREADY_EXISTS = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 6
    RESOURCE_EXHAUSTED = 7
    DEADLINE_EXCEEDED = 8
    CANCELLED = 9
    PEER_RESTARTED = 10
    CONNECTION_REFUSED = 11
    CONNECTION_RESET = 12
    PEER_SILENT = 13
    PROTOCOL_ERROR = 14
    VERSION_MISMATCH = 15
    STALE_EPOCH = 16
    SESSION_FAILED = 17
    SHUTTING_DOWN = 18
    ABORTED = 19
    INCOMPATIBLE = 20
    CHECKSUM_MISMATCH = 21
    UNAVAILABLE = 22
    AUTH_FAILED = 23
    INTERNAL = 24


class KvmendError(Exception):
    """What went wrong, whose fault it was, and a sentence that names the values."""

    #: The code of a subclass; KvmendError itself stands for codes this version doesn't know.
    default_code = Code.INTERNAL

    def __init__(
        self,
        detail: str,
        origin: str = "caller",
        code: int | None = None,
        sys_errno: int = 0,
    ) -> None:
        super().__init__(detail)
        #: the sentence
        self.detail = detail
        #: "caller", "local", "peer" or "link"; only the last two count against a session's health
        self.origin = origin
        #: a Code, or a number that this version doesn't know
        self.code: int = self.default_code if code is None else code
        #: the operating system's error number, or 0
        self.sys_errno = sys_errno

    @property
    def code_name(self) -> str:
        """The code as logs and metrics write it, e.g. "peer_restarted"."""
        return self.code.name.lower() if isinstance(self.code, Code) else f"code_{self.code}"

    def __str__(self) -> str:
        suffix = f" [errno {self.sys_errno}]" if self.sys_errno else ""
        return f"{self.code_name} ({self.origin}): {self.detail}{suffix}"

    def __reduce__(self) -> tuple[object, ...]:
        return error_for, (int(self.code), self.origin, self.detail, self.sys_errno)


class InvalidArgumentError(KvmendError, ValueError):
    """An argument is malformed: zero length, sizes that differ, a bad session id."""

    default_code = Code.INVALID_ARGUMENT


class NotRegisteredError(KvmendError, LookupError):
    """The address lies in no registered region of that side."""

    default_code = Code.NOT_REGISTERED


class OutOfRangeError(KvmendError, IndexError):
    """Beyond the end of a region, or a page index beyond its pool."""

    default_code = Code.OUT_OF_RANGE


class AlreadyExistsError(KvmendError):
    """The region overlaps another, or the room is taken."""

    default_code = Code.ALREADY_EXISTS


class NotFoundError(KvmendError, LookupError):
    """Nobody knows that id."""

    default_code = Code.NOT_FOUND


class PermissionDeniedError(KvmendError):
    """No live grant covers the range, or the region's access forbids it."""

    default_code = Code.PERMISSION_DENIED


class ResourceExhaustedError(KvmendError):
    """A named maximum was reached, or the system is out of something."""

    default_code = Code.RESOURCE_EXHAUSTED


class DeadlineExceededError(KvmendError, TimeoutError):
    """The deadline came first."""

    default_code = Code.DEADLINE_EXCEEDED


class CancelledError(KvmendError):
    """The caller cancelled it."""

    default_code = Code.CANCELLED


class PeerRestartedError(KvmendError, ConnectionError):
    """Another process answers at that address now; the addresses of the old one mean nothing."""

    default_code = Code.PEER_RESTARTED


class ConnectionRefusedError(KvmendError, ConnectionError):
    """Nobody listens at the peer's address."""

    default_code = Code.CONNECTION_REFUSED


class ConnectionResetError(KvmendError, ConnectionError):
    """The connection broke."""

    default_code = Code.CONNECTION_RESET


class PeerSilentError(KvmendError, ConnectionError):
    """No sign of life within the progress deadline."""

    default_code = Code.PEER_SILENT


class ProtocolError(KvmendError):
    """The peer sent something malformed."""

    default_code = Code.PROTOCOL_ERROR


class VersionMismatchError(KvmendError):
    """The two sides have no protocol version in common."""

    default_code = Code.VERSION_MISMATCH


class StaleEpochError(KvmendError):
    """An older epoch lost against a newer one."""

    default_code = Code.STALE_EPOCH


class SessionFailedError(KvmendError, ConnectionError):
    """The session is blacklisted and the request may not wait."""

    default_code = Code.SESSION_FAILED


class ShuttingDownError(KvmendError):
    """This side or the peer is going away."""

    default_code = Code.SHUTTING_DOWN


class AbortedError(KvmendError):
    """The room was aborted, by this side or the other."""

    default_code = Code.ABORTED


class IncompatibleError(KvmendError):
    """The two sides' layouts can't be mapped."""

    default_code = Code.INCOMPATIBLE


class ChecksumMismatchError(KvmendError):
    """The bytes that arrived aren't the bytes that were sent."""

    default_code = Code.CHECKSUM_MISMATCH


class UnavailableError(KvmendError):
    """Not usable yet; asking again later is right."""

    default_code = Code.UNAVAILABLE


class AuthFailedError(KvmendError):
    """The peer didn't prove who it is."""

    default_code = Code.AUTH_FAILED


class InternalError(KvmendError):
    """A bug of kvmend."""

    default_code = Code.INTERNAL


_CLASSES: dict[int, type[KvmendError]] = {
    cls.default_code: cls for cls in KvmendError.__subclasses__()
}


def error_for(code: int, origin: str, detail: str, sys_errno: int = 0) -> KvmendError:
    """The exception that stands for a status of the C++ API."""
    if code in _CLASSES:
        return _CLASSES[code](detail, origin, Code(code), sys_errno)
    return KvmendError(detail, origin, code, sys_errno)
