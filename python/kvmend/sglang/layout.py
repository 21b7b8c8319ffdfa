"""SGLang's KVArgs as the layout of kvmend's KV manager. Needs no SGLang: it reads attributes.

Only prefill's KVArgs say how many KV heads there are. So decode's layout leaves the heads to
prefill, whose plan finds out from the bytes of a page which of them a decode rank holds, replicated
ones (more tensor ranks than heads) too. Where prefill doesn't say it either, a page is tokens x
bytes of one token, which tensor ranks divide wherever the heads begin; replicated heads are refused
then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..kv_layout import KVComponent, KVField, KVLayout, KVPool, KVRank, KVShape
from .aux_fields import VERSION, AuxRows, aux_fields_of

__all__ = ["Layout", "layout_of"]

#: Of KV pages; with "hnd" the heads come before the tokens. Others stay whole.
ORDERS = ("nhd", "hnd")


class Layout(NamedTuple):
    """A layout, and which of SGLang's state pools stand in it."""

    layout: KVLayout
    state_slots: tuple[int, ...]  # positions in KVArgs.state_types, in layout order
    divided_states: bool  # tensor ranks hold parts of a state, also where they share the KV cache
    opaque: str  # why pages can't be divided among tensor ranks; "" if they can
    aux_rows: AuxRows

    def states(self, indices: Sequence[Any] | None) -> list[list[int]]:
        """Page numbers of each state pool in the layout, from SGLang's list (None: nothing)."""
        if indices is None:
            return []
        given = [indices[slot] if slot < len(indices) else None for slot in self.state_slots]
        return [[] if one is None else np.asarray(one).ravel().tolist() for one in given]


def layout_of(
    args: Any, rank: KVRank, *, decode: bool = False, mla: bool = False, hnd: bool = False
) -> Layout:
    """`mla`: all tensor ranks hold the same KV cache. `hnd`: SGLang's setting for its KV pools.

    Raises ValueError for pools that can't be moved page by page; it says which and why.
    """
    heads, total_heads = (0, 0) if decode or mla else _heads(args, rank)
    known = decode or heads > 0  # the heads, if only by the other side
    order = _order(args, hnd)
    opaque = "" if mla else _why_opaque(args, order, known=known)
    by_heads = known and not mla and not opaque
    states, why = _state_shapes(args, rank, mla=mla, opaque=bool(opaque), by_heads=by_heads)
    if why and not opaque:
        opaque, by_heads = why, False
        states, _ = _state_shapes(args, rank, mla=mla, opaque=True, by_heads=False)
    if opaque:
        heads = total_heads = 0  # nobody needs them, and decode doesn't know them
    kv_ids = args.kv_layer_ids or _layer_ids(args, rank, mla)
    kv = _component(
        KVPool.KV,
        args.kv_data_ptrs,
        args.kv_data_lens,
        args.kv_item_lens,
        kv_ids,
        args.kv_cache_dtype_str or "",
        []
        if by_heads
        else [_page(args, n, rank, divided=not mla and not opaque) for n in args.kv_item_lens],
    )
    if kv is None:
        raise ValueError(
            "the kvmend backend needs a KV pool of whole pages; this model keeps its KV in state "
            "pools only"
        )
    components = [kv]
    aux = _component(
        KVPool.AUX,
        args.aux_data_ptrs,
        args.aux_data_lens,
        args.aux_item_lens,
        [],
        "",
        fields_of=lambda addresses: aux_fields_of(addresses, decode=decode),
    )
    if aux is not None:
        components.append(aux)
    slots = []
    divided = False
    for slot, kind in enumerate(args.state_types):
        name = _name(kind)
        if name == "dsa_tail":
            raise ValueError(
                "the kvmend backend doesn't move dsa_tail state, which is addressed by bytes of a "
                "row: use --disaggregation-transfer-backend mooncake under `python -m kvmend.exec`"
            )
        try:
            pool = KVPool[name.upper()]
        except KeyError:
            raise ValueError(f"the kvmend backend doesn't know state of kind {name!r}") from None
        state = _component(
            pool,
            args.state_data_ptrs[slot],
            args.state_data_lens[slot],
            args.state_item_lens[slot],
            _entry(args.state_layer_ids, slot),
            "",
            states[slot],
        )
        if state is not None:
            components.append(state)
            slots.append(slot)
            divided |= any(shape.total_columns for shape in state.shapes)
    layout = KVLayout(
        components=components,
        page_tokens=args.page_size,
        kv_heads=1 if mla else heads,
        total_kv_heads=1 if mla else total_heads,
        head_dim=0,
        element_order="opaque" if opaque else "nhd" if mla else order,
        rank=rank,
    )
    aux_rows = AuxRows(aux)
    return Layout(layout, tuple(slots), divided, opaque, aux_rows)


