"""The KV manager: rooms, in which the pages of one request move from prefill to decode."""

from __future__ import annotations

import enum
import operator
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from . import _kvmend
from ._kvmend import Gate as KVGate
from ._kvmend import ForeignStats, ManagerStats, RoomMetrics
from .engine import TransferEngine
from .errors import InvalidArgumentError, KvmendError
from .foreign import Foreign, ForeignEngine, ForeignOptions
from .kv_layout import KVLayout

__all__ = [
    "KVGate",
    "KVManager",
    "KVPoll",
    "KVReceiver",
    "KVSender",
    "KVSource",
]

#: Page numbers: an array (uint32: taken as it is) or a sequence of ints.
Pages: TypeAlias = npt.NDArray[np.integer] | Sequence[int]


#: Seconds past its room's deadline; far more than a call of Mooncake's takes after its return.
FOREIGN_UNPROVEN_AFTER = 60.0


class KVPoll(enum.IntEnum):
    """Where a room stands. FAILED and SUCCESS are final; ranks combine by the minimum."""

    FAILED = 0
    BOOTSTRAPPING = 1
    WAITING_FOR_INPUT = 2
    TRANSFERRING = 3
    SUCCESS = 4

    @property
    def is_terminal(self) -> bool:
        return self in (KVPoll.FAILED, KVPoll.SUCCESS)


class KVManager:
    """One per engine and role ("prefill" or "decode") at a time. Any thread.

    Registers the layout's buffers with the engine, closed to access by address: only rooms open
    them, page by page. It keeps the engine and the buffers alive.
    """

    def __init__(
        self,
        engine: TransferEngine | ForeignEngine,
        role: str,
        layout: KVLayout,
        *,
        room_deadline: float = 60.0,
        announced_ttl: float = 60.0,
        checksum: bool = False,
        parked_share_per_session: float = 0.25,
        parked_share: float = 0.5,
        quarantine_share: float = 0.25,
        quarantine_unproven_after: float | None = None,
        foreign: ForeignOptions | None = None,
    ) -> None:
        """
        `engine`: kvmend's, or any object with Mooncake's engine API, Mooncake's own included: then
        that one moves the pages, with weaker guarantees (docs/integrations-mooncake.md), and
        `foreign` says how it is used.
        `room_deadline`: seconds until a room has ended, one way or the other.
        `announced_ttl`: seconds that prefill keeps a room which no sender has claimed.
        `checksum`: XXH3-64 over every frame of pages.
        `parked_share_per_session`, `parked_share`: how much of the KV pool (0 to 1) may wait for
        one blacklisted decode, and for all of them; beyond that a room fails at once
        (SessionFailedError). With a single decode both may be 1.
        `quarantine_share`, `quarantine_unproven_after`: only over engines that can't check grants:
        how much of the KV pool (0 to 1) may wait for the proof that nobody touches it any more
        before new rooms are refused (ResourceExhaustedError), and after how many seconds beyond its
        deadline a room's pages are given back without one (0: never; None: never, but 60 over a
        foreign engine).

        Raises InvalidArgumentError (the layout or an option; names the value), or what
        registering memory raises.
        """
        if role not in ("prefill", "decode"):
            raise InvalidArgumentError(f"role is {role!r}, but must be 'prefill' or 'decode'")
        for number, component in enumerate(layout.components):
            if role == "decode" and component.read_only:
                raise InvalidArgumentError(
                    f"component {number}: buffer {component.read_only[0]} is read-only, "
                    "but prefill writes into decode's buffers"
                )
        self.engine = engine
        self.role = role
        self.layout = layout
        self._foreign: Foreign | None = None
        if isinstance(engine, TransferEngine):
            if foreign is not None:
                raise InvalidArgumentError("foreign options are for engines that aren't kvmend's")
            control = engine
        else:
            if checksum:
                raise InvalidArgumentError("a foreign engine's writes have no checksums")
            self._foreign = Foreign(engine, layout, foreign or {})
            control = self._foreign.control
        self._control = control
        if quarantine_unproven_after is None:
            quarantine_unproven_after = FOREIGN_UNPROVEN_AFTER if self._foreign else 0.0
        try:
            self._manager = _kvmend.Manager(
                control._engine, role == "decode", layout, room_deadline, announced_ttl, checksum,
                parked_share_per_session, parked_share, quarantine_share, quarantine_unproven_after,
                None if self._foreign is None else self._foreign.calls,
            )
        except BaseException:
            if self._foreign is not None:
                self._foreign.close()
            raise
        if self._foreign is not None:
            self._foreign.start()

    @property
    def control(self) -> TransferEngine:
        """The kvmend engine that carries the messages: `engine` itself unless that is foreign."""
        return self._control

    def __enter__(self) -> KVManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.teardown()

    @property
    def session_id(self) -> str:
        """How peers' managers name this one: of kvmend's engine, also beside a foreign one."""
        return self._control.session_id

    def stats(self) -> ManagerStats:
        """Rooms now, and in total."""
        return self._manager.stats()

    def foreign_stats(self) -> ForeignStats | None:
        """What was done with a foreign engine; None: the engine is kvmend's."""
        return None if self._foreign is None else self._foreign.calls.stats()

    def teardown(self) -> None:
        """Ends every room with ShuttingDownError and takes the buffers back; the engine goes on.

        Idempotent.
        """
        self._manager.teardown()
        if self._foreign is not None:
            self._foreign.close()


