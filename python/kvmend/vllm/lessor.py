"""Prefill's worker: leases on the blocks of finished requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .leases import Board
from .orders import LeaseOrder

__all__ = ["Lessor"]


#: The longest that a lease lives by being renewed, as a multiple of its length.
MAX_RENEWALS = 10


@dataclass
class Lease:
    slot: int
    generation: int
    seconds: float
    until: float  # of the clock
    latest: float  # renewals can't take it further
    renewals: list[int]


class Lessor:
    """Begins leases and ends them: when all readers have finished, or by their time,
    which readers that wait renew. One thread."""

    def __init__(self, board: Board, clock: Callable[[], float], counts: dict[str, Any]) -> None:
        """`clock`: monotonic seconds. `counts`: of `counters`, added to here."""
        self._board = board
        self._clock = clock
        self._counts = counts
        self._leases: dict[int, Lease] = {}  # by slot

    def __len__(self) -> int:
        return len(self._leases)

    def begin(self, order: LeaseOrder) -> None:
        """From here on the order's blocks may be read; they are complete."""
        self._leases[order.slot] = self._lease(order, order.seconds)
        self._board.begin(order.slot, order.generation)
        self._counts["leases"] += 1

    def refuse(self, order: LeaseOrder) -> None:
        """The order's blocks can't be read: the lease is over before it begins."""
        self._leases[order.slot] = self._lease(order, 0)

    def _lease(self, order: LeaseOrder, seconds: float) -> Lease:
        now = self._clock()
        return Lease(
            order.slot, order.generation, seconds, now + seconds, now + MAX_RENEWALS * seconds,
            self._board.renewals(order.slot, order.generation),
        )  # fmt: skip

    def ended(self) -> set[int]:
        """Slots of leases whose blocks nobody reads any more since the last call: each once."""
        now = self._clock()
        found = set()
        for slot, lease in self._leases.items():
            done = self._board.finished(lease.slot, lease.generation)
            if not done and now >= lease.until:
                self._renew(lease, now)
            if done or now >= lease.until:
                self._board.end(lease.slot, lease.generation)
                self._counts["leases_done" if done else "leases_expired"] += 1
                found.add(slot)
        for slot in found:
            del self._leases[slot]
        return found

    def _renew(self, lease: Lease, now: float) -> None:
        """Lengthens a lease that was renewed since it began or was last lengthened."""
        renewals = self._board.renewals(lease.slot, lease.generation)
        if renewals != lease.renewals:
            lease.renewals = renewals
            lease.until = min(now + lease.seconds, lease.latest)
