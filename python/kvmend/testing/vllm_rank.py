"""A rank of a make-believe vLLM instance: NumPy caches, both sides of the connector."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from kvmend.testing.peer import wait_until
from kvmend.vllm.geometry import LayerGeometry
from kvmend.vllm.groups import Group
from kvmend.vllm.orders import Step
from kvmend.vllm.parallel import Place, heads_of
from kvmend.vllm.peers import Identity
from kvmend.vllm.scheduler_side import SchedulerSide
from kvmend.vllm.settings import Settings
from kvmend.vllm.worker_side import Caches, WorkerSide

LAYERS, HEADS, TOKENS, CONTENT = 3, 4, 8, 6
BLOCKS = 20
TRAITS = {"the dtype": "int16"}
GROUPS = (Group(TOKENS),)


@dataclass
class Status:
    name: str


@dataclass
class Request:
    """As much of vLLM's as the connector touches."""

    request_id: str
    prompt_token_ids: list[int] | None
    kv_transfer_params: dict[str, Any] | None = None
    num_computed_tokens: int = 0
    status: Status = field(default_factory=lambda: Status("RUNNING"))
    max_tokens: int = 16

    def __post_init__(self) -> None:
        self._all_token_ids = list(self.prompt_token_ids or ())
        self.num_prompt_tokens = len(self._all_token_ids)


def full_cache(seed: int) -> list[np.ndarray[Any, Any]]:
    """All heads of every layer, as if there were one rank of one stage."""
    rng = np.random.default_rng(seed)
    shape = (BLOCKS, HEADS, TOKENS, CONTENT)
    return [rng.integers(-30000, 30000, shape).astype(np.int16) for _ in range(LAYERS)]


class HostStaging:
    """What tensors.TorchStaging is, over NumPy."""

    def __init__(self, caches: list[np.ndarray[Any, Any]], count: int) -> None:
        self.caches = caches
        self.host = [np.zeros((count, *c.shape[1:]), c.dtype) for c in caches]
        self.blocks = self.lent = count
        self.free = list(range(count))

    def take(self, count: int) -> list[int] | None:
        if count > len(self.free):
            return None
        taken, self.free = self.free[:count], self.free[count:]
        return taken

    def give(self, blocks: Any) -> None:
        self.free += blocks

    def save(self, blocks: Any, staged: Any) -> None:
        for cache, host in zip(self.caches, self.host, strict=True):
            host[list(staged)] = cache[list(blocks)]

    def restore(self, staged: Any, blocks: Any) -> None:
        for cache, host in zip(self.caches, self.host, strict=True):
            cache[list(blocks)] = host[list(staged)]


