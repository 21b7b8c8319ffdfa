"""Decode's worker: one request's load, from the first descriptor to the lease's confirmation."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvmend import KvmendError, TransferEngine
from kvmend._kvmend import Transfer

from .descriptor import Descriptor
from .geometry import Incompatible
from .leases import WORD_BYTES, LeaseState, lease_state
from .orders import LoadOrder
from .parallel import Source
from .peers import Peers, RankPlan
from .scratch import Scratch

__all__ = ["ENDED", "Load", "Staging", "Steps", "Surroundings"]

log = logging.getLogger("vllm.kvmend")

AGAIN = 0.002  # seconds between looks at a lease that prefill hasn't begun

Steps = Generator[None, None, None]
ENDED = object()


class Staging(Protocol):
    """Host memory in place of a cache that the engine can't reach."""

    @property
    def blocks(self) -> int:
        """How many decode has."""

    @property
    def lent(self) -> int:
        """How many prefill's scheduler hands out, from number 0 on."""

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


def split(numbers: Sequence[int], lengths: Sequence[int]) -> list[Sequence[int]]:
    """Consecutive parts of `numbers`."""
    ends = list(itertools.accumulate(lengths))
    return [numbers[end - length : end] for length, end in zip(lengths, ends, strict=True)]


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
    """Moves on at each `poll`; never blocks, never raises. The mover's thread, but where it says.

    Once it has ended, no transfer of it touches memory any more.
    """

    def __init__(self, order: LoadOrder, around: Surroundings, deadline: float) -> None:
        """`deadline`: seconds from now. Any thread."""
        self.order = order
        self.outcome = ""  # a name of counters.COUNTERS, once it has ended
        self.error: Exception | None = None
        self.bytes = 0
        self.seconds = 0.0  # that it took
        self._around = around
        self._started = around.clock()
        self._until = self._started + deadline
        self._transfers: list[Transfer] = []
        self._rows: list[int] = []
        self._staged: list[int] = []
        self._cancelled = False
        self._steps = self._guard()

    def cancel(self) -> None:
        """It ends soon, as cancelled; it still has to be polled. Any thread."""
        self._cancelled = True

    def poll(self) -> bool:
        """Whether it has ended."""
        return next(self._steps, ENDED) is ENDED

    def settle(self) -> None:
        """After its end: copies what was staged into the cache. The worker's thread."""
        staging = self._around.staging
        if staging is None:
            return
        try:
            if self.outcome == "loads":
                staging.restore(self._staged, self.order.blocks)
        except Exception as error:
            log.exception("request %s: the copy from host memory failed", self.order.request_id)
            self.outcome, self.error = "loads_failed", error
        staging.give(self._staged)

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
        self.seconds = self._around.clock() - self._started
        self.outcome = outcome

    def _run(self) -> Steps:
        around, order, offer = self._around, self.order, self.order.offer
        if order.missing:
            raise Incompatible(order.missing)
        there = [move.there for move in order.moves]
        sources = around.peers.sources(offer)
        fetches = [around.peers.fetch(offer.ranks[s.rank], self._left()) for s in sources]
        yield from self._wait(lambda: all(fetch.poll() for fetch in fetches))
        descriptors = [found for fetch in fetches if (found := fetch.poll())]
        plans = [
            around.peers.plan(offer, source, descriptor)
            for source, descriptor in zip(sources, descriptors, strict=True)
        ]
        around.peers.complete(plans)
        last = max((block for blocks in there for block in blocks), default=0)
        if any(last >= d.blocks for d in descriptors):
            raise Incompatible(f"the offer names block {last}, which prefill hasn't")

        here: list[Sequence[int]] = [move.here for move in order.moves]
        if around.staging:
            yield from self._stage(around.staging)
            here = split(self._staged, [len(blocks) for blocks in here])
        read = [
            (source, descriptor, plan)
            for source, descriptor, plan in zip(sources, descriptors, plans, strict=True)
            if plan.layers
        ]
        yield from self._rows_for(len(read))
        ranks = [(source.rank, descriptor) for source, descriptor, _ in read]
        # Before: staged blocks are there only from the lease's beginning on, and one that began
        # between the read and the look after it would vouch for what was there before. After: the
        # blocks may have been given away while they were read.
        while not (yield from self._live(ranks)):
            yield from self._sleep(AGAIN)
        yield from self._read([(source, plan) for source, _, plan in read], here, there)
        if not (yield from self._live(ranks)):
            raise Refused("prefill's lease isn't the one that was read under")

    def _read(
        self,
        plans: list[tuple[Source, RankPlan]],
        here: Sequence[Sequence[int]],
        there: Sequence[Sequence[int]],
    ) -> Steps:
        """Returns once all the blocks have arrived."""
        around, reads = self._around, []
        self.bytes = 0
        for source, plan in plans:
            local, remote, lengths = plan.slices(here, there)
            if not len(lengths):
                continue
            rank = self.order.offer.ranks[source.rank]
            reads.append(
                around.engine.submit(
                    rank.session_id, "read", local, remote, lengths, deadline=self._left(),
                    checksum=around.checksum, target_incarnation=rank.incarnation,
                )
            )  # fmt: skip
            self._transfers.append(reads[-1])
            self.bytes += int(lengths.sum())
        yield from self._all(reads)

    def _stage(self, staging: Staging) -> Steps:
        count = len(self.order.blocks)
        if count > staging.blocks:
            raise Incompatible(f"{count} blocks don't fit into staging_bytes")

        def taken() -> bool:
            self._staged = staging.take(count) or []
            return bool(self._staged)

        yield from self._wait(taken)

    def _rows_for(self, count: int) -> Steps:
        def taken() -> bool:
            self._rows = self._around.scratch.take(count) or []
            return bool(self._rows)

        yield from self._wait(taken)

    def _live(self, ranks: list[tuple[int, Descriptor]]) -> Generator[None, None, bool]:
        """Whether every rank's lease runs now. Raises Refused if one is over."""
        around, offer, reads = self._around, self.order.offer, []
        for row, (number, descriptor) in zip(self._rows, ranks, strict=True):
            rank = offer.ranks[number]
            reads.append(
                around.engine.submit(
                    rank.session_id, "read", around.scratch.address(row),
                    descriptor.words + offer.slot * WORD_BYTES, WORD_BYTES,
                    deadline=self._left(), urgent=True, target_incarnation=rank.incarnation,
                )
            )  # fmt: skip
            self._transfers.append(reads[-1])
        yield from self._all(reads)
        self._transfers = []
        words = [[int(w) for w in around.scratch.words[row]] for row in self._rows]
        states = [lease_state(word, other, offer.generation) for word, other in words]
        if LeaseState.OVER in states:
            raise Refused(f"prefill's lease is over ({offer.tokens} tokens)")
        return all(state is LeaseState.LIVE for state in states)

    def _all(self, transfers: list[Transfer]) -> Steps:
        yield from self._wait(lambda: all(transfer.done() for transfer in transfers))
        for transfer in transfers:
            transfer.poll()  # raises what it ended with

    def _sleep(self, seconds: float) -> Steps:
        until = self._around.clock() + seconds
        yield from self._wait(lambda: self._around.clock() >= until)

    def _wait(self, ready: Callable[[], bool]) -> Steps:
        """Until it holds; raises Cancelled, TooLate."""
        while not ready():
            if self._cancelled:
                raise Cancelled("the request was aborted")
            self._left()
            yield

    def _left(self) -> float:
        left = self._until - self._around.clock()
        if left <= 0:
            raise TooLate(f"not loaded within {self._until - self._started:g} s")
        return left
