"""Decode's worker: one request's load, from the first descriptor to the lease's confirmation."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvmend import KvmendError, TransferEngine
from kvmend._kvmend import Transfer

from .descriptor import Descriptor
from .geometry import Incompatible
from .leases import DONE_BYTES, MAX_READERS, WORD_BYTES, LeaseState, done_word, lease_state
from .offers import Offer
from .orders import LoadOrder
from .peers import Peers
from .scratch import Scratch

__all__ = ["Load", "Release", "Staging", "Surroundings"]

log = logging.getLogger("vllm.kvmend")

AGAIN = 0.002  # seconds between looks at a lease that prefill hasn't begun
RELEASE_DEADLINE = 5.0  # seconds that prefill has to take in "done"; else its lease runs out

Steps = Generator[None, None, None]
ENDED = object()


class Staging(Protocol):
    """Host memory in place of a cache that the engine can't reach."""

    @property
    def blocks(self) -> int: ...
    def take(self, count: int) -> list[int] | None: ...
    def give(self, blocks: Sequence[int]) -> None: ...
    def save(self, blocks: Sequence[int], staged: Sequence[int]) -> None:
        """Copies blocks of the cache into staged ones; there when it returns."""

    def restore(self, staged: Sequence[int], blocks: Sequence[int]) -> None:
        """Copies back; what the device does later sees it, and `staged` may be used again."""


@dataclass(frozen=True)
class Surroundings:
    """What loads of a worker share."""

    engine: TransferEngine
    peers: Peers
    scratch: Scratch
    staging: Staging | None = None
    checksum: bool = False
    clock: Callable[[], float] = time.monotonic


class Refused(Exception):
    """The lease is over."""


class Cancelled(Exception):
    """The request was aborted."""


class TooLate(Exception):
    """The load's deadline."""


#: What a load can end with -> its counter.
OUTCOMES: dict[type[Exception], str] = {
    Refused: "loads_refused",
    Cancelled: "loads_cancelled",
    Incompatible: "loads_incompatible",
}


