"""TransferEngine: moves bytes between registered memory of this process and of its peers."""

from __future__ import annotations

import atexit
import contextlib
import operator
import weakref
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from . import _kvmend
from ._kvmend import EngineStats, PreparedPages, SessionInfo, Transfer
from .errors import InvalidArgumentError, KvmendError
from .memory import Access, Memory, address_of

__all__ = ["EngineOptions", "Notification", "TransferEngine", "default_options"]

#: Addresses or lengths: an array (uint64: taken as it is), a sequence of ints, or one int.
Numbers: TypeAlias = npt.NDArray[np.integer] | Sequence[int] | int

DEFAULT_TIMEOUT = 5.0  # seconds, of calls that connect
#: Seconds that a blocking transfer can't be interrupted. Most short ones are over by then.
LINGER = 0.02


class EngineOptions(TypedDict, total=False):
    """Keyword arguments of TransferEngine. Times are seconds; `default_options()` has the defaults.

    What each means stands in the C++ header kvmend/options.h.
    """

    advertise: str
    insecure: bool
    default_deadline: float
    chunk_bytes: int
    window_bytes: int
    window_chunks: int
    spin: float
    shutdown_grace: float
    memory_keeper: bool
    admin_listen: str
    local: str
    data_lanes: int
    congestion: str
    send_buffer_bytes: int
    receive_buffer_bytes: int
    user_timeout: float
    pacing_bytes_per_second: int
    stage_below_bytes: int
    probe: bool
    progress_deadline: float
    heartbeat: float
    connect_deadline: float
    failure_threshold: int
    failure_window: float
    probe_first: float
    probe_max: float
    probe_demand: float
    probe_deadline: float
    probes_in_flight: int
    probes_per_second: int
    probation_transfers: int
    idle_timeout: float
    failed_session_policy: str
    park_max: float
    refused_park_max: float


class Notification(NamedTuple):
    """A message that a peer sent, fetched with `take_notifications`."""

    name: str
    message: bytes