class _Room:
    """What the two ends of a room have in common. Any thread."""

    _end: _kvmend.Sender | _kvmend.Receiver

    @property
    def room(self) -> int:
        """The room's number."""
        return self._end.room

    def poll(self) -> KVPoll:
        """Where the room stands. Never blocks."""
        return KVPoll(self._end.poll())

    def wait(self, timeout: float | None = None) -> KVPoll:
        """Waits until the room has ended, or `timeout` seconds; returns poll()."""
        return self.wait_for(KVPoll.SUCCESS, timeout)

    def wait_for(self, status: KVPoll, timeout: float | None = None) -> KVPoll:
        """Waits until the room has come to `status` or has ended, or `timeout` seconds."""
        return KVPoll(self._end.wait_for(status, timeout))

    def abort(self, reason: str = "aborted by the caller") -> None:
        """Ends the room with AbortedError and tells the other side. No effect once it is over."""
        self._end.abort(reason)

    def failure_exception(self) -> KvmendError | None:
        """The first cause of the failure, or None while the room hasn't failed."""
        try:
            self._end.raise_failure()
        except KvmendError as error:
            return error
        return None

    def raise_failure(self) -> None:
        """Raises the first cause if the room has failed."""
        self._end.raise_failure()

    def pages_released(self) -> bool:
        """Whether the room's pages may be used for something else.

        Over kvmend's own engine: the room has ended. Over engines that can't check grants the pages
        of a failed room stay quarantined until it is proven that nobody touches them any more.
        """
        return self._end.pages_released()

    def clear(self) -> None:
        """Gives the room's number up; a room that hasn't ended is aborted."""
        self._end.clear()

    def metrics(self) -> RoomMetrics:
        """What the room cost until now, or to its end."""
        return self._end.metrics()

    def __repr__(self) -> str:
        return f"<kvmend.{type(self).__name__} room {self.room}: {self.poll().name}>"


class KVSource(NamedTuple):
    """One prefill engine of a room. `map_kv_ranks` tells who they are.

    `destinations`: how many decode engines it serves in this room, this one included.
    `dummy`: it writes nothing here, and only has to know of the room.
    """

    session: str
    destinations: int = 1
    dummy: bool = False


