"""What a rank's pools look like, and which ranks talk to which (docs/kv-layouts.md)."""

from __future__ import annotations

import enum
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import _kvmend
from .errors import InvalidArgumentError
from .memory import Memory, address_of

__all__ = [
    "KVComponent",
    "KVField",
    "KVLayout",
    "KVPool",
    "KVRank",
    "KVRankMap",
    "KVServer",
    "KVShape",
    "KVShare",
    "choose_dp_rank",
    "map_kv_ranks",
]


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
    #: Decode: layers of the KV cache with page numbers of their own (`device_pages`).
    KV_DEVICE = 15


class KVShare(enum.IntEnum):
    """Prefill: what each of the ranks brings that hold the same heads."""

    LEADER = 0  # context rank 0 brings everything
    LAYERS = 1  # each context rank brings the layers that its layout lists
    RANGES = 2  # each context rank brings its contiguous part of a room's pages
    #: Logical page l lies on rank l % n as local page l // n; n: the context ranks, or without
    #: context parallelism the tensor ranks. Page numbers of `send` are logical.
    INTERLEAVED = 3


@dataclass(frozen=True)
class KVShape:
    """The inside of a page: rows x columns of elements of equal size.

    Tensor parallelism divides columns (heads, channels); decode context parallelism rows of KV
    pages (tokens). `total_columns` 0: not divided, every rank holds the same. `columns_first`:
    [column][row][element]. `groups`: columns of blocks that are divided each for itself.
    """

    rows: int = 1
    columns: int = 1
    total_columns: int = 0
    columns_first: bool = False
    groups: Sequence[int] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", list(self.groups))


