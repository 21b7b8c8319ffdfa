"""kvmend.mooncake with an HTTP metadata server: names, restarts, mixed fleets."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest
from kvmend.mooncake import TransferEngine
from kvmend.mooncake.metadata_server import MetadataServer
from kvmend.testing.peer import Peer

START = """
from kvmend.mooncake import TransferEngine as Engine
engine = Engine()
assert engine.initialize(name, metadata, "tcp", "") == 0
address = engine.allocate_managed_buffer(4096)
"""


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    server = MetadataServer().start()
    yield server
    server.stop()


@pytest.fixture
def target(server: MetadataServer) -> Iterator[Peer]:
    peer = Peer(make_engine=False)
    peer.run(START, name="localhost:12345", metadata=server.url)
    yield peer
    peer.kill()


def make_engine(server: MetadataServer, name: str = "127.0.0.1:12347") -> TransferEngine:
    engine = TransferEngine()
    assert engine.initialize(name, server.url, "tcp", "") == 0
    return engine


def ask(server: MetadataServer, method: str, key: str, body: bytes | None = None) -> int:
    request = urllib.request.Request(f"{server.url}?key={key}", body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_segments_are_names(server: MetadataServer, target: Peer) -> None:
    engine = make_engine(server)
    address = target.get("address")
    assert engine.get_first_buffer_address("localhost:12345") == address
    mine = engine.allocate_managed_buffer(64)
    assert engine.get_first_buffer_address("127.0.0.1:12347") == mine
    assert engine.write_bytes_to_buffer(mine, b"by name", 7) == 0
    assert engine.transfer_sync_write("localhost:12345", mine, address, 7) == 0
    assert target.get("engine.read_bytes_from_buffer(address, 7).decode()") == "by name"
    assert engine.send_probe("localhost:12345") == 0


def test_names_that_nobody_has(server: MetadataServer) -> None:
    engine = make_engine(server)
    mine = engine.allocate_managed_buffer(64)
    assert engine.send_probe("unreachable_peer:9") == -101
    assert engine.transfer_sync_write("unreachable_peer:9", mine, mine, 7) == -1
    assert engine.batch_transfer_async_write("unreachable_peer:9", [mine], [mine], [7]) == 0
    assert engine.get_first_buffer_address("a name/with?odd&signs=#") == 0


def test_a_real_mooncake_engine_is_named_as_the_mismatch(
    server: MetadataServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.values["mooncake/rpc_meta/old:1"] = b'{"ip_or_host_name": "127.0.0.1", "rpc_port": 1}'
    engine = make_engine(server)
    assert engine.send_probe("old:1") == -101
    assert "is a Mooncake engine" in caplog.text and "kvmend.exec" in caplog.text


@pytest.mark.parametrize(
    "value",
    [b"", b"[]", b"\xff", b"{}", b'{"session_id": 1, "incarnation": "1"}', b"9" * 70000,
     b'{"session_id": "127.0.0.1:9", "incarnation": "-1"}',
     b'{"session_id": "127.0.0.1", "incarnation": "1"}',
     b'{"session_id": "127.0.0.1:9", "incarnation": 5}'],
)  # fmt: skip
def test_nonsense_on_the_server_is_an_error(server: MetadataServer, value: bytes) -> None:
    server.values["kvmend/engine/bad"] = value
    engine = make_engine(server)
    mine = engine.allocate_managed_buffer(64)
    assert engine.transfer_sync_write("bad", mine, mine, 7) == -1
    assert engine.send_probe("bad") == -101
    assert engine.get_first_buffer_address("bad") == 0


def test_a_name_stays_with_the_process_that_it_was_found_as(
    server: MetadataServer, target: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(server)
    mine = engine.allocate_managed_buffer(64)
    address = engine.get_first_buffer_address("localhost:12345")
    target.kill()
    with Peer(make_engine=False) as other:
        other.run(START, name="localhost:12345", metadata=server.url)
        assert engine.transfer_sync_write("localhost:12345", mine, address, 7) == -1
        assert "peer restarted" in caplog.text
        assert engine.send_probe("localhost:12345") == -104
        address = other.get("address")
        assert engine.get_first_buffer_address("localhost:12345") == address
        assert engine.send_probe("localhost:12345") == 0
        assert engine.transfer_sync_write("localhost:12345", mine, address, 7) == 0


def test_an_engine_takes_its_name_back(server: MetadataServer) -> None:
    engine = make_engine(server)
    entry = json.loads(server.values["kvmend/engine/127.0.0.1:12347"])
    assert entry["session_id"] == f"127.0.0.1:{engine.get_rpc_port()}"
    del engine
    assert "kvmend/engine/127.0.0.1:12347" not in server.values


def test_a_server_that_is_gone_is_an_error(server: MetadataServer) -> None:
    engine = make_engine(server)
    mine = engine.allocate_managed_buffer(64)
    server.stop()
    assert engine.send_probe("somebody") == -101
    assert engine.transfer_sync_write("somebody", mine, mine, 7) == -1
    assert TransferEngine().initialize("127.0.0.1", server.url, "tcp", "") == -1


def test_the_metadata_server_is_the_originals(server: MetadataServer) -> None:
    assert ask(server, "GET", "a") == 404
    assert ask(server, "DELETE", "a") == 404
    assert ask(server, "PUT", "a", b"1") == 200
    assert ask(server, "PUT", "a", b"2") == 200
    assert server.values["a"] == b"2"
    assert ask(server, "GET", "a") == 200
    assert ask(server, "PUT", "x/rpc_meta/y", b"1") == 200
    assert ask(server, "PUT", "x/rpc_meta/y", b"2") == 400
    assert ask(server, "DELETE", "a") == 200
    for method in ("GET", "PUT", "DELETE"):
        assert ask(server, method, "", b"x") == 400
    assert ask(server, "PUT", "big", bytes(70000)) == 413
    assert np.array_equal(sorted(server.values), ["x/rpc_meta/y"])