class KVSender(_Room):
    """Prefill's end of a room. Once it is over nothing reads the source pages any more.

    A second sender of a live room ends at once with AlreadyExistsError; the first goes on.
    """

    def __init__(self, manager: KVManager, room: int, decode_session: str = "") -> None:
        """`room`: 63 bits. `decode_session`: if given, no other engine may announce this room."""
        self._end: _kvmend.Sender = _kvmend.Sender(
            manager._manager, _room_number(room), decode_session
        )

    @property
    def prefix_tokens(self) -> int:
        """Tokens at the front that decode has already; 0 while the room is BOOTSTRAPPING."""
        return self._end.prefix_tokens

    @property
    def decode_session(self) -> str:
        """Session id of the decode engine that announced the pages; "" while BOOTSTRAPPING."""
        return self._end.decode_session

    def init(self, num_pages: int, aux_index: int | None = None) -> None:
        """Says how many pages all `send`s together will bring, and the row of the aux pool.

        Raises InvalidArgumentError (called twice, no number), OutOfRangeError (aux_index).
        """
        row = None if aux_index is None else _number("aux_index", aux_index, 2**32)
        self._end.init(_number("num_pages", num_pages, 2**32), row)

    def send(
        self,
        pages: Pages,
        states: Sequence[Sequence[int]] = (),
        ready: KVGate | None = None,
    ) -> None:
        """Queues a chunk: `pages` go to the next pages of the room, in order. Never blocks for it.

        The chunk that completes `num_pages` is the last; aux and `states` (page numbers of each
        state pool) go with it. May be called before decode has announced the room. Raises
        InvalidArgumentError, OutOfRangeError (names page and pool size) while the room goes on,
        and the room's failure once it has one.

        With `ready` the pages aren't read before that gate is open; later chunks go past this one.
        """
        self._end.send(_pages(pages), _states(states), ready)


class KVReceiver(_Room):
    """Decode's end of a room. Once it is over nobody can write the destination pages any more.

    A second receiver of a live room ends at once with AlreadyExistsError; the first goes on.
    """

    def __init__(
        self,
        manager: KVManager,
        prefill_sessions: str | Sequence[str | KVSource],
        room: int,
    ) -> None:
        """`prefill_sessions`: of every prefill engine that writes into this room or must know of
        it; a session id stands for KVSource(session)."""
        if isinstance(prefill_sessions, str):
            prefill_sessions = [prefill_sessions]
        sources = [KVSource(one) if isinstance(one, str) else one for one in prefill_sessions]
        self._end: _kvmend.Receiver = _kvmend.Receiver(
            manager._manager,
            [(one.session, one.destinations, one.dummy) for one in sources],
            _room_number(room),
        )

    def init(self) -> None:
        """Makes the room ready: WAITING_FOR_INPUT."""
        self._end.init()

    def send_metadata(
        self,
        pages: Pages,
        aux_index: int | None = None,
        states: Sequence[Sequence[int]] = (),
        prefix_tokens: int = 0,
        device_pages: Pages = (),
    ) -> None:
        """Announces where the room goes; from now on those pages, and no others, may be written.

        `pages` in the order of the tokens, each once; `aux_index`: row of the aux pool;
        `device_pages`: of the KV_DEVICE pool. `prefix_tokens`: that decode has already (with dcp a
        multiple of page_tokens * dcp_size). Once only.
        Raises InvalidArgumentError, OutOfRangeError (names page and pool size); the room goes on.
        Raises the room's own reason if it has ended already.
        """
        self._end.send_metadata(
            _pages(pages),
            None if aux_index is None else _number("aux_index", aux_index, 2**32),
            _states(states),
            _number("prefix_tokens", prefix_tokens, 2**32),
            _pages(device_pages),
        )

    def aux_fields(self) -> list[str]:
        """The names of the aux fields that prefill brings, once all its engines have taken the
        layout; none before that, and without named fields."""
        return self._end.aux_fields()

    def abort_acknowledged(self) -> bool:
        """Whether every prefill engine has answered the abort, or is known to be another process.
        See `pages_released` for the pages."""
        return self._end.abort_acknowledged()


def _pages(pages: Pages) -> npt.NDArray[np.uint32]:
    array = np.asarray(pages)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "ui"):
        raise InvalidArgumentError(
            "pages must be whole numbers in one dimension, "
            f"not shape {array.shape} of {array.dtype}"
        )
    if array.size and not (0 <= array.min() and array.max() < 2**32):
        raise InvalidArgumentError(
            f"pages from {array.min()} to {array.max()} must be from 0 to 2**32 - 1"
        )
    return np.ascontiguousarray(array, dtype=np.uint32)


def _states(states: Sequence[Sequence[int]]) -> list[list[int]]:
    return [_pages(indices).tolist() for indices in states]


def _number(name: str, value: int, end: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgumentError(f"{name}={value!r:.200} must be a whole number") from None
    if not 0 <= number < end:
        raise InvalidArgumentError(f"{name}={number} must be from 0 to 2**{end.bit_length() - 1} - 1")
    return number


def _room_number(room: int) -> int:
    return _number("room", room, 2**63)
