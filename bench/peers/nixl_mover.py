"""NIXL with its UCX backend as a mover (../pages_py.py). Runs in its own environment.

`--polling`: no progress threads, both sides poll while something moves: its fastest mode over tcp
here. Else as an application gets it by default: progress threads, the target does nothing.
UCX_TLS=tcp in the environment keeps it off shared memory.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import pages_py  # noqa: E402


def new_agent(name: str, polling: bool) -> Any:
    try:
        import nixl_cu12._api as api
    except ImportError:
        import nixl._api as api
    agent = api.nixl_agent(name, api.nixl_agent_config(enable_prog_thread=not polling, backends=[]))
    agent.create_backend("UCX", {})
    return agent


def register(agent: Any, memory: np.ndarray, name: str) -> int:
    agent.register_memory([(memory.ctypes.data, memory.size, 0, name)], "DRAM")
    return memory.ctypes.data


def serve(pipe: Connection, total: int, polling: bool) -> None:
    pages_py.pin(1)
    memory = pages_py.anonymous(total)
    agent = new_agent("target", polling)
    address = register(agent, memory, "dst")
    pipe.send((agent.get_agent_metadata(), address))
    agent.add_remote_agent(pipe.recv())
    state = pages_py.TargetState(memory)
    connected = False
    while True:
        if pipe.poll(0 if polling and (state.active or not connected) else 10):
            question = pipe.recv()
            if question == "connected":
                connected = True
                pipe.send(None)
            else:
                pipe.send(state.ask(question))
        if polling:
            agent.get_new_notifs()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-mib", type=int, default=256)
    parser.add_argument("--polling", action="store_true")
    args = parser.parse_args()
    total = args.total_mib << 20
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, total, args.polling), daemon=True)
    process.start()
    theirs.close()
    pages_py.pin(0)
    memory = pages_py.anonymous(total)
    pages_py.fill(memory)
    agent = new_agent("initiator", args.polling)
    local = register(agent, memory, "src")
    metadata, remote = ours.recv()
    ours.send(agent.get_agent_metadata())
    peer = agent.add_remote_agent(metadata)
    peer = peer.decode() if isinstance(peer, bytes) else peer
    agent.make_connection(peer)
    ready: dict[str, Any] = {}

    def run(handle: Any) -> None:
        state = agent.transfer(handle)
        limit = time.perf_counter() + 120
        while state == "PROC":
            state = agent.check_xfer_state(handle)
            if time.perf_counter() > limit:
                raise pages_py.MoveFailedError("a transfer took 120 s")
        if state != "DONE":
            raise pages_py.MoveFailedError(f"a transfer ended with {state}")

    def set_page(page_bytes: int) -> None:
        pages = total // page_bytes
        src, dst = (o.astype(np.int32) for o in pages_py.orders(pages))
        places = np.zeros((pages, 3), dtype=np.uint64)
        places[:, 1] = page_bytes
        places[:, 0] = local + np.arange(pages, dtype=np.uint64) * np.uint64(page_bytes)
        ours_list = agent.prep_xfer_dlist("NIXL_INIT_AGENT", places, "DRAM")
        there = places.copy()
        there[:, 0] = remote + np.arange(pages, dtype=np.uint64) * np.uint64(page_bytes)
        their_list = agent.prep_xfer_dlist(peer, there, "DRAM")
        ready["all"] = agent.make_prepped_xfer("WRITE", ours_list, src, their_list, dst)
        first = np.array([0], dtype=np.int32)
        ready["one"] = agent.make_prepped_xfer("WRITE", ours_list, first, their_list, first)

    def target(question: str) -> Any:
        ours.send(question)
        return None if question == "quit" else ours.recv()

    set_page(1 << 20)
    run(ready["one"])
    target("connected")
    pages_py.obey(total, set_page, lambda: run(ready["all"]), target, lambda: run(ready["one"]))
    sys.stdout.flush()
    os._exit(0)  # without its teardown


if __name__ == "__main__":
    main()
