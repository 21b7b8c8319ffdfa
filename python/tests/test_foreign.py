"""KVManager over engines that aren't kvmend's: any object with Mooncake's engine API."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

import kvmend
import kvmend.mooncake
import pytest
from kvmend import ForeignOptions, KVManager, KVPoll, KVReceiver, KVSender
from kvmend.testing.peer import wait_until
from kvmend.testing.pools import Pools

PAGES = [1, 2, 3, 10]
THERE = [7, 5, 9, 30]


class Engine:
    """Both "processes" are this one: a write is a copy. `fault`: what a call does first."""

    ports = iter(range(20_001, 30_000))

    def __init__(self) -> None:
        self.port = next(Engine.ports)
        self.fault: Callable[[str], int | None] = lambda _: None
        self.registered: dict[int, int] = {}
        self.writes: list[str] = []

    def get_rpc_port(self) -> int:
        return self.port

    def batch_register_memory(self, addresses: list[int], lengths: list[int]) -> int:
        self.registered.update(zip(addresses, lengths, strict=True))
        return 0

    def batch_unregister_memory(self, addresses: list[int]) -> int:
        for address in addresses:
            del self.registered[address]
        return 0

    def batch_transfer_sync_write(
        self, session: str, buffers: list[int], peers: list[int], lengths: list[int]
    ) -> int:
        self.writes.append(session)
        rc = self.fault(session)
        if rc:
            return rc
        for source, target, length in zip(buffers, peers, lengths, strict=True):
            ctypes.memmove(target, source, length)
        return 0


class ProbedEngine(Engine):
    """With a probe, which says `answer`."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: Callable[[str], int] = lambda _: 0
        self.probed: list[str] = []

    def send_probe(self, session: str) -> int:
        self.probed.append(session)
        return self.answer(session)


class Side:
    """A manager over an engine, with pools."""

    def __init__(self, role: str, engine: Any, seed: int, **options: Any) -> None:
        self.pools = Pools()
        if seed:
            self.pools.fill(seed)
        self.engine = engine
        foreign: ForeignOptions = {
            "session_id": f"127.0.0.1:{engine.get_rpc_port()}",
            "probe_interval": 0.05,
            "probe_max_interval": 0.2,
            **options,
        }
        self.manager = KVManager(engine, role, self.pools.layout, foreign=foreign, room_deadline=20)

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.engine.get_rpc_port()}"


@pytest.fixture
def sides() -> Iterator[Callable[..., Side]]:
    made: list[Side] = []

    def make(role: str, engine: Any, seed: int = 0, **options: Any) -> Side:
        made.append(Side(role, engine, seed, **options))
        return made[-1]

    yield make
    for side in made:
        side.manager.teardown()


def request(prefill: Side, decode: Side, room: int) -> tuple[KVSender, KVReceiver]:
    receiver = KVReceiver(decode.manager, prefill.manager.session_id, room)
    receiver.send_metadata(THERE, 3)
    sender = KVSender(prefill.manager, room)
    sender.init(len(PAGES), 5)
    sender.send(PAGES[:2])
    sender.send(PAGES[2:])
    return sender, receiver


def moved(prefill: Side, decode: Side, room: int) -> None:
    """One request, byte for byte."""
    decode.pools.kv[:] = 0
    decode.pools.aux[:] = 0
    sender, receiver = request(prefill, decode, room)
    assert sender.wait(30) == KVPoll.SUCCESS, sender.failure_exception()
    assert receiver.wait(30) == KVPoll.SUCCESS, receiver.failure_exception()
    assert decode.pools.page_bytes(THERE) == prefill.pools.page_bytes(PAGES)
    assert decode.pools.aux[3].tolist() == prefill.pools.aux[5].tolist()
    assert int(decode.pools.kv.any(axis=(0, 2)).sum()) == len(THERE), "other pages are untouched"


def test_pages_travel_by_the_other_engine(sides: Callable[..., Side]) -> None:
    prefill, decode = sides("prefill", ProbedEngine(), 1), sides("decode", ProbedEngine())
    assert len(decode.engine.registered) == 5, "four KV buffers and the aux pool"
    for room in range(1, 6):
        moved(prefill, decode, room)
    assert set(prefill.engine.writes) == {decode.name}
    decode.manager.teardown()
    assert not decode.engine.registered