class Load:
    """Moves on at each `poll`; never blocks, never raises. One thread.

    Once `outcome` is set, no transfer of it touches memory any more.
    """

    def __init__(self, order: LoadOrder, around: Surroundings, deadline: float) -> None:
        """`deadline`: seconds from now."""
        self.order = order
        self.outcome = ""  # a name of counters.COUNTERS
        self.error: Exception | None = None
        self.bytes = 0
        self._around = around
        self._started = around.clock()
        self._until = self._started + deadline
        self._transfers: list[Transfer] = []
        self._rows: list[int] = []
        self._staged: list[int] = []
        self._cancelled = False
        self._steps = self._guard()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._around.clock() - self._started

    def cancel(self) -> None:
        """It ends soon, as cancelled; it still has to be polled."""
        self._cancelled = True

    def poll(self) -> bool:
        """Whether it has ended."""
        return next(self._steps, ENDED) is ENDED

    # ------------------------------------------------------------------------------------- steps

    def _guard(self) -> Steps:
        outcome = "loads"
        try:
            yield from self._run()
        except Exception as error:  # nothing of it may end the worker
            outcome = OUTCOMES.get(type(error), "loads_failed")
            if not isinstance(error, (Refused, Cancelled, TooLate, Incompatible, KvmendError)):
                log.exception("request %s: the load met a fault of kvmend", self.order.request_id)
            self.error = error
        for transfer in self._transfers:
            transfer.cancel()
        while not all(transfer.done() for transfer in self._transfers):
            yield
        self._around.scratch.give(self._rows)
        if self._around.staging:
            self._around.staging.give(self._staged)
        self.outcome = outcome

    def _run(self) -> Steps:
        around, offer = self._around, self.order.offer
        there_blocks = offer.blocks[self.order.first :]
        if len(there_blocks) != len(self.order.blocks):
            raise Incompatible(f"{len(there_blocks)} blocks there, {len(self.order.blocks)} here")
        sources = around.peers.sources(offer)
        fetches = [around.peers.fetch(offer.ranks[s.rank], self._left()) for s in sources]
        descriptors: list[Descriptor] = []
        for fetch in fetches:
            while (descriptor := fetch.poll()) is None:
                yield from self._pause()
            descriptors.append(descriptor)
        plans = [
            around.peers.plan(offer, source, descriptor)
            for source, descriptor in zip(sources, descriptors, strict=True)
        ]
        if beyond := [b for b in there_blocks if any(b >= d.blocks for d in descriptors)]:
            raise Incompatible(f"the offer names block {beyond[0]}, which prefill hasn't")

        here_blocks: Sequence[int] = self.order.blocks
        if around.staging:
            if len(here_blocks) > around.staging.blocks:
                raise Incompatible(f"{len(here_blocks)} blocks don't fit into staging_bytes")
            while (staged := around.staging.take(len(here_blocks))) is None:
                yield from self._pause()
            here_blocks = self._staged = staged
        reads = []
        for source, plan in zip(sources, plans, strict=True):
            local, remote, lengths = plan.slices(here_blocks, there_blocks)
            rank = offer.ranks[source.rank]
            reads.append(
                around.engine.submit(
                    rank.session_id, "read", local, remote, lengths, deadline=self._left(),
                    checksum=around.checksum, target_incarnation=rank.incarnation,
                )  # fmt: skip
            )
            self._transfers.append(reads[-1])
            self.bytes += int(lengths.sum())
        yield from self._all(reads)
        yield from self._confirm([(s.rank, d) for s, d in zip(sources, descriptors, strict=True)])
        if around.staging:
            around.staging.restore(self._staged, self.order.blocks)

    def _confirm(self, ranks: list[tuple[int, Descriptor]]) -> Steps:
        """Returns once every rank's lease was seen running, after the last block had arrived."""
        around, offer = self._around, self.order.offer
        while (rows := around.scratch.take(len(ranks))) is None:
            yield from self._pause()
        self._rows = rows
        while True:
            reads = []
            for row, (number, descriptor) in zip(rows, ranks, strict=True):
                rank = offer.ranks[number]
                reads.append(
                    around.engine.submit(
                        rank.session_id, "read", around.scratch.address(row),
                        descriptor.words + offer.slot * WORD_BYTES, WORD_BYTES,
                        deadline=self._left(), urgent=True, target_incarnation=rank.incarnation,
                    )  # fmt: skip
                )
                self._transfers.append(reads[-1])
            yield from self._all(reads)
            self._transfers = [t for t in self._transfers if not t.done()]
            words = [[int(w) for w in around.scratch.words[row]] for row in rows]
            states = [lease_state(word, other, offer.generation) for word, other in words]
            if LeaseState.OVER in states:
                raise Refused(f"prefill's lease is over ({offer.tokens} tokens)")
            if all(state is LeaseState.LIVE for state in states):
                return
            again = around.clock() + AGAIN
            while around.clock() < again:
                yield from self._pause()

    def _all(self, transfers: list[Transfer]) -> Steps:
        for transfer in transfers:
            while not transfer.done():
                yield from self._pause()
            transfer.poll()  # raises what it ended with

    def _pause(self) -> Steps:
        yield
        if self._cancelled:
            raise Cancelled("the request was aborted")
        self._left()

    def _left(self) -> float:
        left = self._until - self._around.clock()
        if left <= 0:
            raise TooLate(f"not loaded within {self._until - self._started:g} s")
        return left


class Release:
    """Tells the prefill ranks that wait for this rank that it has finished with an offer.

    It may fail silently: then the lease ends by its time. Never blocks, never raises. One thread.
    """

    def __init__(self, offer: Offer, around: Surroundings) -> None:
        self._offer = offer
        self._around = around
        self._until = around.clock() + RELEASE_DEADLINE
        self._steps = self._guard()

    def poll(self) -> bool:
        """Whether it has ended."""
        return next(self._steps, ENDED) is ENDED

    def _guard(self) -> Steps:
        for rank in self._around.peers.told(self._offer):
            yield from self._tell(rank)

    def _tell(self, number: int) -> Steps:
        around, offer = self._around, self._offer
        rank, readers = offer.ranks[number], around.peers.readers(offer, number)
        place = readers.index(around.peers.tp_rank)
        rows: list[int] | None = None
        try:
            fetch = around.peers.fetch(rank, self._left())
            while (descriptor := fetch.poll()) is None:
                yield
            if place >= min(descriptor.readers, MAX_READERS):
                return
            while (rows := around.scratch.take(1)) is None:
                yield
            around.scratch.words[rows[0], 0] = done_word(offer.generation, len(readers))
            there = descriptor.done + (offer.slot * descriptor.readers + place) * DONE_BYTES
            transfer = around.engine.submit(
                rank.session_id, "write", around.scratch.address(rows[0]), there, DONE_BYTES,
                deadline=self._left(), urgent=True, target_incarnation=rank.incarnation,
            )  # fmt: skip
            while not transfer.done():
                yield
            transfer.poll()
        except (KvmendError, Incompatible, TooLate) as error:
            log.debug("prefill %s wasn't told that a lease has ended: %s", rank.session_id, error)
        finally:
            if rows:
                around.scratch.give(rows)

    def _left(self) -> float:
        left = self._until - self._around.clock()
        if left <= 0:
            raise TooLate("prefill hasn't taken in that its lease has ended")
        return left
