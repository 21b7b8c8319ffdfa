"""SGLang's KVArgs as the layout of kvmend's KV manager. Needs no SGLang: it reads attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..kv_layout import KVComponent, KVLayout, KVPool, KVRank

__all__ = ["Layout", "layout_of"]


class Layout(NamedTuple):
    """A layout, and which of SGLang's state pools stand in it."""

    layout: KVLayout
    state_slots: tuple[int, ...]  # positions in KVArgs.state_types, in layout order

    def states(self, indices: Sequence[Any] | None) -> list[list[int]]:
        """Page numbers of each state pool in the layout, from SGLang's list (None: nothing)."""
        if indices is None:
            return []
        given = [indices[slot] if slot < len(indices) else None for slot in self.state_slots]
        return [[] if one is None else np.asarray(one).ravel().tolist() for one in given]


def layout_of(args: Any, rank: KVRank) -> Layout:
    """Raises ValueError for pools that can't be moved page by page; it says which and why."""
    kv = _component(
        KVPool.KV,
        args.kv_data_ptrs,
        args.kv_data_lens,
        args.kv_item_lens,
        args.kv_layer_ids,
        args.kv_cache_dtype_str or "",
    )
    if kv is None:
        raise ValueError(
            "the kvmend backend needs a KV pool of whole pages; this model keeps its KV in state "
            "pools only"
        )
    components = [kv]
    aux = _component(KVPool.AUX, args.aux_data_ptrs, args.aux_data_lens, args.aux_item_lens, [], "")
    if aux is not None:
        components.append(aux)
    slots = []
    for slot, kind in enumerate(args.state_types):
        name = str(getattr(kind, "value", kind))
        if name == "dsa_tail":
            raise ValueError(
                "the kvmend backend doesn't move dsa_tail state, which is addressed by bytes of a "
                "row: use --disaggregation-transfer-backend mooncake under `python -m kvmend.exec`"
            )
        try:
            pool = KVPool[name.upper()]
        except KeyError:
            raise ValueError(f"the kvmend backend doesn't know state of kind {name!r}") from None
        layer_ids = args.state_layer_ids[slot] if slot < len(args.state_layer_ids) else []
        state = _component(
            pool,
            args.state_data_ptrs[slot],
            args.state_data_lens[slot],
            args.state_item_lens[slot],
            layer_ids,
            "",
        )
        if state is not None:
            components.append(state)
            slots.append(slot)
    layout = KVLayout(
        components=components,
        page_tokens=args.page_size,
        # KVArgs doesn't say how heads and elements lie in a page: pages move as they are.
        kv_heads=1,
        head_dim=kv.buffer_list[0][1] // args.page_size,
        element_order="opaque",
        rank=rank,
    )
    return Layout(layout, tuple(slots))


def _component(
    pool: KVPool,
    addresses: Sequence[int],
    lengths: Sequence[int],
    item_lens: Sequence[int],
    layer_ids: Sequence[int] | None,
    dtype: str,
) -> KVComponent | None:
    """None when there is nothing in it: SGLang lists layers without a pool with 0 bytes."""
    keep = [i for i, length in enumerate(lengths) if length > 0 and item_lens[i] > 0]
    if not keep:
        return None
    ids = list(layer_ids or [])
    usable = len(ids) == len(lengths) and all(one >= 0 for one in ids)
    return KVComponent(
        buffers=[(int(addresses[i]), int(lengths[i])) for i in keep],
        item_len=[int(item_lens[i]) for i in keep],
        pool=pool,
        dtype=dtype,
        layer_ids=[int(ids[i]) for i in keep] if usable else (),
    )
