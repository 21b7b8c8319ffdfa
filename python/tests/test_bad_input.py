"""Bad input: each kind gives a distinct error that names the values, and changes no table."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import kvmend
import numpy as np
import pytest
import xxhash
from kvmend import KVPoll, KVReceiver, KVSender, TransferEngine
from kvmend.testing.pair import Pair
from kvmend.testing.peer import Peer, wait_until


class Setup:
    """An engine and a peer with 4 KiB each, connected."""

    def __init__(self, engine: TransferEngine, peer: Peer) -> None:
        self.engine, self.peer = engine, peer
        self.local = engine.register_memory(np.zeros(4096, np.uint8))
        peer.run("memory = np.zeros(4096, np.uint8); engine.register_memory(memory)")
        self.remote = peer.get("memory.ctypes.data")
        engine.write(peer.session_id, self.local, self.remote, 4096)

    def table(self) -> list[Any]:
        """What must be the same afterwards, on both sides."""
        (session,) = [
            s for s in self.engine.sessions() if s.session_id == self.peer.session_id
        ]
        return [
            session.state,
            session.epoch,
            session.queued_transfers,
            len(session.history),
            self.engine.stats().regions,
            self.peer.get("engine.stats().regions"),
            self.peer.get("engine.stats().grants"),
        ]


@pytest.fixture
def setup(engine: TransferEngine, peer: Peer) -> Setup:
    return Setup(engine, peer)


Case = tuple[Callable[[Setup], object], type[kvmend.KvmendError], str]
CASES: dict[str, Case] = {
    "session id without a port": (
        lambda s: s.engine.write("127.0.0.1", s.local, s.remote, 1),
        kvmend.InvalidArgumentError, "127.0.0.1",
    ),
    "session id that is a name": (
        lambda s: s.engine.write("decode-7:80", s.local, s.remote, 1),
        kvmend.InvalidArgumentError, "decode-7",
    ),
    "zero length": (
        lambda s: s.engine.batch_write(
            s.peer.session_id, [s.local] * 2, [s.remote] * 2, [8, 0]
        ),
        kvmend.InvalidArgumentError, "slice 1 .*length 0",
    ),
    "no slice": (
        lambda s: s.engine.batch_write(s.peer.session_id, [], [], []),
        kvmend.InvalidArgumentError, "without a slice",
    ),
    "lists that differ": (
        lambda s: s.engine.batch_write(s.peer.session_id, [s.local] * 3, [s.remote], [8]),
        kvmend.InvalidArgumentError, "3 local addresses, 1 remote",
    ),
    "a length below zero": (
        lambda s: s.engine.write(s.peer.session_id, s.local, s.remote, -8),
        kvmend.InvalidArgumentError, "lengths.*-8",
    ),
    "an address that is no number": (
        lambda s: s.engine.write(s.peer.session_id, s.local, 1.5, 8),  # type: ignore[arg-type]
        kvmend.InvalidArgumentError, "remote_addrs",
    ),
    "a local address that isn't registered": (
        lambda s: s.engine.write(s.peer.session_id, 0xDEAD000, s.remote, 8),
        kvmend.NotRegisteredError, "0xdead000",
    ),
    "beyond the local region": (
        lambda s: s.engine.write(s.peer.session_id, s.local + 4090, s.remote, 8),
        kvmend.NotRegisteredError, "8 bytes at",
    ),
    "a remote address that isn't registered": (
        lambda s: s.engine.write(s.peer.session_id, s.local, 0xDEAD000, 8),
        kvmend.NotRegisteredError, "0xdead000",
    ),
    "beyond the remote region": (
        lambda s: s.engine.write(s.peer.session_id, s.local, s.remote + 4090, 8),
        kvmend.KvmendError, "8",
    ),
    "a length that wraps around": (
        lambda s: s.engine.write(s.peer.session_id, s.local, s.remote, 2**64 - 1),
        kvmend.NotRegisteredError, str(2**64 - 1),
    ),
    "an unknown operation": (
        lambda s: s.engine.submit(s.peer.session_id, "move", s.local, s.remote, 8),
        kvmend.InvalidArgumentError, "'move'",
    ),
    "a deadline of zero": (
        lambda s: s.engine.write(s.peer.session_id, s.local, s.remote, 8, deadline=0),
        kvmend.InvalidArgumentError, "deadline is 0",
    ),
    "a region twice": (
        lambda s: s.engine.register_memory((s.local + 100, 8)),
        kvmend.AlreadyExistsError, "overlaps",
    ),
    "a region without bytes": (
        lambda s: s.engine.register_memory((s.local, 0)),
        kvmend.InvalidArgumentError, "0 bytes",
    ),
    "a batch of regions, one of them bad": (
        lambda s: s.engine.register_batch([bytearray(64), (s.local, 8)]),
        kvmend.AlreadyExistsError, "overlaps",
    ),
    "a region that isn't there": (
        lambda s: s.engine.unregister_memory(0xDEAD000),
        kvmend.NotRegisteredError, "0xdead000",
    ),
    "an unknown option": (
        lambda s: TransferEngine(hart_beat=1),  # type: ignore[call-arg]
        kvmend.InvalidArgumentError, "'hart_beat'.*heartbeat",
    ),
    "an option out of its range": (
        lambda s: TransferEngine(data_lanes=99),
        kvmend.InvalidArgumentError, "data_lanes is 99.*1 to 16",
    ),
    "no time to connect": (
        lambda s: TransferEngine(connect_deadline=0),
        kvmend.InvalidArgumentError, "connect_deadline is 0 s, but must be from 0.001 s",
    ),
    "a negative time": (
        lambda s: TransferEngine(heartbeat=-1),
        kvmend.InvalidArgumentError, "heartbeat is -1 s, but must be",
    ),
    "a time beyond reason": (
        lambda s: TransferEngine(progress_deadline=1e9),
        kvmend.InvalidArgumentError, r"progress_deadline is 1e\+09 s, but must be",
    ),
    "a time that isn't a number": (
        lambda s: TransferEngine(probe_max=float("nan")),
        kvmend.InvalidArgumentError, "probe_max=nan must be",
    ),
    "a wait that isn't a number": (
        lambda s: s.engine.open_session(s.peer.session_id, timeout=float("nan")),
        kvmend.InvalidArgumentError, "nan",
    ),
    "an option in broken Unicode": (
        lambda s: TransferEngine(congestion="\ud800"),
        kvmend.InvalidArgumentError, "congestion='.*ud800' must be a str",
    ),
    "a host with a port": (
        lambda s: TransferEngine("127.0.0.1:99"),
        kvmend.InvalidArgumentError, "host is '127.0.0.1:99', but must be an address without a port",
    ),
    "a host with a zero byte": (
        lambda s: TransferEngine("127.0.0.1\0x"),
        kvmend.InvalidArgumentError, "127.0.0.1\0x.*numeric",
    ),
    "an access that doesn't exist": (
        lambda s: s.engine.register_memory(bytearray(64), 99),
        kvmend.InvalidArgumentError, "access.*99",
    ),
    "a port that is taken": (
        lambda s: TransferEngine(port=s.peer.port),
        kvmend.ResourceExhaustedError, "bind",
    ),
    "a public address": (
        lambda s: TransferEngine("0.0.0.0"),
        kvmend.PermissionDeniedError, "0.0.0.0.*insecure",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_error_names_the_values_and_nothing_changes(setup: Setup, name: str) -> None:
    act, error, words = CASES[name]
    before = setup.table()
    with pytest.raises(error, match=words) as raised:
        act(setup)
    assert raised.value.origin in ("caller", "local")
    assert setup.table() == before
    setup.engine.write(setup.peer.session_id, setup.local, setup.remote, 4096)


# ---------------------------------------------------------------------------------------- peers


@contextmanager
def listener(answer: bytes) -> Iterator[str]:
    """A server that answers every connection with these bytes and closes; its session id."""
    import threading

    with socket.create_server(("127.0.0.1", 0)) as server:
        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(1)
                    try:
                        connection.recv(4096)
                        connection.sendall(answer)
                    except OSError:
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_refused_connection(setup: Setup) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    before = setup.table()
    assert setup.engine.send_probe(nobody) == -kvmend.Code.CONNECTION_REFUSED
    with pytest.raises(kvmend.KvmendError, match=nobody) as raised:
        setup.engine.open_session(nobody, timeout=1)
    assert "refused" in str(raised.value)
    with pytest.raises(kvmend.KvmendError, match=nobody) as raised:
        setup.engine.write(nobody, setup.local, setup.remote, 8, deadline=0.5)
    assert "refused" in str(raised.value)
    assert setup.table() == before, "other sessions are untouched"


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", bytes(64), b"\xff" * 4096],
    ids=["http", "zeros", "ones"],
)
def test_a_server_that_speaks_something_else(setup: Setup, answer: bytes) -> None:
    before = setup.table()
    with listener(answer) as session_id:
        code = setup.engine.send_probe(session_id, timeout=2)
        assert code in (-kvmend.Code.PROTOCOL_ERROR, -kvmend.Code.VERSION_MISMATCH)
        with pytest.raises(kvmend.KvmendError, match="isn.t a kvmend engine"):
            setup.engine.open_session(session_id, timeout=1)
    assert setup.table() == before


GARBAGE = {
    "http": b"GET /metrics HTTP/1.1\r\nHost: x\r\nUser-Agent: a browser\r\nAccept: */*\r\n\r\n",
    "zeros": bytes(65_536),
    "ones": b"\xff" * 65_536,
    "random": np.random.default_rng(7).bytes(65_536),
    "a huge length": struct.pack("<IIQ", 0x4B564D44, 1, 2**63) + bytes(64),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_into_the_port_closes_that_connection_only(setup: Setup, name: str) -> None:
    before = setup.table()
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", setup.peer.port)) as raw:
            raw.settimeout(10)
            try:
                raw.sendall(GARBAGE[name])
                while raw.recv(4096):
                    pass
            except ConnectionError:
                pass
    assert setup.peer.get("engine.stats().protocol_errors") >= 20
    assert setup.table() == before
    setup.engine.write(setup.peer.session_id, setup.local, setup.remote, 4096)


# The protocol by hand (docs/wire-protocol.md): a second implementation keeps the first one honest.
HELLO, HELLO_REJECT = 1, 3
HELLO_OF_VERSION_999 = (
    b"\x08\xe7\x07\x10\xe7\x07"  # version_min, version_max
    b"\x21" + struct.pack("<Q", 12345) + b"\x38\x01"  # incarnation, epoch
)
REJECT_BY_VERSION_999 = (
    b"\x08\x0f\x12\x0dcome tomorrow"  # code: version_mismatch; message
    b"\x19" + struct.pack("<Q", 12345) + b"\x28\xe7\x07\x30\xe7\x07"
)


def control_frame(kind: int, body: bytes) -> bytes:
    """Magic, type, flags, reserved, body bytes, payload bytes, id, count, check; then the body."""
    header = struct.pack("<4sBBHIIQI", b"KVM1", kind, 0, 0, len(body), 0, 0, 0)
    check = xxhash.xxh3_64_intdigest(body, seed=xxhash.xxh3_64_intdigest(header))
    return header + struct.pack("<I", check & 0xFFFF_FFFF) + body


def test_a_peer_of_a_version_to_come_is_told_which_versions_are_spoken(setup: Setup) -> None:
    before = setup.table()
    with socket.create_connection(("127.0.0.1", setup.peer.port)) as raw:
        raw.settimeout(10)
        raw.sendall(control_frame(HELLO, HELLO_OF_VERSION_999))
        answer = b""
        while data := raw.recv(4096):
            answer += data
    assert answer[:4] == b"KVM1" and answer[4] == HELLO_REJECT
    assert b"you speak versions 999..999, this engine" in answer
    assert setup.table() == before


def test_a_server_of_a_version_to_come_is_named(setup: Setup) -> None:
    before = setup.table()
    with listener(control_frame(HELLO_REJECT, REJECT_BY_VERSION_999)) as session_id:
        assert setup.engine.send_probe(session_id) == -kvmend.Code.VERSION_MISMATCH
        with pytest.raises(kvmend.VersionMismatchError, match="come tomorrow"):
            setup.engine.open_session(session_id, timeout=2)
        with pytest.raises(kvmend.KvmendError, match=f"{session_id}.*come tomorrow"):
            setup.engine.write(session_id, setup.local, setup.remote, 8, deadline=2)
    assert setup.table() == before


def test_decode_refuses_buffers_that_cant_be_written(engine: TransferEngine) -> None:
    def layout(buffer: object) -> kvmend.KVLayout:
        component = kvmend.KVComponent([buffer], 64, pool=kvmend.KVPool.KV)
        return kvmend.KVLayout([component], page_tokens=1, kv_heads=1, head_dim=16)

    frozen = np.zeros(1024, np.uint8)
    frozen.flags.writeable = False
    for buffer in (bytes(1024), frozen):
        with pytest.raises(kvmend.InvalidArgumentError, match="component 0: buffer 0 is read-only"):
            kvmend.KVManager(engine, "decode", layout(buffer))
        kvmend.KVManager(engine, "prefill", layout(buffer)).teardown()


# ---------------------------------------------------------------------------------------- rooms


def test_b1_a_duplicate_room_is_refused_and_the_first_goes_on(pair: Pair) -> None:
    """B1, on both sides."""
    pair.receive(1, [5])
    pair.peer.run("second = KVReceiver(manager, prefill, 1)")
    status, error = pair.peer.get("[second.wait(30), str(second.failure_exception())]")
    assert status == KVPoll.FAILED and "already_exists" in error and "1" in error

    first = pair.sender(1, 1)
    second = KVSender(pair.manager, 1)
    assert second.wait(30) == KVPoll.FAILED
    error = second.failure_exception()
    assert isinstance(error, kvmend.AlreadyExistsError) and "room 1" in str(error)
    second.clear()  # gives up nothing of the first's

    first.send([9])
    assert first.wait(30) == KVPoll.SUCCESS
    assert pair.ended(1)[0] == KVPoll.SUCCESS
    assert pair.pages_equal([9], [5])


def test_page_indices_out_of_range_name_page_and_pool(pair: Pair) -> None:
    pair.peer.run("""
        receiver = KVReceiver(manager, prefill, 2)
        receiver.init()
        def attempt(pages, aux=None):
            try:
                receiver.send_metadata(pages, aux)
            except KvmendError as error:
                return [type(error).__name__, str(error)]
    """)
    for pages, aux, kind, words in (
        ([1, 64], None, "OutOfRangeError", ["64"]),
        ([2**32 - 1], None, "OutOfRangeError", [str(2**32 - 1), "64"]),
        ([1], 8, "OutOfRangeError", ["8"]),
        ([3, 3], None, "InvalidArgumentError", ["3"]),
        ([1], -1, "InvalidArgumentError", ["aux_index", "-1"]),
        ([1], 1.5, "InvalidArgumentError", ["aux_index", "1.5"]),
        ([-1], None, "InvalidArgumentError", ["-1"]),
    ):
        name, text = pair.peer.get("attempt(pages, aux)", pages=pages, aux=aux)
        assert name == kind and all(word in text for word in words), text
    sender = KVSender(pair.manager, 2)
    with pytest.raises(kvmend.OutOfRangeError, match="8"):
        sender.init(2, aux_index=8)
    for pages in (-1, 2**32, "2"):
        with pytest.raises(kvmend.InvalidArgumentError, match=f"num_pages=.*{pages}"):
            sender.init(pages)  # type: ignore[arg-type]
    sender.init(2)
    with pytest.raises(kvmend.OutOfRangeError, match=r"64"):
        sender.send([64])
    # Neither side's room came to harm.
    assert pair.peer.get("attempt([7, 8])") is None
    sender.send([1, 2])
    assert sender.wait(30) == KVPoll.SUCCESS
    assert pair.pages_equal([1, 2], [7, 8])


def test_different_page_counts_end_the_room_with_both_numbers(pair: Pair) -> None:
    pair.receive(3, [1, 2, 3])
    sender = pair.sender(3, 2)
    assert sender.wait(30) == KVPoll.FAILED
    text = str(sender.failure_exception())
    assert "3" in text and "2" in text
    assert pair.ended(3)[0] == KVPoll.FAILED


def test_a_receiver_of_an_unknown_prefill_ends_in_bounded_time(pair: Pair) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    pair.peer.run("""
        receiver = KVReceiver(manager, nobody, 4)
        receiver.init()
        receiver.send_metadata([1])
    """, nobody=nobody)
    assert pair.peer.get("receiver.poll()") != KVPoll.SUCCESS
    pair.peer.run("receiver.abort('nobody there')")
    assert pair.peer.get("receiver.wait(30)") == KVPoll.FAILED
    wait_until(lambda: pair.peer.get("engine.stats().grants") == 0, "the grant to be gone")


def test_a_malformed_room_or_role_is_refused_at_once(pair: Pair) -> None:
    for room in (-1, 2**63, 1.5, "seven"):
        with pytest.raises(kvmend.InvalidArgumentError, match=f"room=.*{room}"):
            KVReceiver(pair.manager, "127.0.0.1:1", room)  # type: ignore[arg-type]
    receiver = KVReceiver(pair.manager, "127.0.0.1:1", 7)
    with pytest.raises(kvmend.InvalidArgumentError, match="prefix_tokens=-1"):
        receiver.send_metadata([1], prefix_tokens=-1)
    with pytest.raises(kvmend.InvalidArgumentError, match="-4"):
        receiver.send_metadata([1], states=[[-4]])
    with pytest.raises(kvmend.InvalidArgumentError, match="'router'"):
        kvmend.KVManager(pair.engine, "router", pair.pools.layout)
