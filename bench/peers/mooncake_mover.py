"""Mooncake's transfer engine over tcp as a mover (../pages_py.py). Runs in its own environment."""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import pages_py  # noqa: E402


#: Pages of one call: with its limits raised, too, 4,096 at once fail with -1.
BATCH = 1024


def new_engine() -> Any:
    """An engine that listens on loopback and finds its peers without a metadata server."""
    # Its TCP transport refuses batches beyond its queue's limit: give it its best.
    for limit in ("MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER", "MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER"):
        os.environ.setdefault(limit, "1048576")
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    code = engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")
    if code:
        raise SystemExit(f"mooncake: initialize returned {code}")
    return engine


def register(engine: Any, memory: np.ndarray) -> int:
    address = memory.ctypes.data
    if engine.register_memory(address, memory.size):
        raise SystemExit("mooncake: register_memory failed")
    return address


def serve(pipe: Connection, total: int) -> None:
    pages_py.pin(1)
    memory = pages_py.anonymous(total)
    engine = new_engine()
    address = register(engine, memory)
    pipe.send((f"127.0.0.1:{engine.get_rpc_port()}", address))
    state = pages_py.TargetState(memory)
    while True:
        pipe.send(state.ask(pipe.recv()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-mib", type=int, default=256)
    args = parser.parse_args()
    total = args.total_mib << 20
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, total), daemon=True)
    process.start()
    theirs.close()
    pages_py.pin(0)
    memory = pages_py.anonymous(total)
    pages_py.fill(memory)
    engine = new_engine()
    local = register(engine, memory)
    session, remote = ours.recv()
    batches: list[tuple[list[int], list[int], list[int]]] = []

    def set_page(page_bytes: int) -> None:
        src, dst = pages_py.orders(total // page_bytes)
        sources, targets = (local + src * page_bytes).tolist(), (remote + dst * page_bytes).tolist()
        batches[:] = [(part := sources[at:at + BATCH], targets[at:at + BATCH],
                       [page_bytes] * len(part)) for at in range(0, len(sources), BATCH)]

    def move() -> None:
        for batch in batches:
            code = engine.batch_transfer_sync_write(session, *batch)
            if code:
                raise pages_py.MoveFailedError(f"batch_transfer_sync_write returned {code}")

    def one() -> None:
        if engine.transfer_sync_write(session, local, remote, 4096):
            raise SystemExit("mooncake: transfer_sync_write failed")

    def target(question: str) -> Any:
        ours.send(question)
        return None if question == "quit" else ours.recv()

    pages_py.obey(total, set_page, move, target, one)
    sys.stdout.flush()
    os._exit(0)  # without its teardown


if __name__ == "__main__":
    main()
