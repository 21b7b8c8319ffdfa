"""kvmend.mooncake: every method of the API, with good and bad input."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from kvmend.mooncake import Read, TransferEngine, TransferNotify, TransferOpcode, Write
from kvmend.mooncake import engine as module
from kvmend.mooncake.environment import read_environment
from kvmend.mooncake.foreign import is_mooncake
from kvmend.testing.peer import Peer, wait_until

NOBODY = "127.0.0.1:9"  # the discard port: nothing listens there

#: Run in a peer: an engine with two buffers, the one registered first at the higher address.
START = """
from kvmend.mooncake import TransferEngine as Engine
engine = Engine()
assert engine.initialize(host, metadata, "tcp", "") == 0
memory = np.zeros(2 << 20, np.uint8)
first = memory.ctypes.data + (1 << 20)
second = memory.ctypes.data
assert engine.register_memory(first, 1 << 20) == 0
assert engine.register_memory(second, 1 << 20) == 0
name = host if metadata != "P2PHANDSHAKE" else f"{host}:{engine.get_rpc_port()}"
"""


class Target:
    """Another process with such an engine."""

    def __init__(self, host: str = "127.0.0.1", metadata: str = "P2PHANDSHAKE") -> None:
        self.process = Peer(make_engine=False)
        self.process.run(START, host=host, metadata=metadata)
        self.name: str = self.process.get("name")
        self.address: int = self.process.get("first")

    def bytes(self, offset: int, length: int) -> bytes:
        code = "memory[(1 << 20) + offset:][:length].tobytes().hex()"
        return bytes.fromhex(self.process.get(code, offset=offset, length=length))


def make_engine(host: str = "127.0.0.1", metadata: str = "P2PHANDSHAKE") -> TransferEngine:
    engine = TransferEngine()
    assert engine.initialize(host, metadata, "tcp", "") == 0
    return engine


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("MC_", "SGLANG_")):
            monkeypatch.delenv(name)


@pytest.fixture
def engine() -> TransferEngine:
    return make_engine()


@pytest.fixture
def target() -> Iterator[Target]:
    target = Target()
    yield target
    target.process.kill()


@pytest.fixture
def memory(engine: TransferEngine) -> np.ndarray:
    """1 MiB of registered memory with a pattern."""
    memory = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8)
    assert engine.register_memory(memory.ctypes.data, memory.nbytes) == 0
    return memory


def quick_timeout(engine: TransferEngine, seconds: float) -> None:
    assert engine._parts is not None
    engine._parts.timeout = seconds


# ------------------------------------------------------------------------------------------ start


def test_the_module_has_the_originals_names() -> None:
    assert (int(TransferOpcode.Read), int(TransferOpcode.Write)) == (0, 1)
    assert Read is TransferOpcode.Read and Write is TransferOpcode.Write
    assert TransferEngine.TransferOpcode is TransferOpcode
    assert (TransferNotify().name, TransferNotify("a", "b").msg) == ("", "b")
    assert module.TransferEngine is TransferEngine


@pytest.mark.parametrize("metadata", ["etcd://127.0.0.1:2379", "127.0.0.1:2379", "redis://x", ""])
def test_metadata_that_is_not_offered_is_a_clear_error(
    metadata: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert TransferEngine().initialize("127.0.0.1", metadata, "tcp", "") == -1
    assert "isn't offered" in caplog.text and "P2PHANDSHAKE" in caplog.text


@pytest.mark.parametrize(
    "host", ["", ":1", "no-such-host.invalid", "127.0.0.1:99999", "[::1", "a\0b"]
)
def test_a_host_that_is_none_is_an_error(host: str) -> None:
    assert TransferEngine().initialize(host, "P2PHANDSHAKE", "tcp", "") == -1


def test_initialize_twice_is_an_error_and_a_failed_one_may_be_repeated() -> None:
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "http://127.0.0.1:9/metadata", "tcp", "") == -1
    assert engine.initialize_ext("127.0.0.1", "P2PHANDSHAKE", "rdma", "mlx5_0", "etcd") == 0
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1


def test_arguments_have_the_originals_forms(engine: TransferEngine) -> None:
    for positional in (
        lambda: TransferEngine().initialize(local_hostname="h"),  # type: ignore[call-arg]
        lambda: engine.unregister_memory(buffer_addr=1),  # type: ignore[call-arg]
        lambda: engine.get_first_buffer_address(segment_name="x"),  # type: ignore[call-arg]
        lambda: engine.register_memory("x", 1),  # type: ignore[arg-type]
        lambda: engine.register_memory(-1, 1),
        lambda: engine.register_memory(1, 2**64),
        lambda: engine.transfer_sync("h:1", 0, 0, 1, 7),  # type: ignore[arg-type]
        lambda: engine.batch_transfer_sync_write(NOBODY, [-1], [0], [1]),
        lambda: engine.batch_transfer_sync_write("", [1.5], [0], [1]),  # type: ignore[list-item]
        lambda: engine.transfer_sync_write(b"h:1", 0, 0, 1),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError):
            positional()
    assert engine.transfer_sync_write(
        target_hostname="x:1", buffer=0, peer_buffer_address=0, length=0, transport_hint=""
    ) == 0
    assert engine.batch_register_memory(buffer_addresses=[], capacities=[], location="*") == 0
    assert engine.send_probe(peer_server_name="") == -101


def test_every_start_draws_a_port_of_its_own() -> None:
    ports = {make_engine("127.0.0.1:12345").get_rpc_port() for _ in range(3)}
    assert len(ports) == 3 and 12345 not in ports


def test_nothing_crashes_before_initialize() -> None:
    engine = TransferEngine()
    assert engine.get_rpc_port() == -1
    assert engine.register_memory(4096, 1) == -1
    assert engine.batch_register_memory([4096], [1]) == -1
    assert engine.unregister_memory(4096) == -1
    assert engine.batch_unregister_memory([4096]) == -1
    assert engine.allocate_managed_buffer(10) == 0
    assert engine.free_managed_buffer(4096, 10) == -1
    assert engine.get_first_buffer_address("x:1") == 0
    assert engine.transfer_sync_write("x:1", 0, 0, 1) == -1
    assert engine.batch_transfer_sync_read("x:1", [], [], []) == -1
    assert engine.batch_transfer_async_write("x:1", [0], [0], [1]) == 0
    assert engine.transfer_submit_write("x:1", 0, 0, 1) == 0
    assert engine.get_batch_transfer_status([1]) == -1
    assert engine.transfer_check_status(1) == -1
    assert engine.send_probe("x:1") == -1
    assert engine.get_notifies() == []
    assert engine.get_engine() is None
    assert engine.write_bytes_to_buffer(4096, b"x", 1) == -1


def test_an_uninitialised_engine_and_a_dropped_one_leave_nothing_behind() -> None:
    before = threading.active_count()
    for _ in range(3):
        make_engine()
        TransferEngine()
    assert threading.active_count() == before


# ----------------------------------------------------------------------------------------- memory


def test_registering_returns_the_originals_numbers(engine: TransferEngine) -> None:
    memory = np.zeros(1 << 16, np.uint8)
    base = memory.ctypes.data
    assert engine.register_memory(base, 4096) == 0
    assert engine.register_memory(base, 4096, location="cpu:0") == -7
    assert engine.register_memory(base + 100, 10) == -7
    assert engine.register_memory(base + 8192, 0) == -1
    assert engine.unregister_memory(base) == 0
    assert engine.unregister_memory(base) == -3
    assert engine.batch_register_memory([base, base + 4096], [4096, 4096]) == 0
    assert engine.batch_register_memory([base + 8192], [1, 2]) == -1
    assert engine.batch_unregister_memory([base, 12345]) == -3
    assert engine.batch_unregister_memory([base + 4096]) == 0


def test_a_batch_is_registered_as_a_whole_or_not_at_all(engine: TransferEngine) -> None:
    memory = np.zeros(1 << 16, np.uint8)
    base = memory.ctypes.data
    assert engine.batch_register_memory([base, base + 100], [4096, 4096]) == -7
    assert engine.unregister_memory(base) == -3


@pytest.mark.parametrize("address", [0, 4096, 1 << 47, 2**64 - 4096])
def test_addresses_of_no_host_memory_are_refused(engine: TransferEngine, address: int) -> None:
    assert engine.register_memory(address, 4096) == -1


def test_managed_buffers_hold_bytes(engine: TransferEngine) -> None:
    address = engine.allocate_managed_buffer(100)
    assert address != 0
    assert engine.write_bytes_to_buffer(address, b"hello!", 5) == 0
    assert engine.write_bytes_to_buffer(address + 5, "text", 4) == 0
    assert engine.read_bytes_from_buffer(address, 10) == b"hellotext\0"
    assert engine.read_bytes_from_buffer(address, 0) == b""
    assert engine.free_managed_buffer(address, 100) == 0
    assert engine.free_managed_buffer(address, 100) == -1
    assert engine.free_managed_buffer(12345, 100) == -1
    assert engine.allocate_managed_buffer(0) != 0
    assert engine.allocate_managed_buffer(1 << 62) == 0


def test_bytes_only_go_to_and_come_from_registered_memory(engine: TransferEngine) -> None:
    address = engine.allocate_managed_buffer(100)
    assert engine.write_bytes_to_buffer(address, b"abc", 4) == -1
    assert engine.write_bytes_to_buffer(address + 98, b"abc", 3) == -1
    assert engine.write_bytes_to_buffer(address - 1, b"abc", 3) == -1
    assert engine.write_bytes_to_buffer(0, b"abc", 3) == -1
    for bad in (0, address - 1, address + 91):
        with pytest.raises(ValueError, match="registered"):
            engine.read_bytes_from_buffer(bad, 10)


def test_the_first_buffer_is_the_one_registered_first(
    engine: TransferEngine, target: Target
) -> None:
    me = f"127.0.0.1:{engine.get_rpc_port()}"
    assert engine.get_first_buffer_address(me) == 0
    mine = engine.allocate_managed_buffer(10)
    engine.allocate_managed_buffer(10)
    assert engine.get_first_buffer_address(me) == mine
    assert engine.get_first_buffer_address(target.name) == target.address
    assert engine.get_first_buffer_address(NOBODY) == 0
    assert engine.get_first_buffer_address("") == 0


# -------------------------------------------------------------------------------------- transfers


def test_bytes_go_there_and_come_back(
    engine: TransferEngine, target: Target, memory: np.ndarray
) -> None:
    base, there = memory.ctypes.data, target.address
    assert engine.transfer_sync_write(target.name, base, there, 1000) == 0
    assert target.bytes(0, 1000) == memory[:1000].tobytes()
    assert engine.transfer_sync_read(target.name, base + 2000, there, 1000) == 0
    assert (memory[2000:3000] == memory[:1000]).all()
    assert engine.transfer_sync(target.name, base, there, 10, Write) == 0
    assert engine.transfer_sync(target.name, base + 4000, there, 10, Read) == 0
    assert engine.transfer_sync_write(target.name, base, there, 0) == 0


def test_a_batch_may_be_as_long_as_it_likes(
    engine: TransferEngine, target: Target, memory: np.ndarray
) -> None:
    count, size = 8192, 64  # the original ends at 2,048
    order = np.random.default_rng(2).permutation(count)
    local = (memory.ctypes.data + order * size).tolist()
    remote = (target.address + np.arange(count) * size).tolist()
    sizes = [size] * count
    assert engine.batch_transfer_sync_write(target.name, local, remote, sizes) == 0
    expected = memory[: count * size].reshape(count, size)[order].tobytes()
    assert target.bytes(0, count * size) == expected
    before = memory.copy()
    memory[:] = 0
    assert engine.batch_transfer_sync_read(target.name, local, remote, sizes) == 0
    assert (memory[: count * size] == before[: count * size]).all()


def test_bad_batches_return_numbers(
    engine: TransferEngine, target: Target, memory: np.ndarray
) -> None:
    base, there = memory.ctypes.data, target.address
    name = target.name
    for call in (engine.batch_transfer_sync_write, engine.batch_transfer_sync_read):
        assert call(name, [], [], []) == 0
        assert call(name, [base], [there, there], [1]) == -1
        assert call(name, [base, base], [there, there], [1]) == -1
        assert call(name, [base, 7], [there, 7], [16, 0]) == 0  # nothing to do for the second
        assert call(name, [base - 1], [there], [16]) == -1  # not registered here
        assert call(name, [base], [there + (1 << 20) - 8], [16]) == -1  # ends beyond it
        assert call(name, [base], [4096], [16]) == -1  # not registered there
        assert call(name, [base], [there], [2**63]) == -1
    assert engine.batch_transfer_sync(name, [base], [there], [16], Write) == 0


@pytest.mark.parametrize("name", ["", "nobody", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:x", "a:b:c",
                                  "unreachable.invalid:9", "x" * 10000, "\0:1"])
def test_names_of_nobody_return_numbers(
    engine: TransferEngine, memory: np.ndarray, name: str
) -> None:
    base = memory.ctypes.data
    assert engine.transfer_sync_write(name, base, base, 16) == -1
    assert engine.batch_transfer_async_write(name, [base], [base], [16]) == 0
    assert engine.transfer_submit_write(name, base, base, 16) == 0
    assert engine.send_probe(name) == -101
    assert engine.get_first_buffer_address(name) == 0


def test_a_refusing_peer_fails_soon(engine: TransferEngine, memory: np.ndarray) -> None:
    base = memory.ctypes.data
    assert engine.transfer_sync_write(NOBODY, base, base, 16) == -1
    assert engine.send_probe(NOBODY) == -102


def test_async_batches_are_asked_about_once(
    engine: TransferEngine, target: Target, memory: np.ndarray
) -> None:
    base, there = memory.ctypes.data, target.address
    ids = [
        engine.batch_transfer_async_write(target.name, [base], [there], [100]),
        engine.batch_transfer_async_read(target.name, [base + 200], [there], [100]),
        engine.batch_transfer_async(target.name, [base], [there + 300], [100], Write),
        engine.batch_transfer_async_write(target.name, [], [], []),
    ]
    assert 0 not in ids and len(set(ids)) == 4
    assert engine.get_batch_transfer_status([*ids, ids[0]]) == 0
    assert target.bytes(300, 100) == memory[:100].tobytes()
    assert engine.get_batch_transfer_status([]) == 0
    assert engine.get_batch_transfer_status([ids[0]]) == -1  # the original crashes
    assert engine.get_batch_transfer_status([0, 2**64 - 1]) == -1
    bad = engine.batch_transfer_async_write(target.name, [base], [4096], [16])
    assert bad == 0 or engine.get_batch_transfer_status([bad]) == -1
    assert engine.batch_transfer_async_write(target.name, [base], [], [16]) == 0
    assert engine.batch_transfer_async_write(target.name, [4096], [there], [16]) == 0


def test_one_failure_does_not_hide_that_others_are_over(
    engine: TransferEngine, target: Target, memory: np.ndarray
) -> None:
    base, there = memory.ctypes.data, target.address
    ids = [
        engine.batch_transfer_async_write(target.name, [base], [address], [1000])
        for address in (there, 4096, there + 1000)
    ]
    assert engine.get_batch_transfer_status([number for number in ids if number]) == -1
    assert target.bytes(0, 2000) == 2 * memory[:1000].tobytes()


def test_submit_and_check(engine: TransferEngine, target: Target, memory: np.ndarray) -> None:
    base, there = memory.ctypes.data, target.address
    number = engine.transfer_submit_write(target.name, base, there, 1000)
    assert number != 0
    assert wait_until(lambda: engine.transfer_check_status(number)) == 1
    assert engine.transfer_check_status(number) == -1
    assert engine.transfer_check_status(0) == -1
    number = engine.transfer_submit_write(NOBODY, base, there, 1000)
    assert wait_until(lambda: engine.transfer_check_status(number)) == -1


def test_a_deadline_is_a_timeout(
    engine: TransferEngine, target: Target, memory: np.ndarray
) -> None:
    base, there = memory.ctypes.data, target.address
    assert engine.transfer_sync_write(target.name, base, there, 16) == 0
    target.process.stop()
    quick_timeout(engine, 0.3)
    number = engine.transfer_submit_write(target.name, base, there, 1000)
    assert wait_until(lambda: engine.transfer_check_status(number)) == -2
    assert engine.transfer_sync_write(target.name, base, there, 16) == -1
    target.process.resume()
    quick_timeout(engine, 30)
    assert engine.transfer_sync_write(target.name, base, there, 16) == 0


def test_a_pause_costs_no_request(
    engine: TransferEngine, target: Target, memory: np.ndarray
) -> None:
    base, there = memory.ctypes.data, target.address
    assert engine.transfer_sync_write(target.name, base, there, 16) == 0
    target.process.stop()
    number = engine.batch_transfer_async_write(target.name, [base], [there], [1 << 20])
    assert engine.transfer_check_status(number) == 0
    target.process.resume()
    assert engine.get_batch_transfer_status([number]) == 0
    assert target.bytes(0, 1 << 20) == memory.tobytes()


def test_threads_share_an_engine(
    engine: TransferEngine, target: Target, memory: np.ndarray
) -> None:
    base, there = memory.ctypes.data, target.address
    results: list[int] = []

    def work(part: int) -> None:
        for offset in range(part << 16, (part + 1) << 16, 4096):
            results.append(
                engine.transfer_sync_write(target.name, base + offset, there + offset, 4096)
            )

    threads = [threading.Thread(target=work, args=(part,)) for part in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [0] * 128
    assert target.bytes(0, 8 << 16) == memory[: 8 << 16].tobytes()


def test_freed_memory_is_not_written_any_more(
    engine: TransferEngine, target: Target, memory: np.ndarray
) -> None:
    target.process.run("assert engine.unregister_memory(first) == 0")
    base = memory.ctypes.data
    assert engine.transfer_sync_write(target.name, base, target.address, 16) == -1
    assert target.bytes(0, 16) == bytes(16)


# --------------------------------------------------------------------------- notifications, probes


def test_a_notification_follows_the_data(
    engine: TransferEngine, target: Target, memory: np.ndarray
) -> None:
    base, there = memory.ctypes.data, target.address
    get = "[(n.name, n.msg) for n in engine.get_notifies()]"
    note = TransferNotify("room", "42 \N{SNOWMAN}")
    assert engine.transfer_sync(target.name, base, there, 100, Write, note) == 0
    assert target.process.get(get) == [["room", "42 \N{SNOWMAN}"]]
    assert target.process.get(get) == []
    assert engine.batch_transfer_sync(target.name, [base], [there], [9], Read, notify=note) == 0
    assert engine.transfer_sync(target.name, base, there, 0, Write, note) == 0
    assert len(target.process.get(get)) == 2
    assert engine.transfer_sync(target.name, base, 4096, 100, Write, note) == -1
    long = TransferNotify("x" * 2000, "")
    assert engine.transfer_sync(target.name, base, there, 100, Write, long) == -1
    assert target.process.get(get) == []
    assert engine.get_notifies() == []


def test_a_probe_tells_a_stopped_and_a_dead_peer(engine: TransferEngine, target: Target) -> None:
    assert engine.send_probe(target.name) == 0
    target.process.stop()
    assert engine.send_probe(target.name) == -102
    target.process.resume()
    wait_until(lambda: engine.send_probe(target.name) == 0)
    target.process.kill()
    assert engine.send_probe(target.name) == -102


def test_what_has_no_meaning_here_answers_all_the_same(engine: TransferEngine) -> None:
    assert json.loads(engine.get_local_topology()) == {}
    assert json.loads(engine.get_local_topology(device_name="mlx5_0")) == {}
    assert engine.warmup_efa_segment("x") == 0
    assert engine.get_engine() is not None
    assert engine.get_engine_ptr() == 0


# ------------------------------------------------------------------------------------ environment


def test_environment_names_are_honoured_or_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MC_FORCE_TCP", "1")
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "7")
    monkeypatch.setenv("MC_TCP_BIND_ADDRESS", "127.0.0.2")
    monkeypatch.setenv("MC_GID_INDEX", "3")
    monkeypatch.setenv("MC_NUM_QP_PER_EP", "2")
    engine = make_engine()
    assert engine._parts is not None and engine._parts.timeout == 7
    assert engine._parts.engine.session_id.startswith("127.0.0.1:")
    lines = [r.message for r in caplog.records if "no meaning" in r.message]
    assert len(lines) == 1 and "MC_GID_INDEX MC_NUM_QP_PER_EP" in lines[0]
    assert make_engine().send_probe(f"127.0.0.2:{engine.get_rpc_port()}") == 0


def test_names_of_the_failed_session_probe_set_the_engines_probes() -> None:
    prefix = "SGLANG_FAILED_SESSION_"

    def recovery(environ: dict[str, str]) -> dict[str, object]:
        return dict(read_environment(environ).recovery)

    assert recovery({}) == {}  # the engine's own schedule
    assert recovery({"SGLANG_ENABLE_FAILED_SESSION_PROBE": "false"}) == {"probe": False}
    assert recovery({"SGLANG_ENABLE_FAILED_SESSION_PROBE": "1"}) == {"probe": True}
    assert recovery({prefix + "PROBE_INTERVAL_S": "30.0"}) == {"probe_max": 30.0}
    assert recovery(
        {prefix + "PROBE_INTERVAL_S": "0.01", prefix + "PROBE_MAX_INTERVAL_S": "300"}
    ) == {"probe_max": 0.1}
    assert recovery({prefix + "PROBE_MAX_INTERVAL_S": "300"}) == {"probe_max": 300.0}
    assert recovery({prefix + "IDLE_TIMEOUT_S": "60"}) == {"idle_timeout": 60.0}
    for bad in ("", "nan", "-1", "soon", "1e9"):
        assert recovery({prefix + "PROBE_INTERVAL_S": bad}) == {}, bad


def test_an_engine_starts_with_every_name_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_ENABLE_FAILED_SESSION_PROBE", "0")
    monkeypatch.setenv("SGLANG_FAILED_SESSION_PROBE_INTERVAL_S", "2")
    monkeypatch.setenv("SGLANG_FAILED_SESSION_IDLE_TIMEOUT_S", "9")
    assert make_engine().send_probe("127.0.0.1:1") < 0


def test_the_port_range_is_kept_and_exhausted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    low = make_engine().get_rpc_port()
    engines: list[TransferEngine] = []
    monkeypatch.setenv("MC_MIN_PRC_PORT", str(low))
    monkeypatch.setenv("MC_MAX_PRC_PORT", str(low + 2))
    while (engine := TransferEngine()).initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0:
        assert low <= engine.get_rpc_port() <= low + 2
        engines.append(engine)
    assert 1 <= len(engines) <= 3
    monkeypatch.setenv("MC_MIN_PRC_PORT", "70000")
    make_engine()
    assert "no range" in caplog.text


@pytest.mark.parametrize(("text", "seconds"), [("1", 5), ("x", 30), ("60", 60), ("-3", 5)])
def test_the_timeout_is_what_the_original_makes_of_it(
    monkeypatch: pytest.MonkeyPatch, text: str, seconds: int
) -> None:
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", text)
    engine = make_engine()
    assert engine._parts is not None and engine._parts.timeout == seconds


# ---------------------------------------------------------------------------------------- restarts


def test_a_restarted_peer_is_not_written_to_until_it_is_asked(
    engine: TransferEngine,
    target: Target,
    memory: np.ndarray,
    start_peer: Callable[..., Peer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The original writes into whatever process has the port now, and returns 0."""
    base = memory.ctypes.data
    port = int(target.name.rsplit(":", 1)[1])
    assert engine.transfer_sync_write(target.name, base, target.address, 16) == 0
    target.process.kill()
    other = start_peer(make_engine=False)
    other.run(
        "import os; os.environ.update(MC_MIN_PRC_PORT=port, MC_MAX_PRC_PORT=port)", port=str(port)
    )
    other.run(START, host="127.0.0.1", metadata="P2PHANDSHAKE")
    address = other.get("first")
    wait_until(lambda: engine.transfer_sync_write(target.name, base, address, 16) == -1
               and "peer restarted" in caplog.text)
    for _ in range(3):
        assert engine.transfer_sync_write(target.name, base, address, 16) == -1
        assert engine.send_probe(target.name) == -104
    assert caplog.text.count("peer restarted: another process answers as") == 1
    assert other.get("int(memory.any())") == 0
    assert engine.get_first_buffer_address(target.name) == address
    assert engine.send_probe(target.name) == 0
    assert engine.transfer_sync_write(target.name, base, address, 16) == 0
    assert other.get("memory[1 << 20:][:16].tobytes().hex()") == memory[:16].tobytes().hex()


def test_a_real_mooncake_engine_is_told_from_a_silent_one() -> None:
    """Its side of the question, as it was seen: the kind of the question and a status."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                asked = connection.recv(64)
                body = asked[8:9] + b'{"status":"success"}\n'
                connection.sendall(len(body).to_bytes(8, "little") + body)

        thread = threading.Thread(target=answer)
        thread.start()
        assert is_mooncake("127.0.0.1", server.getsockname()[1])
        thread.join()
        port = server.getsockname()[1]
    assert not is_mooncake("127.0.0.1", port)


def test_no_engine_of_ours_is_taken_for_mooncakes(engine: TransferEngine) -> None:
    assert not is_mooncake("127.0.0.1", engine.get_rpc_port())
