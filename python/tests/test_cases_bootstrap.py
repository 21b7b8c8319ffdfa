"""Cases B2 and B5: prefill, decode and their registry find each other, in any order and on ::1."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator

import kvmend
import pytest
from kvmend import BootstrapClient, BootstrapServer, KVPoll
from kvmend.testing.peer import Peer, wait_until

PREFILL = """
from kvmend.testing.pools import Pools
pools = Pools()
pools.fill(seed=1)
manager = KVManager(engine, "prefill", pools.layout)
BootstrapClient(registry).register(manager, timeout=30)
sender = KVSender(manager, 1)
sender.init(2, 3)
sender.send([4, 5])
assert sender.wait(30) == KVPoll.SUCCESS, sender.failure_exception()
"""

DECODE = """
from kvmend.testing.pools import Pools
pools = Pools()
manager = KVManager(engine, "decode", pools.layout)
prefill = BootstrapClient(registry).find(timeout=30)
receiver = KVReceiver(manager, prefill.session_id, 1)
receiver.init()
receiver.send_metadata([8, 9], 2)
assert receiver.wait(30) == KVPoll.SUCCESS, receiver.failure_exception()
"""

REGISTRY = "server = BootstrapServer(host, port)"


def free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def registry() -> Iterator[BootstrapServer]:
    with BootstrapServer(port=0) as server:
        yield server


@pytest.mark.parametrize(
    "order", list(itertools.permutations(["registry", "prefill", "decode"])), ids="-".join
)
def test_b2_they_converge_in_every_order(
    order: tuple[str, ...], start_peer: Callable[..., Peer]
) -> None:
    port = free_port("127.0.0.1")
    address = f"127.0.0.1:{port}"
    peers = {}
    for name in order:
        peers[name] = start_peer(make_engine=name != "registry")
        if name == "registry":
            peers[name].run(REGISTRY, host="127.0.0.1", port=port)
        else:
            peers[name].begin(PREFILL if name == "prefill" else DECODE, registry=address)
    peers["prefill"].finish()
    peers["decode"].finish()
    assert peers["registry"].get("server.stats()['ranks']") == 1


def test_b2_without_a_registry_there_is_a_clear_error_in_time() -> None:
    port = free_port("127.0.0.1")
    with pytest.raises(kvmend.DeadlineExceededError, match=f"127.0.0.1:{port}.*refused"):
        BootstrapClient(f"127.0.0.1:{port}").find(timeout=0.5)


def test_b2_without_a_prefill_there_is_a_clear_error_in_time(registry: BootstrapServer) -> None:
    with pytest.raises(kvmend.DeadlineExceededError, match="not"):
        BootstrapClient(registry.address).find(timeout=0.5)


@pytest.mark.parametrize("bare", [True, False], ids=["bare", "bracketed"])
def test_b5_everything_on_ipv6_loopback(start_peer: Callable[..., Peer], bare: bool) -> None:
    try:
        port = free_port("::1")
    except OSError as error:
        pytest.skip(f"no ::1 here: {error}")
    host = "::1" if bare else "[::1]"
    registry = start_peer(make_engine=False)
    registry.run(REGISTRY, host=host, port=port)
    prefill, decode = start_peer(host=host), start_peer(host=host)
    assert prefill.session_id.startswith("[::1]:")
    prefill.begin(PREFILL, registry=f"[::1]:{port}")
    decode.run(DECODE, registry=f"http://[::1]:{port}")
    prefill.finish()
    same = "pools.page_bytes(pages).hex()"
    assert prefill.get(same, pages=[4, 5]) == decode.get(same, pages=[8, 9])
    assert decode.get("engine.send_probe(prefill.session_id)") == 0
    assert decode.get("[s.session_id for s in engine.sessions()]") == [prefill.session_id]


def test_registering_twice_is_harmless(
    registry: BootstrapServer, start_peer: Callable[..., Peer]
) -> None:
    prefill = start_peer()
    prefill.run(
        """
        from kvmend.testing.pools import Pools
        manager = KVManager(engine, "prefill", Pools().layout)
        for _ in range(3):
            BootstrapClient(registry).register(manager)
        """,
        registry=registry.address,
    )
    client = BootstrapClient(registry.address)
    assert client.find() == (prefill.session_id, prefill.get("engine.incarnation"))
    shape = client.topology()
    assert (shape["tp_size"], shape["page_tokens"], shape["dtype"]) == (1, 16, "uint8")
    assert shape["backend"] == "kvmend"
    assert registry.stats()["ranks"] == 1

    old = prefill.get("engine.incarnation")
    prefill.kill()
    successor = start_peer(port=prefill.port)
    successor.run(
        """
        from kvmend.testing.pools import Pools
        manager = KVManager(engine, "prefill", Pools().layout)
        BootstrapClient(registry).register(manager)
        """,
        registry=registry.address,
    )
    wait_until(lambda: client.find().incarnation != old, "the new process's entry")
    assert registry.stats()["ranks"] == 1


def test_a_registry_that_is_none(start_peer: Callable[..., Peer]) -> None:
    peer = start_peer()  # an engine's port: not HTTP
    with pytest.raises(kvmend.KvmendError, match=str(peer.port)):
        BootstrapClient(peer.session_id).find(timeout=1)
    with pytest.raises(kvmend.InvalidArgumentError, match="no address"):
        BootstrapClient("no address")
    assert peer.get("engine.stats().registered_bytes") >= 0  # and it is alive


def test_kvpoll_is_the_fields_numbers() -> None:
    assert [status.name for status in sorted(KVPoll)] == [
        "FAILED",
        "BOOTSTRAPPING",
        "WAITING_FOR_INPUT",
        "TRANSFERRING",
        "SUCCESS",
    ]
