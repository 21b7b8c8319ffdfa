"""The connector's half in a vLLM worker: the engine, leases, loads. Without vLLM.

One thread, the worker's; the mover's thread runs the loads.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from kvmend import Access, TransferEngine

from . import counters
from .descriptor import Descriptor
from .groups import FULL
from .leases import MAX_READERS, SLOTS, Board
from .lessor import Lessor
from .load import Load, Staging, Surroundings
from .mover import Mover
from .offers import RankAddress
from .orders import Step, WorkerAddress
from .peers import Identity, Peers
from .scratch import Scratch
from .settings import Settings

__all__ = ["Caches", "Ended", "WorkerSide"]

log = logging.getLogger("vllm.kvmend")

ENGINE_STATS_EVERY = 1.0  # seconds


@dataclass(frozen=True)
class Caches:
    """What a worker's engine registers: the caches, or host memory that they are staged in."""

    memory: Sequence[Any]  # kvmend.Memory
    blocks: int  # that peers may name
    staging: Staging | None = None


@dataclass(frozen=True)
class Ended:
    """What has ended at this worker."""

    leases: set[int]  # their slots
    received: set[str]  # requests whose loads have ended, well or not
    failed: set[str]  # of those, the ones that vLLM has to compute from their beginning


class WorkerSide:
    """One per worker process."""

    def __init__(
        self,
        settings: Settings,
        us: Identity,
        caches: Caches,
        *,
        serves: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts the engine and registers the caches. Raises KvmendError.

        `serves`: peers may read them (vLLM's role: producer or both).
        """
        self._clock, self._staging = clock, caches.staging
        # vLLM can keep the blocks before the ones that failed, but where a list has gaps.
        self._whole = [group.kind for group in us.groups] != [FULL]
        self._counts = counters.new()
        self._failed_blocks: set[int] = set()
        self._engine_totals = (0, 0)  # retries, recoveries
        self._engine_asked = clock()
        self._engine = TransferEngine(**settings.engine_options())
        try:
            access = Access.REMOTE_READ if serves else Access.NONE
            self._engine.register_batch(caches.memory, access)
            around = Surroundings(
                self._engine, Peers(self._engine, us), Scratch(self._engine),
                caches.staging, settings.checksum, clock,
            )  # fmt: skip
            self._address = self._publish(us, caches)
            self._mover = Mover(around, settings.load_deadline_seconds)
        except BaseException:
            self._engine.shutdown(0)
            raise

    def _publish(self, us: Identity, caches: Caches) -> WorkerAddress:
        board = Board(SLOTS, MAX_READERS)
        self._lessor = Lessor(board, self._clock, self._counts)
        words = self._engine.register_memory(board.words, Access.REMOTE_READ)
        done = self._engine.register_memory(board.done, Access.REMOTE_WRITE)
        renewed = self._engine.register_memory(board.renewed, Access.REMOTE_WRITE)
        descriptor = Descriptor(
            us.place, us.kv_heads, caches.blocks, us.divisible,
            words, done, renewed, SLOTS, MAX_READERS, us.layers, us.needed,
        )  # fmt: skip
        data = np.frombuffer(descriptor.encode(), np.uint8)
        address = self._engine.register_memory(data, Access.REMOTE_READ)
        return WorkerAddress(
            RankAddress(self._engine.session_id, self._engine.incarnation, address, len(data)),
            us.place, us.kv_heads, self._staging.lent if self._staging else 0,
        )  # fmt: skip

    @property
    def address(self) -> WorkerAddress:
        """For the scheduler side."""
        return self._address

    # -------------------------------------------------------------------------------- each step

    def begin(self, step: Step) -> None:
        """Begins what the scheduler has ordered. Best before the step's forward pass, which nothing
        of it depends on: a lease or a load that began after it would be late by as much."""
        self._begin_leases(step)
        for order in step.loads:
            self._mover.load(order)
        for offer in step.releases:
            self._mover.release(offer)
        for offer, number in step.renewals:
            self._mover.renew(offer, number)

    def _begin_leases(self, step: Step) -> None:
        """The requests have finished, so all their blocks were written in earlier steps."""
        for order in step.leases:
            try:
                if self._staging:
                    self._staging.save(order.blocks, order.staged)
            except Exception:  # the request has been answered: decode computes it
                log.exception("request %s couldn't be copied to host memory", order.request_id)
                self._lessor.refuse(order)
            else:
                self._lessor.begin(order)

    def finished(self, ended_requests: set[str]) -> Ended:
        """What has ended since the last call. Never blocks.

        `ended_requests`: finished or aborted; their loads are cancelled.
        """
        self._mover.cancel(ended_requests)
        received, failed = set(), set()
        for load in self._mover.take():
            load.settle()
            received.add(load.order.request_id)
            if self._failed(load):
                failed.add(load.order.request_id)
        return Ended(self._lessor.ended(), received, failed)

    def _failed(self, load: Load) -> bool:
        """Counts a load; whether its request has to be computed from its beginning."""
        order = load.order
        whole = self._whole or bool(order.missing)  # then its blocks aren't all named
        self._counts[load.outcome] += 1
        if load.outcome == "loads":
            self._counts["load_bytes"] += load.bytes
            self._counts[counters.LOAD_SECONDS].append(load.seconds)
        elif load.outcome != "loads_cancelled":
            if not whole:
                self._failed_blocks.update(order.blocks)
            log.warning(
                "request %s: %d blocks from %s weren't loaded after %.3f s: %s",
                order.request_id, len(order.blocks), order.offer.ranks[0].session_id,
                load.seconds, load.error,
            )  # fmt: skip
            return whole
        return False

    def take_failed_blocks(self) -> set[int]:
        """Blocks of the loads that `finished` reported since the last call, if they failed."""
        found, self._failed_blocks = self._failed_blocks, set()
        return found

    def take_counts(self) -> dict[str, Any] | None:
        """What was counted since the last call, or None."""
        now = self._clock()
        if now - self._engine_asked >= ENGINE_STATS_EVERY:
            self._engine_asked = now
            stats = self._engine.stats()
            totals = (stats.retries, stats.recoveries)
            self._counts["transfer_retries"] += totals[0] - self._engine_totals[0]
            self._counts["session_recoveries"] += totals[1] - self._engine_totals[1]
            self._engine_totals = totals
        if not any(self._counts.values()):
            return None
        found = dict(self._counts)
        self._counts.update(counters.new())  # in place: the lessor counts into it too
        return found

    def shutdown(self) -> None:
        """Ends the engine: peers' reads fail, and nothing touches the caches any more."""
        self._mover.close()
        self._engine.shutdown()