def test_the_registry_names_the_engine_that_carries_messages(sides: Callable[..., Side]) -> None:
    prefill, decode = sides("prefill", ProbedEngine(), 1), sides("decode", ProbedEngine())
    with kvmend.BootstrapServer(port=0) as server:
        client = kvmend.BootstrapClient(server.url)
        client.register(prefill.manager)
        found = client.find(timeout=10)
    assert found.session_id == prefill.manager.session_id == prefill.manager.control.session_id
    moved(prefill, decode, 1)


def test_kvmends_own_mooncake_engine_is_such_an_object(sides: Callable[..., Side]) -> None:
    engines = []
    for _ in range(2):
        engine = kvmend.mooncake.TransferEngine()
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        engines.append(engine)
    prefill, decode = sides("prefill", engines[0], 1), sides("decode", engines[1])
    moved(prefill, decode, 1)


def test_a_failure_waits_for_the_probe(sides: Callable[..., Side]) -> None:
    prefill, decode = sides("prefill", ProbedEngine(), 1), sides("decode", ProbedEngine())
    broken = threading.Event()
    broken.set()
    prefill.engine.fault = lambda _: -1 if broken.is_set() else None
    prefill.engine.answer = lambda _: -102 if broken.is_set() else 0
    sender, receiver = request(prefill, decode, 1)
    assert sender.wait(30) == receiver.wait(30) == KVPoll.FAILED
    for end in (sender, receiver):
        assert f"write to {decode.name} returned -1" in str(end.failure_exception())
    parked, _ = request(prefill, decode, 2)
    wait_until(lambda: prefill.manager.foreign_stats().probes >= 3, "probes that fail")
    writes = len(prefill.engine.writes)
    assert parked.poll() == KVPoll.WAITING_FOR_INPUT, "no byte of it moves"
    assert prefill.manager.foreign_stats().blacklisted == 1
    broken.clear()
    assert parked.wait(30) == KVPoll.SUCCESS
    assert len(prefill.engine.writes) > writes
    stats = prefill.manager.foreign_stats()
    assert (stats.recoveries, stats.blacklisted) == (1, 0)


def test_without_send_probe_the_rest_works(sides: Callable[..., Side]) -> None:
    prefill = sides("prefill", Engine(), 1)
    good, bad = sides("decode", Engine()), sides("decode", Engine())
    prefill.engine.fault = lambda session: -1 if session == bad.name else None
    sender, _ = request(prefill, bad, 1)
    assert sender.wait(30) == KVPoll.FAILED
    wait_until(lambda: prefill.manager.foreign_stats().probes_unavailable > 1, "probes")
    moved(prefill, good, 2)
    stats = prefill.manager.foreign_stats()
    assert (stats.blacklisted, stats.recoveries) == (1, 0)
    # Its process's successor is another session.
    bad.manager.teardown()
    moved(prefill, sides("decode", Engine()), 3)


def test_what_the_engine_throws_ends_a_room_and_no_thread(sides: Callable[..., Side]) -> None:
    prefill, decode = sides("prefill", ProbedEngine(), 1), sides("decode", ProbedEngine())
    left: list[BaseException] = [SystemExit(3), RuntimeError("no route")]

    def throw(_: str) -> None:
        if left:
            raise left.pop()

    prefill.engine.fault = throw
    probe_left = [OSError("no probe")]

    def answer(_: str) -> int:
        if probe_left:
            raise probe_left.pop()
        return 0

    prefill.engine.answer = answer
    reasons = []
    for room in range(1, 4):
        sender, _ = request(prefill, decode, room)
        if sender.wait(30) == KVPoll.SUCCESS:
            break
        reasons.append(str(sender.failure_exception()))
    assert "RuntimeError: no route" in reasons[0]
    assert not left and not probe_left
    moved(prefill, decode, 9)