def _heads(args: Any, rank: KVRank) -> tuple[int, int]:
    """KV heads of this rank and of the model; 0, 0 where prefill's KVArgs don't say it, or where it
    doesn't go with the bytes of its pages (draft layers with other heads)."""
    heads = int(getattr(args, "kv_head_num", 0) or 0)
    total = int(getattr(args, "total_kv_head_num", 0) or 0) or heads * rank.tp_size
    whole = total % rank.tp_size == 0 or rank.tp_size % max(total, 1) == 0
    if heads < 1 or not whole or heads != max(1, total // rank.tp_size):
        return 0, 0
    if any(length % (args.page_size * heads) for length in args.kv_item_lens):
        return 0, 0
    return heads, total


def _order(args: Any, hnd: bool) -> str:
    """How tokens and heads follow each other in a KV page."""
    told = getattr(args, "kv_layout", None) or getattr(args, "swa_kv_cache_layout", None)
    return str(told) if told is not None else "hnd" if hnd else "nhd"


def _why_opaque(args: Any, order: str, *, known: bool) -> str:
    """Why tensor ranks can't divide pages. `known`: the heads, if only by the other side."""
    if order not in ORDERS:
        return f"the KV cache's layout is {order}"
    if order == "hnd" and not known:
        return "the KV cache's layout is hnd, and KVArgs don't say how many heads it has"
    if any(length % args.page_size for length in args.kv_item_lens):
        return f"pages of {sorted(set(args.kv_item_lens))} bytes aren't {args.page_size} equal tokens"
    return ""


def _page(args: Any, length: int, rank: KVRank, *, divided: bool) -> KVShape:
    """A page of the KV cache: tokens x bytes of a token."""
    if not divided:
        return KVShape()
    columns = length // args.page_size
    return KVShape(
        rows=args.page_size, columns=columns, total_columns=columns * rank.tp_size
    )


def _layer_ids(args: Any, rank: KVRank, mla: bool) -> list[int]:
    """SGLang leaves them out for plain pools, where a pipeline stage's layers follow each other: all
    K and then all V, or MLA's. Draft layers behind them: none, as the last stage alone has those."""
    entries = len(args.kv_data_ptrs)
    start = getattr(args, "prefill_start_layer", None) or 0
    halves = 1 if mla else 2
    end = getattr(args, "prefill_end_layer", None)
    if getattr(args, "num_draft_entries", 0) or entries % halves or (rank.pp_rank and not start):
        return []
    if rank.pp_size > 1 and end != start + entries // halves:
        return []  # not one K and one V, or one page of both, per layer
    return list(range(start, start + entries // halves)) * halves


def _name(kind: Any) -> str:
    """Of a kind of state: an enumerator of SGLang's, or its value."""
    return str(getattr(kind, "value", kind))


def _state_shapes(
    args: Any, rank: KVRank, *, mla: bool, opaque: bool, by_heads: bool
) -> tuple[list[list[KVShape]], str]:
    """The inside of each state pool's items, and why one can't be divided ("": all can)."""
    shapes = []
    reason = ""
    for slot, kind in enumerate(args.state_types):
        one, why = _shapes_of_state(
            args, slot, _name(kind), rank, mla=mla, opaque=opaque, by_heads=by_heads
        )
        shapes.append(one)
        if any(args.state_data_lens[slot]):
            reason = reason or why
    return shapes, reason


def _shapes_of_state(
    args: Any, slot: int, name: str, rank: KVRank, *, mla: bool, opaque: bool, by_heads: bool
) -> tuple[list[KVShape], str]:
    """The inside of each tensor's items, and why they can't be divided ("": they can)."""
    lengths = args.state_item_lens[slot]
    whole = [KVShape()] * len(lengths)
    if name == "swa" and by_heads:
        return [], ""  # as KV pages
    if name in ("swa", "block_scale", "block_scale_swa") and not mla:
        if opaque or any(length % args.page_size for length in lengths):
            return whole, f"{name} state isn't pages of equal tokens"
        return [_page(args, n, rank, divided=True) for n in lengths], ""
    if name != "mamba":
        return whole, ""  # what every tensor rank has as a whole
    dims = _entry(getattr(args, "state_dim_per_tensor", None), slot)
    if len(dims) != len(lengths):
        return whole, "KVArgs don't say how mamba state is divided"
    rows = _entry(getattr(args, "state_slice_outer_counts", None), slot)
    groups = _entry(getattr(args, "state_conv_shard_groups", None), slot)
    shapes = []
    for i, dim in enumerate(dims):
        total = dim * rank.tp_size
        blocks = groups[i] if i < len(groups) else None
        shapes.append(
            KVShape(
                rows=rows[i] if i < len(rows) and dim else 1,
                columns=max(dim, 1),
                total_columns=total,
                groups=blocks if blocks and sum(blocks) == total else (),
            )
        )
    return shapes, ""


def _entry(lists: Any, slot: int) -> Any:
    """KVArgs' lists of lists may be shorter than the list of states."""
    return (lists[slot] or []) if lists and slot < len(lists) else []


def _component(
    pool: KVPool,
    addresses: Sequence[int],
    lengths: Sequence[int],
    item_lens: Sequence[int],
    layer_ids: Sequence[int] | None,
    dtype: str,
    shapes: Sequence[KVShape] = (),
    fields_of: Callable[[Sequence[int]], list[KVField]] = lambda _: [],
) -> KVComponent | None:
    """None when there is nothing in it: SGLang lists layers without a pool with 0 bytes.

    `shapes`: of every buffer, or none.
    """
    keep = [i for i, length in enumerate(lengths) if length > 0 and item_lens[i] > 0]
    if not keep:
        return None
    ids = list(layer_ids or [])
    usable = len(ids) == len(lengths) and all(one >= 0 for one in ids)
    distinct: list[KVShape] = []
    for i in keep if shapes else ():
        if shapes[i] not in distinct:
            distinct.append(shapes[i])
    return KVComponent(
        buffers=[(int(addresses[i]), int(lengths[i])) for i in keep],
        item_len=[int(item_lens[i]) for i in keep],
        pool=pool,
        dtype=dtype,
        layer_ids=[int(ids[i]) for i in keep] if usable else (),
        shapes=distinct,
        shape_of=[distinct.index(shapes[i]) for i in keep] if len(distinct) > 1 else (),
        fields=fields_of([int(addresses[i]) for i in keep]),
        fields_version=VERSION,
    )
