"""What the scheduler side tells the workers, once a step, and what a worker tells it at the start.

Plain data: it is pickled between processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .groups import Move
from .offers import Offer, RankAddress
from .parallel import Place

__all__ = ["LeaseOrder", "LoadOrder", "Step", "WorkerAddress"]


@dataclass(frozen=True)
class LoadOrder:
    """Decode: load these blocks, by KV cache group."""

    request_id: str
    offer: Offer  # without its blocks
    moves: tuple[Move, ...]
    #: Why it can't be done: then it only fails, as any other load may.
    missing: str = ""

    @property
    def blocks(self) -> list[int]:
        """Ours, of all groups."""
        return [block for move in self.moves for block in move.here]


@dataclass(frozen=True)
class LeaseOrder:
    """Prefill: begin a lease on a finished request's blocks."""

    request_id: str
    slot: int
    generation: int
    seconds: float
    blocks: list[int]
    #: Staged blocks to copy them into first; empty: the cache itself is read.
    staged: list[int] = field(default_factory=list)


@dataclass
class Step:
    """One step's orders."""

    loads: list[LoadOrder] = field(default_factory=list)
    leases: list[LeaseOrder] = field(default_factory=list)
    #: Offers that won't be used (any more): tell prefill so.
    releases: list[Offer] = field(default_factory=list)
    #: Offers of requests that wait, and how often they have been renewed: tell prefill so.
    renewals: list[tuple[Offer, int]] = field(default_factory=list)


@dataclass(frozen=True)
class WorkerAddress:
    """A worker's handshake: where its engine is."""

    address: RankAddress
    place: Place
    kv_heads: int
    #: Blocks that prefill can stage at a time; 0: the cache itself is read.
    staging_blocks: int = 0