def _size(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if isinstance(value, bool) or not 0 <= number < 2**64:
        raise InvalidArgumentError(f"{name}={value!r:.200} must be an int from 0 to {2**64 - 1}")
    return int(number)


@dataclass(frozen=True)
class KVField:
    """A named part of each row of the aux pool: what both sides name moves, by name.

    `bytes` 0: up to the end of the row. `dtype`: compared as text. `required`: a peer without this
    field is refused.
    """

    name: str
    buffer: int = 0
    offset: int = 0
    bytes: int = 0
    dtype: str = ""
    required: bool = False


@dataclass
class KVComponent:
    """Buffers that share their page numbers: usually K and V of every layer.

    `buffers`: one per layer and kind, each `items * item_len` bytes or more, page p at
    `p * item_len`; arrays, buffers or (address, bytes).
    `item_len`: bytes of one page in one buffer; one number for all, or one per buffer. 0: elided,
    nothing moves for that buffer.
    `items`: pages in each buffer; 0: as many as fit in the smallest.
    `dtype`: compared with the peer's as text.
    `layer_ids`: the model's layer of each buffer; needed where the sides have different layers.
    `shapes`, `shape_of`: the inside of pages, and which one each buffer has (none: the first).
    None at all: KV and SWA pages are page_tokens x kv_heads, others aren't divided.
    `optional`: numbers of buffers that needn't be written (decode: layers that prefill may lack).
    `fields` (aux only): the named parts of a row, at most 256; a name alone stands for the whole row
    of the buffer at its position. Both sides name fields or neither; the common ones move
    (KVReceiver.aux_fields), unless one is `required` and missing, or differs in size or dtype.
    `fields_version`: of the fields' meaning; sides with different ones refuse each other.
    """

    buffers: Sequence[Memory]
    item_len: int | Sequence[int]
    items: int = 0
    pool: KVPool = KVPool.KV
    dtype: str = ""
    layer_ids: Sequence[int] = ()
    shapes: Sequence[KVShape] = ()
    shape_of: Sequence[int] = ()
    optional: Sequence[int] = ()
    fields: Sequence[KVField | str] = ()
    fields_version: int = 1
    #: `fields`, none of them a name alone
    field_list: list[KVField] = field(init=False, repr=False)
    #: (address, item_len, shape, optional) of each buffer, filled in from the above
    buffer_list: list[tuple[int, int, int, bool]] = field(init=False, repr=False)
    #: numbers of the buffers that can't be written: for prefill only
    read_only: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        lengths = self.item_len
        count = len(self.buffers)
        if not isinstance(lengths, Sequence) or isinstance(lengths, str):
            lengths = [lengths] * count
        lengths = [_size("item_len", length) for length in lengths]
        self.items = _size("items", self.items)
        if len(lengths) != count:
            raise InvalidArgumentError(f"{count} buffers, but {len(lengths)} item_lens")
        if count and not any(lengths):
            raise InvalidArgumentError(f"item_len is {self.item_len}, but must be positive")
        shape_of = list(self.shape_of) or [0] * count
        if len(shape_of) != count:
            raise InvalidArgumentError(f"{count} buffers, but {len(shape_of)} shapes")
        found = [
            address_of(buffer) if length else (0, 0, None, False)
            for buffer, length in zip(self.buffers, lengths, strict=True)
        ]
        fit = min((f[1] // n for f, n in zip(found, lengths, strict=True) if n), default=0)
        if self.items > fit:
            raise InvalidArgumentError(
                f"{self.items} items don't fit: the smallest buffer holds {fit}"
            )
        self.items = self.items or fit
        self.read_only = [i for i, f in enumerate(found) if f[3]]
        self.layer_ids = list(self.layer_ids)
        self.field_list = [
            KVField(one, buffer=i) if isinstance(one, str) else one
            for i, one in enumerate(self.fields)
        ]
        self.buffer_list = [
            (f[0], length, shape, i in self.optional)
            for i, (f, length, shape) in enumerate(zip(found, lengths, shape_of, strict=True))
        ]


@dataclass(frozen=True)
class KVRank:
    """Coordinates of a rank among the instance's ranks; tp is the attention's."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    dp_rank: int = 0
    dp_size: int = 1
    cp_rank: int = 0
    cp_size: int = 1
    dcp_rank: int = 0  # decode context parallelism: holds tokens t with t % dcp_size == dcp_rank
    dcp_size: int = 1


@dataclass
class KVLayout:
    """The pools of one rank: exactly one KV component, at most one AUX, any state pools.

    `kv_heads`: of this rank; 0, not known: decode's pages are divided by prefill's heads, where
    their bytes come to as many as its rank holds; prefill's pages are never divided.
    `total_kv_heads`: of the model; 0: kv_heads * tp_size. Fewer than tp_size: ranks that follow
    each other hold the same head; 1 for MLA.
    """

    components: Sequence[KVComponent]
    page_tokens: int
    kv_heads: int
    head_dim: int
    element_order: str = "nhd"  # "nhd", "hnd" or "opaque"
    rank: KVRank = KVRank()
    total_kv_heads: int = 0
    share: KVShare = KVShare.LEADER


class KVServer(NamedTuple):
    """A prefill rank that a decode rank talks to; `writes`: not only with copies of another's."""

    tp_rank: int
    pp_rank: int
    cp_rank: int
    writes: bool


class KVRankMap(NamedTuple):
    """Whom a decode rank talks to."""

    servers: list[KVServer]  # their sessions are the receiver's prefill sessions
    required_responses: int  # as SGLang counts them
    required_destinations: int  # decode ranks that each of the servers serves


def map_kv_ranks(
    decode: KVRank,
    *,
    tp_size: int = 1,
    pp_size: int = 1,
    cp_size: int = 1,
    share: KVShare = KVShare.LEADER,
    total_kv_heads: int = 0,
    divided_states: bool = False,
) -> KVRankMap:
    """The ranks of a prefill instance (whose sizes are given) that serve a decode rank.

    `divided_states`: some state pool is divided among tensor ranks, so that all of them write.
    Raises IncompatibleError, naming both sides' sizes, where no mapping exists.
    """
    servers, responses, destinations = _kvmend.map_kv_ranks(
        tp_size, pp_size, cp_size, share, total_kv_heads, divided_states, decode
    )
    return KVRankMap([KVServer(*one) for one in servers], responses, destinations)


def choose_dp_rank(
    room: int, dp_size: int, *, given: int | None = None, follow_room: bool = True
) -> int | None:
    """The data-parallel rank of prefill for a room: `given`, room % dp_size, or None: ask."""
    return _kvmend.choose_dp_rank(given, follow_room, room, dp_size)
