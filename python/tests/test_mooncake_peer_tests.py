"""The cases of Mooncake's own wheel tests, in words of our own.

What they cover: the two import forms; with an HTTP metadata server and with P2PHANDSHAKE: random
strings written, erased here and read back; the same in batches of 100, synchronous and
asynchronous; submissions to a name that nobody has return 0; probes of a peer and of nobody.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from kvmend.mooncake import TransferEngine
from kvmend.mooncake.metadata_server import MetadataServer
from kvmend.testing.peer import Peer

ROUNDS = 50
BATCH = 100
STRIDE = 1024
CAPACITY = 64 << 20

TARGET = """
from kvmend.mooncake import TransferEngine as Engine
engine = Engine()
assert engine.initialize(name, metadata, "tcp", "") == 0
if metadata == "P2PHANDSHAKE":
    name = f"127.0.0.1:{engine.get_rpc_port()}"
assert engine.get_first_buffer_address(name) == 0
assert engine.allocate_managed_buffer(capacity) != 0
"""


class Both(NamedTuple):
    engine: TransferEngine
    source: int
    peer: str
    there: int


@pytest.fixture(scope="module", params=["http", "P2PHANDSHAKE"])
def both(request: pytest.FixtureRequest) -> Iterator[Both]:
    server = MetadataServer().start() if request.param == "http" else None
    metadata = server.url if server else "P2PHANDSHAKE"
    with Peer(make_engine=False) as target:
        target.run(TARGET, name="127.0.0.1:12345", metadata=metadata, capacity=CAPACITY)
        engine = TransferEngine()
        assert engine.initialize("127.0.0.1:12347", metadata, "tcp", "") == 0
        name = target.get("name")
        there = engine.get_first_buffer_address(name)
        assert there != 0
        yield Both(engine, engine.allocate_managed_buffer(CAPACITY), name, there)
    if server:
        server.stop()


def strings(seed: int, count: int, longest: int) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(rng.randint(16, longest)) for _ in range(count)]


def test_strings_come_back(both: Both) -> None:
    engine, source, peer, there = both
    for data in strings(1, ROUNDS, 256):
        size = len(data)
        assert engine.write_bytes_to_buffer(source, data, size) == 0
        assert engine.transfer_sync_write(peer, source, there, size) == 0
        assert engine.write_bytes_to_buffer(source, bytes(size), size) == 0
        assert engine.transfer_sync_read(peer, source, there, size) == 0
        assert engine.read_bytes_from_buffer(source, size) == data


@pytest.mark.parametrize("asynchronous", [False, True])
def test_batches_come_back(both: Both, asynchronous: bool) -> None:
    engine, source, peer, there = both
    local = [source + i * STRIDE for i in range(BATCH)]
    remote = [there + i * STRIDE for i in range(BATCH)]

    def move(direction: str, sizes: list[int]) -> int:
        if not asynchronous:
            call = getattr(engine, f"batch_transfer_sync_{direction}")
            return int(call(peer, local, remote, sizes))
        batch = getattr(engine, f"batch_transfer_async_{direction}")(peer, local, remote, sizes)
        assert batch != 0
        return engine.get_batch_transfer_status([batch])

    for turn in range(3):
        data = strings(turn, BATCH, 128)
        sizes = [len(item) for item in data]
        for address, item in zip(local, data, strict=True):
            assert engine.write_bytes_to_buffer(address, item, len(item)) == 0
        assert move("write", sizes) == 0
        for address, size in zip(local, sizes, strict=True):
            assert engine.write_bytes_to_buffer(address, bytes(size), size) == 0
        assert move("read", sizes) == 0
        for address, item in zip(local, data, strict=True):
            assert engine.read_bytes_from_buffer(address, len(item)) == item


def test_submissions_to_nobody_return_0(both: Both) -> None:
    assert both.engine.batch_transfer_async_write("unreachable_peer:9", [0], [0], [16]) == 0
    assert both.engine.transfer_submit_write("unreachable_peer:9", 0, 0, 16) == 0


def test_a_probe_of_the_peer_passes(both: Both) -> None:
    assert both.engine.send_probe(both.peer) == 0


def test_a_probe_of_nobody_fails(both: Both) -> None:
    assert both.engine.send_probe("unreachable_peer:9") != 0