class TransferEngine:
    """One engine: a listener, its registered memory, and sessions with peers that heal themselves.

    Any thread may call any method. Calls that may block release the interpreter lock, and the
    engine's own thread never takes it: a busy Python program delays no heartbeat and no transfer.
    Every method raises a subclass of KvmendError. After fork() the child can't use the engine
    (every call raises InvalidArgumentError that says so); it can make one of its own.

    Use it as a context manager, or call `shutdown()`; leaving the interpreter does it too.
    """

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, **options: Unpack[EngineOptions]
    ) -> None:
        """Starts listening at `host` (numeric; loopback unless insecure=True) and `port` (0: any).

        Raises InvalidArgumentError (an option; names it and its range), PermissionDeniedError (an
        address beyond loopback without `insecure`), ResourceExhaustedError (the port is taken).
        """
        self._engine = _kvmend.Engine({"host": host, "port": port, **options})
        self._session_id = self._engine.session_id
        self._grace = options.get("shutdown_grace", default_options()["shutdown_grace"])
        self._kept: dict[int, object] = {}  # address -> what keeps registered memory alive
        _living.add(self)

    def __enter__(self) -> TransferEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"<kvmend.TransferEngine {self._session_id}>"

    @property
    def session_id(self) -> str:
        """How peers name this engine: "host:port", IPv6 in brackets."""
        return self._session_id

    @property
    def incarnation(self) -> int:
        """The random 64-bit id of this start; another process at the address has another one."""
        return self._engine.incarnation

    @property
    def admin_url(self) -> str:
        """Where /metrics, /healthz, /sessions and the page are; "" without `admin_listen`."""
        return self._engine.admin_url

    # ------------------------------------------------------------------------------------ memory

    def register_memory(self, memory: Memory, access: Access = Access.READ_WRITE) -> int:
        """Makes memory usable for transfers; returns its address.

        `memory`: a C-contiguous array or buffer, which the engine keeps alive until it is
        unregistered, or (address, bytes), which the caller keeps alive.
        `access`: what peers may do with it by address. Raises InvalidArgumentError (no bytes,
        read-only memory that peers may write), AlreadyExistsError (overlaps a region).
        """
        return self.register_batch([memory], access)[0]

    def register_batch(
        self, memories: Sequence[Memory], access: Access = Access.READ_WRITE
    ) -> list[int]:
        """All of them, or none; returns their addresses."""
        found = [address_of(memory) for memory in memories]
        for address, length, _, read_only in found:
            if read_only and access & Access.REMOTE_WRITE:
                raise InvalidArgumentError(
                    f"{length} bytes at {address:#x} are read-only; "
                    "register them with access=Access.REMOTE_READ or NONE"
                )
        self._engine.register_memory([(address, length) for address, length, _, _ in found], access)
        for address, _, keeper, _ in found:
            self._kept[address] = keeper
        return [address for address, _, _, _ in found]

    def unregister_memory(self, memory: Memory | int) -> None:
        """Takes memory back: afterwards no peer and no transfer touches it.

        Running transfers that use it end with NotRegisteredError. Raises NotRegisteredError.
        """
        address = memory if isinstance(memory, int) else address_of(memory)[0]
        self._engine.unregister_memory(address)
        self._kept.pop(address, None)

    # ---------------------------------------------------------------------------------- transfers

    def submit(
        self,
        session_id: str,
        op: str,
        local_addrs: Numbers,
        remote_addrs: Numbers,
        lengths: Numbers,
        *,
        deadline: float | None = None,
        checksum: bool = False,
        urgent: bool = False,
        target_incarnation: int = 0,
        notify: tuple[str, bytes] | None = None,
        linger: float = 0.0,
    ) -> Transfer:
        """Starts a batch of slices and returns at once, however many there are.

        `op`: "write" (ours into the peer's) or "read" (the peer's into ours).
        The three lists have one element per slice; bytes and addresses.
        `deadline`: seconds until it fails with DeadlineExceededError (None: the engine's default).
        `checksum`: XXH3-64 over every frame, checked where it arrives.
        `urgent`: overtakes bulk that hasn't been sent yet.
        `target_incarnation`: fail with PeerRestartedError unless this one answers.
        `notify`: (name, message) that the peer can fetch once the bytes have landed.
        `linger`: seconds that the call may take, the transfer perhaps being over then: this thread
        does the engine's work meanwhile, where the engine's thread sleeps.

        Raises at once: InvalidArgumentError (bad session id, no slice, zero length),
        NotRegisteredError (local address). Everything else is the transfer's result.
        """
        if op not in ("write", "read"):
            raise InvalidArgumentError(f"op is {op!r}, but must be 'write' or 'read'")
        return self._engine.submit(
            session_id,
            op == "write",
            _numbers("local_addrs", local_addrs),
            _numbers("remote_addrs", remote_addrs),
            _numbers("lengths", lengths),
            deadline=_deadline(deadline),
            checksum=checksum,
            urgent=urgent,
            target=target_incarnation,
            notify=notify,
            linger=_seconds("linger", linger),
        )

    def prepare(
        self,
        session_id: str,
        local_bases: Sequence[int],
        remote_bases: Sequence[int],
        page_bytes: int,
        pages: int,
        *,
        remote_pages: int | None = None,
        local_stride: int = 0,
        remote_stride: int = 0,
    ) -> PreparedPages:
        """Checks two layouts once, so that transfers between them need page indices only.

        Each base is the address of a buffer (one for each layer, say) of `pages` pages, here and at
        the peer (there `remote_pages`; None: as many). A stride of 0 is the page size.
        Raises InvalidArgumentError, NotRegisteredError (a local buffer).
        """
        there = pages if remote_pages is None else remote_pages
        return self._engine.prepare(
            session_id,
            list(local_bases),
            list(remote_bases),
            page_bytes,
            (pages, there),
            (local_stride, remote_stride),
        )

    def submit_pages(
        self,
        prepared: PreparedPages,
        op: str,
        local_pages: Numbers,
        remote_pages: Numbers,
        *,
        deadline: float | None = None,
        checksum: bool = False,
        urgent: bool = False,
    ) -> Transfer:
        """Moves page local_pages[i] of every buffer to (or from) remote_pages[i].

        uint32 arrays are taken as they are. Raises InvalidArgumentError, OutOfRangeError (names the
        index); everything else is the transfer's result.
        """
        if op not in ("write", "read"):
            raise InvalidArgumentError(f"op is {op!r}, but must be 'write' or 'read'")
        return self._engine.submit_pages(
            prepared,
            op == "write",
            _page_indices("local_pages", local_pages),
            _page_indices("remote_pages", remote_pages),
            _deadline(deadline),
            checksum,
            urgent,
        )

    def write(
        self,
        session_id: str,
        local_addr: int,
        remote_addr: int,
        length: int,
        *,
        deadline: float | None = None,
        checksum: bool = False,
    ) -> None:
        """Writes one run of bytes; returns once they are in the peer's memory."""
        self.batch_write(
            session_id, local_addr, remote_addr, length, deadline=deadline, checksum=checksum
        )

    def read(
        self,
        session_id: str,
        local_addr: int,
        remote_addr: int,
        length: int,
        *,
        deadline: float | None = None,
        checksum: bool = False,
    ) -> None:
        """Reads one run of bytes; returns once they are in our memory."""
        self.batch_read(
            session_id, local_addr, remote_addr, length, deadline=deadline, checksum=checksum
        )

    def batch_write(
        self,
        session_id: str,
        local_addrs: Numbers,
        remote_addrs: Numbers,
        lengths: Numbers,
        *,
        deadline: float | None = None,
        checksum: bool = False,
    ) -> None:
        """`submit("write")` and wait; an interrupt (Ctrl-C) cancels the transfer."""
        self._transfer(session_id, "write", local_addrs, remote_addrs, lengths, deadline, checksum)

    def batch_read(
        self,
        session_id: str,
        local_addrs: Numbers,
        remote_addrs: Numbers,
        lengths: Numbers,
        *,
        deadline: float | None = None,
        checksum: bool = False,
    ) -> None:
        """`submit("read")` and wait; an interrupt (Ctrl-C) cancels the transfer."""
        self._transfer(session_id, "read", local_addrs, remote_addrs, lengths, deadline, checksum)

    def _transfer(
        self,
        session_id: str,
        op: str,
        local_addrs: Numbers,
        remote_addrs: Numbers,
        lengths: Numbers,
        deadline: float | None,
        checksum: bool,
    ) -> None:
        transfer = self.submit(
            session_id,
            op,
            local_addrs,
            remote_addrs,
            lengths,
            deadline=deadline,
            checksum=checksum,
            linger=LINGER,
        )
        try:
            transfer.wait()  # its deadline ends it
        except KvmendError:
            raise
        except BaseException:
            transfer.cancel()
            raise

    # ----------------------------------------------------------------------------------- sessions

    def open_session(self, session_id: str, timeout: float = DEFAULT_TIMEOUT) -> SessionInfo:
        """Connects if need be, and pins the session to the process that answers.

        After PeerRestartedError this says: I have learnt the new process's addresses.
        Raises what connecting raises, and DeadlineExceededError after `timeout` seconds.
        """
        return self._engine.open_session(session_id, _seconds("timeout", timeout))

    def send_probe(self, session_id: str, timeout: float = DEFAULT_TIMEOUT) -> int:
        """Asks, over connections of its own, whether the peer is usable right now.

        It moves real bytes into a scratch region there and back. Returns 0 for usable, else the
        negative number of the `Code` that stood in the way: -11 (CONNECTION_REFUSED), -13
        (PEER_SILENT), -1 (INVALID_ARGUMENT, e.g. a bad session id)... Blocks up to
        `timeout` seconds; raises only after fork.
        """
        return self._engine.probe(session_id, _seconds("timeout", timeout))

    def peer_regions(
        self, session_id: str, timeout: float = DEFAULT_TIMEOUT
    ) -> list[tuple[int, int]]:
        """(address, bytes) of what the peer registered for access by address."""
        return self._engine.peer_regions(session_id, _seconds("timeout", timeout))

    def sessions(self) -> list[SessionInfo]:
        """Every session as it stands, with its history."""
        return self._engine.sessions()

    def stats(self) -> EngineStats:
        """Counters since the start."""
        return self._engine.stats()

    # ------------------------------------------------------------------------------ notifications

    def notify(
        self, session_id: str, name: str, message: bytes = b"", timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        """Sends a notification without data. `name`: up to 1,024 bytes; `message`: up to 1 MiB."""
        self._engine.notify(session_id, name, message, _seconds("timeout", timeout))

    def take_notifications(self) -> list[Notification]:
        """What arrived since the last call, in order per peer."""
        return [
            Notification(name.decode(errors="backslashreplace"), message)
            for name, message in self._engine.take_notifications()
        ]

    def shutdown(self, grace: float | None = None) -> None:
        """Admits nothing new, waits up to `grace` seconds for what runs, then ends the engine.

        None: the option `shutdown_grace`. What still runs then fails with ShuttingDownError.
        Idempotent.
        """
        self._engine.shutdown(_seconds("grace", grace, self._grace))
        self._kept.clear()


def default_options() -> EngineOptions:
    """Every option with its default; times are seconds."""
    options: EngineOptions = _kvmend.default_options()  # type: ignore[assignment]
    return options


_living: weakref.WeakSet[TransferEngine] = weakref.WeakSet()


@atexit.register
def _shut_down_all() -> None:
    for engine in list(_living):
        if not engine._engine.in_child:
            with contextlib.suppress(KvmendError):
                engine.shutdown()


def _numbers(name: str, value: Numbers) -> npt.NDArray[np.uint64]:
    """A contiguous uint64 array of `value`; InvalidArgumentError for what isn't whole numbers."""
    try:
        if not isinstance(value, np.ndarray):
            items = value if isinstance(value, Sequence) else (value,)
            return np.fromiter(map(operator.index, items), np.uint64, len(items))
        if value.ndim != 1 or (value.size and value.dtype.kind not in "ui"):
            raise ValueError(f"it has shape {value.shape} and dtype {value.dtype}")
        if value.dtype.kind == "i" and value.size and value.min() < 0:
            raise ValueError(f"{value.min()} is negative")
        return np.ascontiguousarray(value, dtype=np.uint64)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidArgumentError(
            f"{name} must be whole numbers from 0 to 2**64 - 1 in one dimension: {error}"
        ) from None


def _page_indices(name: str, value: Numbers) -> npt.NDArray[np.uint32]:
    """A contiguous uint32 array; InvalidArgumentError for what isn't page indices."""
    if isinstance(value, np.ndarray) and value.dtype == np.uint32 and value.ndim == 1:
        return np.ascontiguousarray(value)
    wide = _numbers(name, value)
    if wide.size and wide.max() > np.iinfo(np.uint32).max:
        raise InvalidArgumentError(f"{name} has page {wide.max()}; 2**32 - 1 is the last possible")
    return wide.astype(np.uint32)


def _seconds(name: str, value: float | None, default: float = 0.0) -> float:
    if value is None:
        return default
    if not value >= 0:  # NaN too
        raise InvalidArgumentError(f"{name} is {value}, but must be at least 0 seconds")
    return float(value)


def _deadline(value: float | None) -> float:
    if value is not None and not value > 0:
        raise InvalidArgumentError(f"deadline is {value}, but must be more than 0 seconds")
    return value or 0.0  # 0 stands for the engine's default
