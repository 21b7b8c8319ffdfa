"""Prefill's worker: leases on the blocks of finished requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .leases import Board
from .orders import LeaseOrder

__all__ = ["Lessor"]


@dataclass
class Lease:
    slot: int
    generation: int
    until: float  # of the clock


class Lessor:
    """Begins leases and ends them: when all readers have finished, or by their time. One thread."""

    def __init__(self, board: Board, clock: Callable[[], float], counts: dict[str, Any]) -> None:
        """`clock`: monotonic seconds. `counts`: of `counters`, added to here."""
        self._board = board
        self._clock = clock
        self._counts = counts
        self._leases: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def begin(self, order: LeaseOrder) -> None:
        """From here on the order's blocks may be read; they are complete."""
        until = self._clock() + order.seconds
        self._leases[order.request_id] = Lease(order.slot, order.generation, until)
        self._board.begin(order.slot, order.generation)
        self._counts["leases"] += 1

    def refuse(self, order: LeaseOrder) -> None:
        """The order's blocks can't be read: the lease is over before it begins."""
        self._leases[order.request_id] = Lease(order.slot, order.generation, self._clock())

    def ended(self) -> set[str]:
        """Requests whose blocks nobody reads any more since the last call: each once."""
        now = self._clock()
        found = set()
        for request_id, lease in self._leases.items():
            done = self._board.finished(lease.slot, lease.generation)
            if done or now >= lease.until:
                self._board.end(lease.slot, lease.generation)
                self._counts["leases_done" if done else "leases_expired"] += 1
                found.add(request_id)
        for request_id in found:
            del self._leases[request_id]
        return found
