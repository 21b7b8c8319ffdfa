"""Memory, orders and the command loop that the Python movers of ./dev bench share.

A mover is a process that moves scattered pages when it is told to. Commands, one a line on standard
input, each answered with one JSON object: `page BYTES`, `move [check]`, `latency N REST_US`,
`quit`. Needs NumPy only: it runs in the peers' own environments too.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

HUGE = 2 << 20
FACTOR = np.uint64(0x9E3779B97F4A7C15)


def cpu_seconds() -> float:
    """User + system of this process, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def anonymous(nbytes: int) -> np.ndarray:
    """Touched anonymous memory, huge pages advised, aligned to them."""
    area = mmap.mmap(-1, nbytes + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(area, dtype=np.uint8)
    skip = -whole.ctypes.data % HUGE
    memory = whole[skip:skip + nbytes]
    memory[:] = 0
    return memory


def fill(memory: np.ndarray) -> None:
    """Every 8 bytes have a value of their own."""
    words = memory.view(np.uint64)
    for at in range(0, words.size, 1 << 20):
        part = words[at:at + (1 << 20)]
        part[:] = np.arange(at + 1, at + 1 + part.size, dtype=np.uint64) * FACTOR


def orders(pages: int) -> tuple[np.ndarray, np.ndarray]:
    """Which page each step takes, and where it puts it: two independent shuffles."""
    return (np.random.default_rng(1).permutation(pages), np.random.default_rng(2).permutation(pages))


def holds(memory: np.ndarray, page_bytes: int) -> bool:
    """Whether `fill`ed memory arrived as `orders` says."""
    pages = memory.size // page_bytes
    src, dst = orders(pages)
    expected = np.empty(memory.size // 8, dtype=np.uint64)
    fill(expected.view(np.uint8))
    there = memory.view(np.uint64).reshape(pages, -1)
    return bool(np.array_equal(there[dst], expected.reshape(pages, -1)[src]))


def percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {"p50_us": ordered[len(ordered) // 2] * 1e6,
            "p99_us": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1e6}


def pin(core: int) -> None:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core % os.cpu_count()]})


def obey(nbytes: int, set_page: Callable[[int], None], move: Callable[[], None],
         target: Callable[[str], Any], one: Callable[[], None]) -> None:
    """Runs the command loop of an initiator.

    `move` moves everything once; `one` writes 4 KiB; `target` asks the other process: "start",
    "stop" (returns its CPU seconds between the two), "check PAGE" (whether the bytes are right).
    """
    page_bytes = 0
    for line in sys.stdin:
        words = line.split()
        answer: dict[str, Any] = {}
        if words[0] == "page":
            page_bytes = int(words[1])
            set_page(page_bytes)
        elif words[0] == "move":
            target("start")
            cpu, start = cpu_seconds(), time.perf_counter()
            try:
                move()
            except MoveFailedError as error:
                target("stop")
                print(json.dumps({"error": str(error)}), flush=True)
                continue
            seconds = time.perf_counter() - start
            own = cpu_seconds() - cpu
            answer = {"seconds": seconds, "gbps": nbytes / seconds / 1e9,
                      "cpu_s_per_gib": (own + target("stop")) / (nbytes / (1 << 30))}
            if "check" in words and not target(f"check {page_bytes}"):
                raise SystemExit("wrong bytes arrived")
        elif words[0] == "latency":
            times = []
            target("start")
            for _ in range(int(words[1])):
                if float(words[2]):
                    time.sleep(float(words[2]) * 1e-6)
                start = time.perf_counter()
                one()
                times.append(time.perf_counter() - start)
            target("stop")
            answer = percentiles(times)
        elif words[0] == "quit":
            break
        print(json.dumps(answer), flush=True)
    target("quit")


class MoveFailedError(Exception):
    """The engine refused or failed a transfer; it may take the next one."""


class TargetState:
    """The other side of `target`: call `ask` with each question."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory = memory
        self.active = False
        self._cpu = 0.0

    def ask(self, question: str) -> Any:
        words = question.split()
        if words[0] == "start":
            self.active = True
            self._cpu = cpu_seconds()
            return None
        if words[0] == "stop":
            self.active = False
            return cpu_seconds() - self._cpu
        if words[0] == "check":
            good = holds(self.memory, int(words[1]))
            self.memory[:] = 0
            return good
        raise SystemExit(0)
