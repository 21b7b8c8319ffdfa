"""Decode's worker: what it knows about prefill ranks, and how their blocks map onto its own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from kvmend import TransferEngine

from .descriptor import Descriptor
from .fetch import Fetch
from .geometry import Incompatible, LayerGeometry, Runs, match
from .groups import STATE, Group
from .offers import Offer, RankAddress
from .parallel import Place, Source, heads_of, readers, sources

__all__ = ["Identity", "Peers", "RankPlan"]

MAX_PEERS = 4096  # descriptors kept

Numbers = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Identity:
    """A rank of this instance: its place and its caches (staged ones, if it stages)."""

    place: Place
    kv_heads: int  # of the model
    groups: tuple[Group, ...]
    traits: dict[str, str]
    layers: tuple[LayerGeometry, ...]

    @property
    def divisible(self) -> bool:
        """Whether every layer's heads are this rank's share of the model's."""
        share = len(heads_of(self.place.tp_rank, self.place.tp_size, self.kv_heads))
        return all(
            layer.heads == share and self.groups[layer.group].kind != STATE for layer in self.layers
        )

    @property
    def needed(self) -> dict[str, str]:
        """What must be equal on both sides, by name."""
        groups = ", ".join(map(str, self.groups))
        return {**self.traits, "the KV cache (--block-size)": groups}


@dataclass(frozen=True)
class RankPlan:
    """The bytes of a block that come from one prefill rank, layer by layer; perhaps none."""

    layers: tuple[tuple[LayerGeometry, LayerGeometry, Runs], ...]

    def slices(
        self, here: Sequence[Sequence[int]], there: Sequence[Sequence[int]]
    ) -> tuple[Numbers, Numbers, Numbers]:
        """(local addresses, remote addresses, lengths) that fill blocks `here` from `there`, each
        by KV cache group."""
        ours_of, theirs_of = (
            [np.asarray(blocks, dtype=np.uint64)[:, None] for blocks in side]
            for side in (here, there)
        )
        found: list[tuple[Numbers, Numbers, Numbers]] = []
        for a, b, runs in self.layers:
            ours, theirs = ours_of[a.group], theirs_of[a.group]
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
        """Which of the offer's ranks this rank may read from: in each stage those with our heads.
        Raises Incompatible."""
        us = self._us
        if offer.kv_heads != self._us.kv_heads:
            raise Incompatible(
                f"prefill's model has {offer.kv_heads} KV heads, this one {self._us.kv_heads}"
            )
        size, place = offer.tp_size, us.place
        if size == place.tp_size:  # also what can't be divided
            found: tuple[Source, ...] = (Source(place.tp_rank, 0, 0, us.layers[0].heads),)
        else:
            found = sources(offer.kv_heads, size, place.tp_size, place.tp_rank)
        return tuple(
            replace(s, rank=stage * size + s.rank) for stage in range(offer.stages) for s in found
        )

    def complete(self, plans: Iterable[RankPlan]) -> None:
        """Raises Incompatible if a layer of ours is in none of them."""
        there = {layer.name for plan in plans for layer, _, _ in plan.layers}
        if missing := [layer.name for layer in self._us.layers if layer.name not in there]:
            raise Incompatible(f"prefill has no layer {missing[0]} ({len(missing)} are missing)")

    def readers(self, offer: Offer, rank: int) -> tuple[int, ...]:
        """Our ranks, by number, that the offer's `rank` waits for: of all our stages."""
        size, place = offer.tp_size, self._us.place
        if size == place.tp_size:
            found: tuple[int, ...] = (rank % size,)
        else:
            found = readers(offer.kv_heads, size, place.tp_size, rank % size)
        return tuple(stage * place.tp_size + r for stage in range(place.stages) for r in found)

    def index(self, offer: Offer, rank: int) -> int:
        """Which of those readers we are."""
        return self.readers(offer, rank).index(self._us.place.number)

    def told(self, offer: Offer) -> list[int]:
        """The offer's ranks that wait for this rank."""
        if offer.kv_heads != self._us.kv_heads:
            return []  # not of this model
        ours = self._us.place.number
        return [r for r in range(len(offer.ranks)) if ours in self.readers(offer, r)]

    def plan(self, offer: Offer, source: Source, there: Descriptor) -> RankPlan:
        """How the source's heads map onto ours. Raises Incompatible, naming what differs."""
        key = (offer.ranks[source.rank], source)
        if key not in self._plans:
            self._plans[key] = self._make_plan(offer, source, there)
        return self._plans[key]

    def _make_plan(self, offer: Offer, source: Source, there: Descriptor) -> RankPlan:
        us = self._us
        there.check(us.needed)
        size = offer.tp_size
        if there.place != Place(source.rank % size, size, source.rank // size, offer.stages):
            raise Incompatible(f"rank {source.rank} of {len(offer.ranks)} says it is {there.place}")
        equal = size == us.place.tp_size
        if not equal and not (there.divisible and us.divisible):
            raise Incompatible(
                f"this model's cache can't be divided by heads: tensor parallel size "
                f"{size} at prefill, {us.place.tp_size} here"
            )
        theirs = {layer.name: layer for layer in there.layers}
        pairs = [(layer, theirs[layer.name]) for layer in us.layers if layer.name in theirs]
        if strange := [a.name for a, b in pairs if a.group != b.group]:
            raise Incompatible(f"{strange[0]} is in another KV cache group at prefill")
        return RankPlan(
            tuple(
                (a, b, match(a, 0, b, 0, a.heads) if equal
                 else match(a, source.our_head, b, source.their_head, source.heads))
                for a, b in pairs
            )
        )  # fmt: skip
