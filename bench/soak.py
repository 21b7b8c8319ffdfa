"""./dev bench soak: ten threads submit for a minute; descriptors, memory and threads stay flat."""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import kvmend
import numpy as np
from rich.console import Console

MIB = 1 << 20
POOL = 64 * MIB
SUBMITTERS = 10
PAGE = 4096

Row = dict[str, Any]


def footprint() -> dict[str, int]:
    """Descriptors, threads and private resident KiB of this process."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {"fds": len(os.listdir("/proc/self/fd")), "threads": int(status["Threads"]),
            "rss_kib": int(status["RssAnon"].split()[0]) + int(status["RssFile"].split()[0])}


def serve(pipe: Connection, local: str) -> None:
    memory = kvmend.MemoryPool(POOL).array
    engine = kvmend.TransferEngine(local=local)
    pipe.send((engine.session_id, engine.register_memory(memory)))
    while pipe.recv():
        pipe.send(footprint())


def submit_until(end: float, engine: kvmend.TransferEngine, session: str, local: int, remote: int,
                 seed: int, counts: dict[str, int], lock: threading.Lock) -> None:
    """Random batches; some are cancelled, some carry checksums, some have a short deadline."""
    random = np.random.default_rng(seed)
    while time.monotonic() < end:
        pages = int(random.integers(1, 2000))
        there = random.integers(0, POOL // PAGE, (2, pages)).astype(np.uint64) * np.uint64(PAGE)
        kind = int(random.integers(0, 10))
        transfer = engine.submit(
            session, "write" if kind % 3 else "read", np.uint64(local) + there[0],
            np.uint64(remote) + there[1], np.full(pages, PAGE, np.uint64), checksum=kind == 4,
            urgent=kind == 5, deadline=0.001 if kind == 6 else 30.0)
        if kind == 7:
            transfer.cancel()
        outcome = "ok"
        try:
            transfer.wait()
        except kvmend.CancelledError:
            outcome = "cancelled"
        except kvmend.DeadlineExceededError:
            outcome = "expired"
        with lock:
            counts[outcome] += 1
            counts["pages"] += pages


def soak(seconds: float, local: str, console: Console) -> Row:
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, local), daemon=True)
    process.start()
    theirs.close()
    engine = kvmend.TransferEngine(local=local)
    memory = kvmend.MemoryPool(POOL).array
    address = engine.register_memory(memory)
    session, remote = ours.recv()
    engine.open_session(session)
    counts = {"ok": 0, "cancelled": 0, "expired": 0, "pages": 0}
    lock = threading.Lock()
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=submit_until, args=(end, engine, session, address, remote,
                                                          seed, counts, lock))
               for seed in range(SUBMITTERS)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    seen: list[tuple[dict[str, int], dict[str, int]]] = []
    while time.monotonic() < end - 1:
        time.sleep(max(1.0, seconds / 30))
        ours.send(True)
        seen.append((footprint(), ours.recv()))
    for thread in threads:
        thread.join()
    took = time.monotonic() - start
    settled = seen[len(seen) // 4:]  # every lane, buffer and copy thread is there by then
    row: Row = {"transport": engine.sessions()[0].transport, "submitters": SUBMITTERS,
                "seconds": round(took, 1), **counts,
                "gbps": counts["pages"] * PAGE / took / 1e9}
    flat = True
    for side, name in ((0, "initiator"), (1, "target")):
        for key, slack in (("fds", 2), ("threads", 0), ("rss_kib", 4096)):
            first, last = settled[0][side][key], settled[-1][side][key]
            row[f"{name}_{key}"] = [first, last]
            flat = flat and last <= first + slack
    if not flat or counts["ok"] == 0:
        row["error"] = "something grows" if counts["ok"] else "no transfer succeeded"
    console.print(row)
    engine.shutdown()
    ours.send(False)
    process.join(5)
    return row


def run(args: argparse.Namespace, console: Console) -> list[Row]:
    """Both transports."""
    seconds = 10.0 if args.quick else 60.0
    return [soak(seconds, local, console) for local in ("off", "auto")]