class Rank:
    """A worker; `caches` are its share of the layers and heads, `layers` the layers' numbers."""

    def __init__(
        self, place: Place = Place(), seed: int = 0, *, traits: dict[str, str] = TRAITS,
        groups: tuple[Group, ...] = GROUPS, tokens_first: bool = False, staged_blocks: int = 0,
        clock: Any = None, **settings: Any,
    ) -> None:  # fmt: skip
        heads = heads_of(place.tp_rank, place.tp_size, HEADS)
        first, end = (i * LAYERS // place.stages for i in (place.stage, place.stage + 1))
        self.layers = range(first, end)
        self.caches = [
            layer[:, heads.start : heads.stop].copy() for layer in full_cache(seed)[first:end]
        ]
        if tokens_first:
            self.caches = [c.swapaxes(1, 2).copy().swapaxes(1, 2) for c in self.caches]
        memory: list[np.ndarray[Any, Any]] = self.caches
        staging = None
        if staged_blocks:
            staging = HostStaging(self.caches, staged_blocks)
            memory = staging.host
        self.staging = staging
        layers = tuple(
            LayerGeometry.of(
                f"layer {i}", m.ctypes.data, m.shape, m.strides, 2, len(m), group=i % len(groups)
            )
            for i, m in zip(self.layers, memory, strict=True)
        )
        us = Identity(place, HEADS, groups, traits, layers)
        more = {"clock": clock} if clock else {}
        self.worker = WorkerSide(
            Settings.of({"load_deadline_seconds": 5.0, **settings}), us,
            Caches([(m.ctypes.data, m.nbytes) for m in memory], staged_blocks or BLOCKS, staging),
            **more,
        )  # fmt: skip
        self.sent: set[int] = set()  # slots of leases
        self.received: set[str] = set()
        self.failed: set[int] = set()  # blocks
        self.lost: set[str] = set()  # requests

    def turn(self, step: Step | None = None, ended: set[str] | None = None) -> set[int]:
        """What vLLM does with a worker in a step; slots of leases that have ended."""
        step = step or Step()
        self.worker.begin(step)
        found = self.worker.finished(ended or set())
        self.sent |= found.leases
        self.received |= found.received
        self.lost |= found.failed
        self.failed |= self.worker.take_failed_blocks()
        return found.leases


class BlockCounts:
    """As much of vLLM's pool of blocks as the connector touches: how often each is held."""

    def __init__(self) -> None:
        self.held: Counter[int] = Counter()

    def hold(self, blocks: Sequence[int]) -> None:
        self.held.update(blocks)

    def free(self, blocks: Sequence[int]) -> None:
        assert all(self.held[block] for block in blocks)
        self.held -= Counter(blocks)


class Side:
    """An instance: a scheduler and its ranks, `size` in each of `stages`."""

    def __init__(self, size: int = 1, seed: int = 0, stages: int = 1, **options: Any) -> None:
        places = [Place(r, size, stage, stages) for stage in range(stages) for r in range(size)]
        self.ranks = [Rank(place, seed, **options) for place in places]
        settings = {k: v for k, v in options.items() if k == "lease_seconds"}
        self.groups: tuple[Group, ...] = options.get("groups", GROUPS)
        self.slots: dict[str, int] = {}  # of leased requests
        self.pool = BlockCounts()
        self.scheduler = SchedulerSide(Settings.of(settings), self.groups)
        self.scheduler.bind(self.pool)
        self.scheduler.workers({r: x.worker.address for r, x in enumerate(self.ranks)})

    def turn(self, ended: set[str] | None = None) -> None:
        step = self.scheduler.step()
        for rank in self.ranks:
            self.scheduler.ended(dict.fromkeys(rank.turn(step, ended), 1))

    def prefill(
        self, request_id: str, tokens: list[int], blocks: list[int], *others: list[int]
    ) -> dict[str, Any]:
        """A finished prefill with a list of blocks per group; what goes to decode."""
        request = Request(request_id, list(tokens), {"do_remote_decode": True})
        self.scheduler.arrived(request)
        request.num_computed_tokens = request.num_prompt_tokens
        request.status = Status("FINISHED_LENGTH_CAPPED")
        params = self.scheduler.finished(request, [blocks, *others])
        assert params
        self.slots[request_id] = params["kvmend"]["lease"][0]
        return params

    def decode(
        self, request_id: str, tokens: list[int], params: dict[str, Any], blocks: list[int],
        *others: list[int], computed: int = 0,
    ) -> Request:  # fmt: skip
        """Begins to load a request into `blocks`, a list per group."""
        request = Request(request_id, tokens, dict(params))
        count, later = self.scheduler.matched_tokens(request, computed)
        assert later == (count > 0)
        self.scheduler.allocated(request, [blocks, *others], count)
        return request

    def everyone(self, what: str, request_id: str) -> bool:
        """Whether every rank has "received" the request, or "sent" it: ended its lease."""
        name = self.slots[request_id] if what == "sent" else request_id
        return all(name in getattr(rank, what) for rank in self.ranks)

    def shutdown(self) -> None:
        for rank in self.ranks:
            rank.worker.shutdown()

    def counted(self, name: str) -> int:
        """Takes the counters of every rank."""
        return sum((rank.worker.take_counts() or {}).get(name, 0) for rank in self.ranks)


def until(condition: Any, *sides: Side, what: str = "the condition") -> None:
    """Steps the sides until it holds."""

    def look() -> Any:
        for side in sides:
            side.turn()
        return condition()

    wait_until(look, what)