def test_a_probe_that_hangs_delays_neither_others_nor_the_end(sides: Callable[..., Side]) -> None:
    prefill = sides("prefill", ProbedEngine(), 1)
    stopped, gone = sides("decode", ProbedEngine()), sides("decode", ProbedEngine())
    hang = threading.Event()
    failing = {stopped.name, gone.name}
    prefill.engine.fault = lambda session: -1 if session in failing else None

    def answer(session: str) -> int:
        if session == stopped.name:
            hang.wait()
        return 0

    prefill.engine.answer = answer
    for room, decode in enumerate((stopped, gone), 1):
        sender, _ = request(prefill, decode, room)
        assert sender.wait(30) == KVPoll.FAILED
    wait_until(lambda: stopped.name in prefill.engine.probed, "the probe that hangs")
    failing.clear()
    moved(prefill, gone, 3)
    assert prefill.engine.probed.count(stopped.name) == 1, "one probe of a session at a time"
    started = threading.Event()
    torn_down = threading.Thread(target=lambda: (started.set(), prefill.manager.teardown()))
    torn_down.start()
    torn_down.join(10)
    assert not torn_down.is_alive()
    hang.set()


def test_managers_over_different_engines_refuse_each_other(
    sides: Callable[..., Side], engine: kvmend.TransferEngine
) -> None:
    decode = sides("decode", Engine())
    pools = Pools()
    with KVManager(engine, "prefill", pools.layout) as prefill:
        receiver = KVReceiver(decode.manager, prefill.session_id, 1)
        with contextlib.suppress(kvmend.IncompatibleError):  # when the refusal is here first
            receiver.send_metadata(THERE)
        assert receiver.wait(30) == KVPoll.FAILED
        error = receiver.failure_exception()
        assert isinstance(error, kvmend.IncompatibleError)
        assert "make both with the same kind of engine" in str(error)


def test_what_is_refused_at_once(engine: kvmend.TransferEngine) -> None:
    layout = Pools().layout
    with pytest.raises(kvmend.InvalidArgumentError, match="has no batch_register_memory"):
        KVManager(object(), "prefill", layout)  # type: ignore[arg-type]
    with pytest.raises(kvmend.InvalidArgumentError, match="doesn't tell its host"):
        KVManager(Engine(), "prefill", layout)
    with pytest.raises(kvmend.InvalidArgumentError, match="host:port"):
        KVManager(Engine(), "prefill", layout, foreign={"session_id": "nowhere"})
    with pytest.raises(kvmend.InvalidArgumentError, match="unknown foreign options: probes"):
        KVManager(Engine(), "prefill", layout, foreign={"probes": True})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(kvmend.InvalidArgumentError, match="probe_interval"):
        KVManager(
            Engine(),
            "prefill",
            layout,
            foreign={"session_id": "127.0.0.1:1", "probe_interval": 0.0},
        )
    with pytest.raises(kvmend.InvalidArgumentError, match="aren't kvmend's"):
        KVManager(engine, "prefill", layout, foreign={})
    refusing = Engine()
    refusing.batch_register_memory = lambda *_: -7  # type: ignore[method-assign]
    with pytest.raises(kvmend.InvalidArgumentError, match="of 5 buffers returned -7"):
        KVManager(refusing, "prefill", layout, foreign={"session_id": "127.0.0.1:1"})


def test_the_host_comes_from_the_control_engine(engine: kvmend.TransferEngine) -> None:
    foreign = Engine()
    with KVManager(foreign, "prefill", Pools().layout, foreign={"control": engine}) as manager:
        assert manager.session_id == engine.session_id
    engine.stats()  # it goes on


def test_threads_end_with_the_manager(sides: Callable[..., Side]) -> None:
    def own() -> list[str]:
        return [one.name for one in threading.enumerate() if one.name.startswith("KvmendForeign")]

    before = len(own())
    prefill, decode = sides("prefill", ProbedEngine(), 1), sides("decode", ProbedEngine())
    moved(prefill, decode, 1)
    assert len(own()) > before
    prefill.manager.teardown()
    decode.manager.teardown()
    wait_until(lambda: len(own()) <= before, "their threads to end")
