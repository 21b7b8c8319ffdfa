"""Decode's worker: what it writes on prefill's lease board."""

from __future__ import annotations

import logging

from kvmend import KvmendError

from .geometry import Incompatible
from .leases import MARK_BYTES, mark
from .load import ENDED, Steps, Surroundings
from .offers import Offer

__all__ = ["Note"]

log = logging.getLogger("vllm.kvmend")

DEADLINE = 5.0  # seconds that prefill has to take it in


class Note:
    """Tells the prefill ranks that wait for this rank that it has finished with an offer, or that
    its request still waits.

    It may fail silently: then the lease ends by its time. Never blocks. The mover's thread.
    """

    def __init__(self, offer: Offer, around: Surroundings, renewal: int | None = None) -> None:
        """`renewal`: its number; None: finished. Any thread."""
        self._offer = offer
        self._around = around
        self._renewal = renewal
        self._until = around.clock() + DEADLINE
        self._steps = self._tell_all()

    def poll(self) -> bool:
        """Whether it has ended."""
        return next(self._steps, ENDED) is ENDED

    def _tell_all(self) -> Steps:
        for rank in self._around.peers.told(self._offer):
            yield from self._tell(rank)

    def _tell(self, number: int) -> Steps:
        around, offer = self._around, self._offer
        rank, readers = offer.ranks[number], around.peers.readers(offer, number)
        place = around.peers.index(offer, number)
        rows: list[int] | None = None
        try:
            fetch = around.peers.fetch(rank, self._left())
            while (there := fetch.poll()) is None:
                yield
            if place >= there.readers or offer.slot >= there.slots:
                return
            while (rows := around.scratch.take(1)) is None:
                yield
            word = len(readers) if self._renewal is None else self._renewal
            around.scratch.words[rows[0], 0] = mark(offer.generation, word)
            board = there.done if self._renewal is None else there.renewed
            address = board + (offer.slot * there.readers + place) * MARK_BYTES
            transfer = around.engine.submit(
                rank.session_id, "write", around.scratch.address(rows[0]), address, MARK_BYTES,
                deadline=self._left(), urgent=True, target_incarnation=rank.incarnation,
            )  # fmt: skip
            while not transfer.done():
                yield
            transfer.poll()
        except (KvmendError, Incompatible, TimeoutError) as error:
            log.debug("prefill %s wasn't told about a lease: %s", rank.session_id, error)
        finally:
            if rows:
                around.scratch.give(rows)

    def _left(self) -> float:
        left = self._until - self._around.clock()
        if left <= 0:
            raise TimeoutError(f"not within {DEADLINE:g} s")
        return left
