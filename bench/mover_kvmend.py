"""kvmend's Python package as a mover (pages_py.py): NumPy arrays of indices, two processes."""

from __future__ import annotations

import argparse
import multiprocessing as mp
from multiprocessing.connection import Connection
from typing import Any

import kvmend
import numpy as np
import pages_py


def memory_of(kind: str, nbytes: int) -> np.ndarray:
    if kind == "foreign":
        return pages_py.anonymous(nbytes)
    memory = kvmend.MemoryPool(nbytes).array
    memory[:] = 0
    return memory


def serve(pipe: Connection, args: argparse.Namespace) -> None:
    """The target: its engine's own threads do the work."""
    if args.transport == "tcp":
        pages_py.pin(1)
    memory = memory_of("pool" if args.transport == "local" else args.memory, args.total_mib << 20)
    engine = kvmend.TransferEngine(local="off" if args.transport == "tcp" else "auto")
    address = engine.register_memory(memory)
    pipe.send((engine.session_id, address))
    state = pages_py.TargetState(memory)
    while True:
        pipe.send(state.ask(pipe.recv()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transport", choices=("tcp", "local"), default="tcp")
    parser.add_argument("--memory", choices=("pool", "foreign"), default="pool")
    parser.add_argument("--total-mib", type=int, default=256)
    args = parser.parse_args()
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, args), daemon=True)
    process.start()
    theirs.close()
    if args.transport == "tcp":
        pages_py.pin(0)
    nbytes = args.total_mib << 20
    memory = memory_of(args.memory, nbytes)
    pages_py.fill(memory)
    engine = kvmend.TransferEngine(local="off" if args.transport == "tcp" else "auto",
                                   default_deadline=120.0)
    local = engine.register_memory(memory)
    session, remote = ours.recv()
    engine.open_session(session)
    while True:  # a local session is tcp until its link stands
        engine.write(session, local, remote, 4096)
        if engine.sessions()[0].transport == args.transport:
            break
    layouts: dict[str, Any] = {}

    def set_page(page_bytes: int) -> None:
        pages = nbytes // page_bytes
        layouts["pair"] = engine.prepare(session, [local], [remote], page_bytes, pages)
        layouts["src"], layouts["dst"] = (o.astype(np.uint32) for o in pages_py.orders(pages))

    def target(question: str) -> Any:
        ours.send(question)
        return None if question == "quit" else ours.recv()

    pages_py.obey(nbytes, set_page,
                  lambda: engine.submit_pages(layouts["pair"], "write", layouts["src"],
                                              layouts["dst"]).wait(),
                  target, lambda: engine.write(session, local, remote, 4096))
    process.join(5)


if __name__ == "__main__":
    main()
