"""Decode's worker: what it knows about prefill ranks, and how their blocks map onto its own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from kvmend import TransferEngine

from .descriptor import Descriptor
from .fetch import Fetch
from .geometry import Incompatible, LayerGeometry, Runs, match
from .offers import Offer, RankAddress
from .tensor_parallel import Source, heads_of, readers, sources

__all__ = ["Identity", "Peers", "RankPlan"]

MAX_PEERS = 4096  # descriptors kept

Numbers = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Identity:
    """A rank of this instance: its place and its caches (staged ones, if it stages)."""

    tp_rank: int
    tp_size: int
    kv_heads: int  # of the model
    block_tokens: int
    traits: dict[str, str]
    layers: tuple[LayerGeometry, ...]

    @property
    def divisible(self) -> bool:
        """Whether every layer's heads are this rank's share of the model's."""
        share = len(heads_of(self.tp_rank, self.tp_size, self.kv_heads))
        return all(layer.heads == share for layer in self.layers)


@dataclass(frozen=True)
class RankPlan:
    """The bytes of a block that come from one prefill rank, layer by layer."""

    layers: tuple[tuple[LayerGeometry, LayerGeometry, Runs], ...]

    def slices(self, here: Sequence[int], there: Sequence[int]) -> tuple[Numbers, Numbers, Numbers]:
        """(local addresses, remote addresses, lengths) that fill blocks `here` from `there`."""
        ours, theirs = (np.asarray(b, dtype=np.uint64)[:, None] for b in (here, there))
        found: list[tuple[Numbers, Numbers, Numbers]] = []
        for a, b, runs in self.layers:
            local = np.uint64(a.address) + ours * np.uint64(a.block_stride) + runs.here
            remote = np.uint64(b.address) + theirs * np.uint64(b.block_stride) + runs.there
            lengths = np.broadcast_to(runs.lengths, local.shape)
            found.append((local.ravel(), remote.ravel(), lengths.ravel()))
        local, remote, lengths = (np.concatenate(part) for part in zip(*found, strict=True))
        return local, remote, lengths


class Peers:
    """Prefill ranks by incarnation, and the plans for them. One thread."""

    def __init__(self, engine: TransferEngine, us: Identity) -> None:
        self._engine = engine
        self._us = us
        self._fetches: OrderedDict[RankAddress, Fetch] = OrderedDict()
        self._plans: dict[tuple[RankAddress, Source], RankPlan] = {}

    @property
    def tp_rank(self) -> int:
        return self._us.tp_rank

    def fetch(self, address: RankAddress, deadline: float) -> Fetch:
        """The rank's descriptor: known, or asked for now with `deadline` seconds to go."""
        known = self._fetches.get(address)
        if known is None or known.failed:
            known = self._fetches[address] = Fetch(self._engine, address, deadline)
            while len(self._fetches) > MAX_PEERS:
                dropped, fetch = self._fetches.popitem(last=False)
                fetch.close()
                self._plans = {k: v for k, v in self._plans.items() if k[0] != dropped}
        return known

    def sources(self, offer: Offer) -> tuple[Source, ...]:
        """Which of the offer's ranks this rank reads from. Raises Incompatible."""
        if offer.kv_heads != self._us.kv_heads:
            raise Incompatible(
                f"prefill's model has {offer.kv_heads} KV heads, this one {self._us.kv_heads}"
            )
        if len(offer.ranks) == self._us.tp_size:  # also what can't be divided
            return (Source(self._us.tp_rank, 0, 0, self._us.layers[0].heads),)
        return sources(offer.kv_heads, len(offer.ranks), self._us.tp_size, self._us.tp_rank)

    def readers(self, offer: Offer, rank: int) -> tuple[int, ...]:
        """Our ranks that the offer's `rank` waits for."""
        if len(offer.ranks) == self._us.tp_size:
            return (rank,)
        return readers(offer.kv_heads, len(offer.ranks), self._us.tp_size, rank)

    def told(self, offer: Offer) -> list[int]:
        """The offer's ranks that wait for this rank."""
        if offer.kv_heads != self._us.kv_heads:
            return []  # not of this model
        return [r for r in range(len(offer.ranks)) if self._us.tp_rank in self.readers(offer, r)]

    def plan(self, offer: Offer, source: Source, there: Descriptor) -> RankPlan:
        """How the source's heads map onto ours. Raises Incompatible, naming what differs."""
        key = (offer.ranks[source.rank], source)
        if key not in self._plans:
            self._plans[key] = self._make_plan(offer, source, there)
        return self._plans[key]

    def _make_plan(self, offer: Offer, source: Source, there: Descriptor) -> RankPlan:
        us = self._us
        there.check(us.traits, us.block_tokens, [layer.name for layer in us.layers])
        if (there.tp_rank, there.tp_size) != (source.rank, len(offer.ranks)):
            raise Incompatible(f"rank {source.rank} says it is {there.tp_rank} of {there.tp_size}")
        equal = there.tp_size == us.tp_size
        if not equal and not (there.divisible and us.divisible):
            raise Incompatible(
                f"this model's cache can't be divided by heads: tensor parallel size "
                f"{there.tp_size} at prefill, {us.tp_size} here"
            )
        theirs = {layer.name: layer for layer in there.layers}
        pairs = [(layer, theirs[layer.name]) for layer in us.layers]
        return RankPlan(
            tuple(
                (a, b, match(a, 0, b, 0, a.heads) if equal
                 else match(a, source.our_head, b, source.their_head, source.heads))
                for a, b in pairs
            )
        )  # fmt: skip
