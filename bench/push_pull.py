"""Pull or push? The same pages of a vLLM-like pool, moved both ways between two processes.

    python bench/push_pull.py [--rounds 7]      (PYTHONPATH: the folder that holds kvmend)

For each shape and way it prints the median round: milliseconds of a request, GB/s. "pull" is
what the vLLM connector does (a read of the pages, then a read of the lease's 16 bytes); "push" is a
room of the KV manager (decode announces pages, prefill writes them). Each over same-host memory
("local") and over tcp; an engine's reads go by tcp in both. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np
from kvmend import Access, KVComponent, KVLayout, KVManager, KVReceiver, TransferEngine
from kvmend.testing.peer import Peer

#: name -> (layers, blocks in the pool, bytes of a block in a layer, blocks of a request)
SHAPES = {
    "SmolLM2-135M on CPU, float32, 1,518 tokens": (30, 64, 196_608, 12),
    "8B on GPU, one rank of 8, bfloat16, 4,096 tokens": (32, 1024, 8_192, 256),
    "8B on GPU, one rank of 8, bfloat16, 128 tokens": (32, 1024, 8_192, 8),
}

PREFILL = """
layers = [np.full((blocks, block_bytes), i, np.uint8) for i in range(count)]
lease = np.ones(2, np.uint64)
"""
PULL = """
addresses = engine.register_batch(layers, Access.REMOTE_READ)
lease_address = engine.register_memory(lease, Access.REMOTE_READ)
"""
PUSH = """
manager = KVManager(engine, "prefill", KVLayout([KVComponent(layers, block_bytes)], 16, 1, 64))
def send(room, pages):
    sender = KVSender(manager, room)
    sender.init(len(pages))
    sender.send(pages)
    senders.append(sender)
senders = []
"""


def pull(
    peer: Peer, engine: TransferEngine, shape: tuple[int, int, int, int], n: int
) -> list[float]:
    count, blocks, size, wanted = shape
    peer.run(PULL)
    there = np.array(peer.get("addresses"), np.uint64)
    lease_there = peer.get("lease_address")
    layers = [np.zeros((blocks, size), np.uint8) for _ in range(count)]
    word = np.zeros(2, np.uint64)
    here = np.array(engine.register_batch(layers, Access.NONE), np.uint64)
    word_here = engine.register_memory(word, Access.NONE)
    took = []
    for round_ in range(n):
        theirs, ours = pages(blocks, wanted, 2 * round_), pages(blocks, wanted, 2 * round_ + 1)
        start = time.perf_counter()
        local = (here[:, None] + ours * np.uint64(size)).ravel()
        remote = (there[:, None] + theirs * np.uint64(size)).ravel()
        engine.batch_read(peer.session_id, local, remote, np.full(len(local), size, np.uint64))
        engine.read(peer.session_id, word_here, lease_there, 16)
        took.append(time.perf_counter() - start)
        assert all((layer[ours.astype(int)] == i).all() for i, layer in enumerate(layers))
    return took


def push(
    peer: Peer, engine: TransferEngine, shape: tuple[int, int, int, int], n: int
) -> list[float]:
    count, blocks, size, wanted = shape
    peer.run(PUSH)
    layers = [np.zeros((blocks, size), np.uint8) for _ in range(count)]
    manager = KVManager(engine, "decode", KVLayout([KVComponent(layers, size)], 16, 1, 64))
    took = []
    for round_ in range(n):
        theirs, ours = pages(blocks, wanted, 2 * round_), pages(blocks, wanted, 2 * round_ + 1)
        peer.run("send(room, pages)", room=round_ + 1, pages=[int(p) for p in theirs])
        start = time.perf_counter()
        receiver = KVReceiver(manager, peer.session_id, round_ + 1)
        receiver.init()
        receiver.send_metadata(ours)
        receiver.wait()
        took.append(time.perf_counter() - start)
        receiver.raise_failure()
        assert all((layer[ours.astype(int)] == i).all() for i, layer in enumerate(layers))
        receiver.clear()
    manager.teardown()
    return took


def pages(blocks: int, wanted: int, seed: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.random.default_rng(seed).permutation(blocks)[:wanted].astype(np.uint64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    report: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        count, blocks, size, wanted = shape
        report[name] = {}
        for local in ("auto", "off"):
            for way in (pull, push):
                with Peer(local=local) as peer, TransferEngine(local=local) as engine:
                    peer.run(PREFILL, count=count, blocks=blocks, block_bytes=size)
                    took = way(peer, engine, shape, rounds + 2)[2:]  # the first two warm up
                seconds = statistics.median(took)
                rate = count * size * wanted / seconds / 1e9
                key = f"{way.__name__} {'local' if local == 'auto' else 'tcp'}"
                report[name][key] = {"ms": round(seconds * 1e3, 3), "GB_per_s": round(rate, 2)}
                print(f"{name:50} {key:12} {seconds * 1e3:8.2f} ms {rate:6.2f} GB/s", flush=True)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
