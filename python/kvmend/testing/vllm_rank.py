"""A rank of a make-believe vLLM instance: NumPy caches, both sides of the connector."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from kvmend.testing.peer import wait_until
from kvmend.vllm.geometry import LayerGeometry
from kvmend.vllm.orders import Step
from kvmend.vllm.peers import Identity
from kvmend.vllm.scheduler_side import SchedulerSide
from kvmend.vllm.settings import Settings
from kvmend.vllm.tensor_parallel import heads_of
from kvmend.vllm.worker_side import Caches, WorkerSide

LAYERS, HEADS, TOKENS, CONTENT = 3, 4, 8, 6
BLOCKS = 20
TRAITS = {"the dtype": "int16"}


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

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids or ())


def full_cache(seed: int) -> list[np.ndarray[Any, Any]]:
    """All heads of every layer, as if there were one rank."""
    rng = np.random.default_rng(seed)
    shape = (BLOCKS, HEADS, TOKENS, CONTENT)
    return [rng.integers(-30000, 30000, shape).astype(np.int16) for _ in range(LAYERS)]


class HostStaging:
    """What tensors.TorchStaging is, over NumPy."""

    def __init__(self, caches: list[np.ndarray[Any, Any]], count: int) -> None:
        self.caches = caches
        self.host = [np.zeros((count, *c.shape[1:]), c.dtype) for c in caches]
        self.blocks = count
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
    """A worker; `caches` are its share of the heads."""

    def __init__(
        self, rank: int = 0, size: int = 1, seed: int = 0, *, traits: dict[str, str] = TRAITS,
        tokens_first: bool = False, staged_blocks: int = 0, clock: Any = None, **settings: Any,
    ) -> None:  # fmt: skip
        heads = heads_of(rank, size, HEADS)
        self.caches = [layer[:, heads.start : heads.stop].copy() for layer in full_cache(seed)]
        if tokens_first:
            self.caches = [c.swapaxes(1, 2).copy().swapaxes(1, 2) for c in self.caches]
        memory: list[np.ndarray[Any, Any]] = self.caches
        staging = None
        if staged_blocks:
            staging = HostStaging(self.caches, staged_blocks)
            memory = staging.host
        self.staging = staging
        layers = tuple(
            LayerGeometry.of(f"layer {i}", m.ctypes.data, m.shape, m.strides, 2, len(m))
            for i, m in enumerate(memory)
        )
        us = Identity(rank, size, HEADS, TOKENS, traits, layers)
        more = {"clock": clock} if clock else {}
        self.worker = WorkerSide(
            Settings.of({"load_deadline_seconds": 5.0, **settings}), us,
            Caches([(m.ctypes.data, m.nbytes) for m in memory], staged_blocks or BLOCKS, staging),
            **more,
        )  # fmt: skip
        self.sent: set[str] = set()
        self.received: set[str] = set()
        self.failed: set[int] = set()

    def turn(self, step: Step | None = None, ended: set[str] | None = None) -> None:
        """What vLLM does with a worker in a step."""
        step = step or Step()
        self.worker.start_loads(step)
        self.worker.begin_leases(step)
        sent, received = self.worker.finished(ended or set())
        self.sent |= sent
        self.received |= received
        self.failed |= self.worker.take_failed_blocks()


class Side:
    """An instance: a scheduler and its ranks."""

    def __init__(self, size: int = 1, seed: int = 0, **options: Any) -> None:
        self.ranks = [Rank(rank, size, seed, **options) for rank in range(size)]
        settings = {k: v for k, v in options.items() if k == "lease_seconds"}
        self.scheduler = SchedulerSide(Settings.of(settings), TOKENS)
        self.scheduler.workers({r: x.worker.address for r, x in enumerate(self.ranks)})

    def turn(self, ended: set[str] | None = None) -> None:
        step = self.scheduler.step()
        for rank in self.ranks:
            rank.turn(step, ended)

    def prefill(self, request_id: str, tokens: list[int], blocks: list[int]) -> dict[str, Any]:
        """A finished prefill; what goes to decode."""
        request = Request(
            request_id, tokens, {"do_remote_decode": True}, len(tokens),
            Status("FINISHED_LENGTH_CAPPED"),
        )  # fmt: skip
        keep, params = self.scheduler.finished(request, blocks)
        assert keep and params
        return params

    def decode(
        self, request_id: str, tokens: list[int], params: dict[str, Any], blocks: list[int],
        computed: int = 0,
    ) -> Request:  # fmt: skip
        """Begins to load a request into `blocks`."""
        request = Request(request_id, tokens, dict(params))
        count, later = self.scheduler.matched_tokens(request, computed)
        assert later == (count > 0)
        self.scheduler.allocated(request, blocks, count)
        return request

    def everyone(self, what: str, request_id: str) -> bool:
        return all(request_id in getattr(rank, what) for rank in self.ranks)

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
