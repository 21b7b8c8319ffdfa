"""The KV manager: rooms, in which the pages of one request move from prefill to decode."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from . import _kvmend
from ._kvmend import ManagerStats, RoomMetrics
from .engine import TransferEngine
from .errors import InvalidArgumentError, KvmendError
from .memory import Memory, address_of

__all__ = [
    "KVComponent",
    "KVLayout",
    "KVManager",
    "KVPoll",
    "KVPool",
    "KVRank",
    "KVReceiver",
    "KVSender",
]

#: Page numbers: an array (uint32: taken as it is) or a sequence of ints.
Pages: TypeAlias = npt.NDArray[np.integer] | Sequence[int]


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


class KVPool(enum.IntEnum):
    """What a pool holds; the state pools have SGLang's names."""

    KV = 0
    AUX = 1
    MAMBA = 2
    QSA_PENDING = 3
    QSA_COMPRESSED = 4
    SWA = 5
    DSA = 6
    DSA_TAIL = 7
    MINIMAX_INDEX_K = 8
    MINIMAX_DENSE_KV = 9
    SWA_RING = 10
    C128_STATE = 11
    REQUEST_ROW = 12
    BLOCK_SCALE = 13
    BLOCK_SCALE_SWA = 14


@dataclass
class KVComponent:
    """Buffers that share their page numbers: usually K and V of every layer.

    `buffers`: one per layer and kind, each `items * item_len` bytes or more, page p at
    `p * item_len`; arrays, buffers or (address, bytes).
    `item_len`: bytes of one page in one buffer; one number for all, or one per buffer.
    `items`: pages in each buffer; 0: as many as fit in the smallest.
    `dtype`: compared with the peer's as text.
    """

    buffers: Sequence[Memory]
    item_len: int | Sequence[int]
    items: int = 0
    pool: KVPool = KVPool.KV
    dtype: str = ""
    layer_ids: Sequence[int] = ()
    #: (address, item_len) of each buffer, filled in from the above
    buffer_list: list[tuple[int, int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        lengths = self.item_len
        if not isinstance(lengths, Sequence):
            lengths = [lengths] * len(self.buffers)
        if len(lengths) != len(self.buffers):
            raise InvalidArgumentError(f"{len(self.buffers)} buffers, but {len(lengths)} item_lens")
        if not all(length > 0 for length in lengths):
            raise InvalidArgumentError(f"item_len is {self.item_len}, but must be positive")
        found = [address_of(buffer) for buffer in self.buffers]
        fit = min((n // i for (_, n, _, _), i in zip(found, lengths, strict=True)), default=0)
        if self.items > fit:
            raise InvalidArgumentError(
                f"{self.items} items don't fit: the smallest buffer holds {fit}"
            )
        self.items = self.items or fit
        self.layer_ids = list(self.layer_ids)
        self.buffer_list = [(f[0], length) for f, length in zip(found, lengths, strict=True)]


@dataclass(frozen=True)
class KVRank:
    """Coordinates of a rank among the instance's ranks."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    dp_rank: int = 0
    dp_size: int = 1
    cp_rank: int = 0
    cp_size: int = 1


@dataclass
class KVLayout:
    """The pools of one rank: exactly one KV component, at most one AUX, any state pools."""

    components: Sequence[KVComponent]
    page_tokens: int
    kv_heads: int
    head_dim: int
    element_order: str = "nhd"  # "nhd", "hnd" or "opaque"
    rank: KVRank = KVRank()


class KVManager:
    """One per engine and role ("prefill" or "decode") at a time. Any thread.

    Registers the layout's buffers with the engine, closed to access by address: only rooms open
    them, page by page. It keeps the engine and the buffers alive.
    """

    def __init__(
        self,
        engine: TransferEngine,
        role: str,
        layout: KVLayout,
        *,
        room_deadline: float = 60.0,
        announced_ttl: float = 60.0,
        checksum: bool = False,
    ) -> None:
        """
        `room_deadline`: seconds until a room has ended, one way or the other.
        `announced_ttl`: seconds that prefill keeps a room which no sender has claimed.
        `checksum`: XXH3-64 over every frame of pages.

        Raises InvalidArgumentError (the layout or an option; names the value), or what
        registering memory raises.
        """
        if role not in ("prefill", "decode"):
            raise InvalidArgumentError(f"role is {role!r}, but must be 'prefill' or 'decode'")
        self.engine = engine
        self.role = role
        self.layout = layout
        self._manager = _kvmend.Manager(
            engine._engine, role == "decode", layout, room_deadline, announced_ttl, checksum
        )

    def __enter__(self) -> KVManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.teardown()

    def stats(self) -> ManagerStats:
        """Rooms now, and in total."""
        return self._manager.stats()

    def teardown(self) -> None:
        """Ends every room with ShuttingDownError and takes the buffers back; the engine goes on.

        Idempotent.
        """
        self._manager.teardown()


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

    def clear(self) -> None:
        """Gives the room's number up; a room that hasn't ended is aborted."""
        self._end.clear()

    def metrics(self) -> RoomMetrics:
        """What the room cost until now, or to its end."""
        return self._end.metrics()

    def __repr__(self) -> str:
        return f"<kvmend.{type(self).__name__} room {self.room}: {self.poll().name}>"


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

        Raises InvalidArgumentError (called twice), OutOfRangeError (aux_index).
        """
        self._end.init(num_pages, aux_index)

    def send(self, pages: Pages, states: Sequence[Sequence[int]] = ()) -> None:
        """Queues a chunk: `pages` go to the next pages of the room, in order. Never blocks for it.

        The chunk that completes `num_pages` is the last; aux and `states` (page numbers of each
        state pool) go with it. May be called before decode has announced the room. Raises
        InvalidArgumentError, OutOfRangeError (names page and pool size) while the room goes on,
        and the room's failure once it has one.
        """
        self._end.send(_pages(pages), [list(indices) for indices in states])


class KVReceiver(_Room):
    """Decode's end of a room. Once it is over nobody can write the destination pages any more.

    A second receiver of a live room ends at once with AlreadyExistsError; the first goes on.
    """

    def __init__(
        self, manager: KVManager, prefill_sessions: str | Sequence[str], room: int
    ) -> None:
        """`prefill_sessions`: session ids of every prefill engine that writes into this room."""
        if isinstance(prefill_sessions, str):
            prefill_sessions = [prefill_sessions]
        self._end: _kvmend.Receiver = _kvmend.Receiver(
            manager._manager, list(prefill_sessions), _room_number(room)
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
    ) -> None:
        """Announces where the room goes; from now on those pages, and no others, may be written.

        `pages` in the order of the tokens, each once; `aux_index`: row of the aux pool. Once only.
        Raises InvalidArgumentError, OutOfRangeError (names page and pool size); the room goes on.
        """
        self._end.send_metadata(
            _pages(pages), aux_index, [list(indices) for indices in states], prefix_tokens
        )

    def abort_acknowledged(self) -> bool:
        """Whether every prefill engine has answered the abort; elsewhere than on one-sided
        hardware the revoked grant is proof enough."""
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


def _room_number(room: int) -> int:
    if not 0 <= room < 2**63:
        raise InvalidArgumentError(f"room {room} must be from 0 to 2**63 - 1")
    return room
