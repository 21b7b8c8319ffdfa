"""The engine's calls, between two processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable

import kvmend
import numpy as np
import pytest
from kvmend import Access, TransferEngine
from kvmend.testing.peer import Peer, wait_until

MIB = 1 << 20


def random_bytes(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def remote_memory(peer: Peer, size: int) -> int:
    """Registers zeroed memory there; its address."""
    peer.run("memory = np.zeros(size, np.uint8); engine.register_memory(memory)", size=size)
    return peer.get("memory.ctypes.data")


def remote_digest(peer: Peer) -> int:
    return peer.get("kvmend._kvmend.xxh3_64(memory)")


def digest(array: np.ndarray) -> int:
    return kvmend._kvmend.xxh3_64(array)


def test_write_then_read_back(engine: TransferEngine, peer: Peer) -> None:
    source, back = random_bytes(MIB), np.zeros(MIB, np.uint8)
    local, returned = engine.register_batch([source, back])
    remote = remote_memory(peer, MIB)
    engine.write(peer.session_id, local, remote, MIB)
    assert remote_digest(peer) == digest(source)
    engine.read(peer.session_id, returned, remote, MIB)
    assert (back == source).all()


@pytest.mark.parametrize("checksum", [False, True])
def test_65536_pages_of_4_kib_in_one_call(
    engine: TransferEngine, peer: Peer, checksum: bool
) -> None:
    count, page = 65_536, 4096
    source = random_bytes(count * page)
    order = np.random.default_rng(1).permutation(count).astype(np.uint64)
    local = np.uint64(engine.register_memory(source)) + np.arange(count, dtype=np.uint64) * page
    remote = np.uint64(remote_memory(peer, count * page)) + order * np.uint64(page)
    lengths = np.full(count, page, np.uint64)
    engine.batch_write(peer.session_id, local, remote, lengths, checksum=checksum)
    expected = np.empty_like(source).reshape(count, page)
    expected[order] = source.reshape(count, page)
    assert remote_digest(peer) == digest(expected.reshape(-1))


@pytest.mark.parametrize("indices", [np.uint32, np.int64])
def test_pages_by_index_between_prepared_layouts(
    engine: TransferEngine, peer: Peer, indices: type
) -> None:
    layers, pages, page = 3, 1000, 4096
    source = random_bytes(layers * pages * page)
    back = np.zeros_like(source)
    local, returned = engine.register_batch([source, back])
    remote = remote_memory(peer, layers * pages * page)
    at = [layer * pages * page for layer in range(layers)]
    forth = engine.prepare(peer.session_id, [local + o for o in at], [remote + o for o in at], page,
                           pages)
    order = np.random.default_rng(1).permutation(pages).astype(indices)
    engine.submit_pages(forth, "write", np.arange(pages, dtype=indices), order).wait()
    expected = np.empty_like(source).reshape(layers, pages, page)
    expected[:, order] = source.reshape(layers, pages, page)
    assert remote_digest(peer) == digest(expected.reshape(-1))
    again = engine.prepare(peer.session_id, [returned + o for o in at], [remote + o for o in at],
                           page, pages)
    engine.submit_pages(again, "read", list(range(pages)), order.tolist(), checksum=True).wait()
    assert (back == source).all()
    with pytest.raises(kvmend.OutOfRangeError, match="remote page 1000 of 1000"):
        engine.submit_pages(forth, "write", [0], [pages])
    with pytest.raises(kvmend.InvalidArgumentError):
        engine.submit_pages(forth, "write", [0, 1], [2])
    with pytest.raises(kvmend.InvalidArgumentError):
        engine.submit_pages(forth, "write", [1 << 32], [2])
    with pytest.raises(kvmend.NotRegisteredError):
        engine.prepare(peer.session_id, [12345], [remote], page, pages)


def test_s2_index_arrays_make_no_objects_for_pages(engine: TransferEngine, peer: Peer) -> None:
    """Case S2: Python adds nothing that grows with the pages (./dev bench says how fast it is)."""
    page, most = 64, 65_536
    source = random_bytes(most * page)
    local, remote = engine.register_memory(source), remote_memory(peer, most * page)
    layouts = engine.prepare(peer.session_id, [local], [remote], page, most)
    order = np.random.default_rng(1).permutation(most).astype(np.uint32)

    def blocks_of(pages: int) -> int:
        """Python allocations that one submit and wait leave or pass through, at their peak."""
        here, there = order[:pages].copy(), order[:pages].copy()
        tracemalloc.start()
        engine.submit_pages(layouts, "write", here, there).wait()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    blocks_of(10)
    assert blocks_of(most) <= blocks_of(10) + 2048


def test_a_million_slices_are_accepted(engine: TransferEngine, peer: Peer) -> None:
    count, stride, length = 1_000_000, 128, 64
    source = random_bytes(count * stride)
    offsets = np.arange(count, dtype=np.uint64) * np.uint64(stride)
    local = np.uint64(engine.register_memory(source)) + offsets
    remote = np.uint64(remote_memory(peer, count * stride)) + offsets
    transfer = engine.submit(
        peer.session_id, "write", local, remote, np.full(count, length, np.uint64)
    )
    assert transfer.wait(timeout=60)
    expected = source.reshape(count, stride).copy()
    expected[:, length:] = 0
    assert remote_digest(peer) == digest(expected.reshape(-1))


def test_lists_signed_arrays_and_single_numbers_are_taken(
    engine: TransferEngine, peer: Peer
) -> None:
    source = random_bytes(256)
    local, remote = engine.register_memory(source), remote_memory(peer, 256)
    engine.batch_write(peer.session_id, [local, local + 64], [remote, remote + 64], [64, 64])
    signed = np.array([local + 128, local + 192], np.int64)
    engine.batch_write(peer.session_id, signed, signed - local + remote, [64, 64])
    assert remote_digest(peer) == digest(source)


def test_a_notification_comes_after_the_data(engine: TransferEngine, peer: Peer) -> None:
    source = random_bytes(MIB)
    local, remote = engine.register_memory(source), remote_memory(peer, MIB)
    engine.submit(
        peer.session_id, "write", local, remote, MIB, notify=("page", b"\x00\xff bytes")
    ).wait()
    wait_until(lambda: peer.get("len(kept := engine.take_notifications())"), "the notification")
    assert peer.get("[kept[0].name, list(kept[0].message)]") == ["page", list(b"\x00\xff bytes")]
    assert remote_digest(peer) == digest(source)


def test_a_notification_alone(engine: TransferEngine, peer: Peer) -> None:
    engine.notify(peer.session_id, "hello", b"there")
    wait_until(lambda: peer.get("len(kept := engine.take_notifications())"), "the notification")
    assert peer.get("kept[0].name") == "hello"


def test_probes_say_what_stands_in_the_way(engine: TransferEngine, peer: Peer) -> None:
    assert engine.send_probe(peer.session_id) == 0
    peer.stop()
    assert engine.send_probe(peer.session_id, timeout=0.3) == -kvmend.Code.PEER_SILENT
    peer.resume()
    assert engine.send_probe(peer.session_id) == 0
    peer.kill()
    assert engine.send_probe(peer.session_id) == -kvmend.Code.CONNECTION_REFUSED
    assert engine.send_probe("nonsense") == -kvmend.Code.INVALID_ARGUMENT


def test_access_is_enforced(engine: TransferEngine, peer: Peer) -> None:
    peer.run("""
        readable, closed = np.ones(4096, np.uint8), np.ones(4096, np.uint8)
        engine.register_memory(readable, Access.REMOTE_READ)
        engine.register_memory(closed, Access.NONE)
    """)
    readable, closed = peer.get("readable.ctypes.data"), peer.get("closed.ctypes.data")
    local = engine.register_memory(np.zeros(4096, np.uint8))
    engine.read(peer.session_id, local, readable, 4096)
    with pytest.raises(kvmend.KvmendError):
        engine.write(peer.session_id, local, readable, 4096)
    with pytest.raises(kvmend.KvmendError):
        engine.read(peer.session_id, local, closed, 4096)
    assert peer.get("bool(readable.all() and closed.all())")
    assert (closed, 4096) not in engine.peer_regions(peer.session_id)


def test_read_only_memory_may_be_read_by_peers_only(engine: TransferEngine) -> None:
    constant = np.frombuffer(b"constant", np.uint8)
    with pytest.raises(kvmend.InvalidArgumentError, match="read-only"):
        engine.register_memory(constant)
    engine.register_memory(constant, Access.REMOTE_READ)
    engine.unregister_memory(constant)
    with pytest.raises(kvmend.NotRegisteredError):
        engine.unregister_memory(constant)


def test_a_wait_times_out_and_the_transfer_goes_on(engine: TransferEngine, peer: Peer) -> None:
    local, remote = engine.register_memory(random_bytes(64 * MIB)), remote_memory(peer, 64 * MIB)
    engine.open_session(peer.session_id)
    peer.stop()
    transfer = engine.submit(peer.session_id, "write", local, remote, 64 * MIB)
    assert transfer.wait(timeout=0.05) is False
    assert not transfer.done() and not transfer.poll()
    peer.resume()
    assert transfer.wait(timeout=30) is True
    assert transfer.done() and transfer.poll()


def test_cancel_ends_a_transfer(engine: TransferEngine, peer: Peer) -> None:
    local, remote = engine.register_memory(random_bytes(64 * MIB)), remote_memory(peer, 64 * MIB)
    engine.open_session(peer.session_id)
    peer.stop()
    transfer = engine.submit(peer.session_id, "write", local, remote, 64 * MIB)
    transfer.cancel()
    with pytest.raises(kvmend.CancelledError):
        transfer.wait(timeout=30)


BLOCKING: dict[str, Callable[[TransferEngine, str, int, int], object]] = {
    "write": lambda engine, peer, local, remote: engine.write(peer, local, remote, 64 * MIB),
    "open_session": lambda engine, peer, *_: engine.open_session(peer, timeout=60),
    "send_probe": lambda engine, peer, *_: engine.send_probe(peer, timeout=60),
    "peer_regions": lambda engine, peer, *_: engine.peer_regions(peer, timeout=60),
    "notify": lambda engine, peer, *_: engine.notify(peer, "note", timeout=60),
}


@pytest.mark.parametrize("name", BLOCKING)
def test_ctrl_c_interrupts_a_blocked_call(engine: TransferEngine, peer: Peer, name: str) -> None:
    local, remote = engine.register_memory(random_bytes(64 * MIB)), remote_memory(peer, 64 * MIB)
    peer.stop()
    interrupt = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        BLOCKING[name](engine, peer.session_id, local, remote)
    interrupt.join()


def test_ctrl_c_interrupts_a_shutdown_and_ends_the_engine(peer: Peer) -> None:
    engine = TransferEngine()
    local, remote = engine.register_memory(random_bytes(64 * MIB)), remote_memory(peer, 64 * MIB)
    engine.open_session(peer.session_id)
    peer.stop()
    transfer = engine.submit(peer.session_id, "write", local, remote, 64 * MIB, deadline=600)
    interrupt = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        engine.shutdown(600)
    interrupt.join()
    with pytest.raises(kvmend.ShuttingDownError):
        transfer.wait(30)
    with pytest.raises(kvmend.ShuttingDownError):
        engine.open_session(peer.session_id)


def test_an_interrupted_notify_never_arrives(engine: TransferEngine, peer: Peer) -> None:
    engine.open_session(peer.session_id)
    peer.stop()
    with pytest.raises(kvmend.KvmendError):  # long enough for the session to be given up
        engine.notify(peer.session_id, "first", timeout=4)
    interrupt = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        engine.notify(peer.session_id, "second", timeout=60)
    interrupt.join()
    peer.resume()
    engine.notify(peer.session_id, "third", timeout=30)
    names = peer.get("[note.name for note in engine.take_notifications()]")
    assert names[-1] == "third" and "second" not in names


def test_blocked_calls_leave_other_threads_running(engine: TransferEngine, peer: Peer) -> None:
    local, remote = engine.register_memory(random_bytes(64 * MIB)), remote_memory(peer, 64 * MIB)
    engine.open_session(peer.session_id)
    peer.stop()
    blocked = threading.Thread(
        target=engine.write, args=(peer.session_id, local, remote, 64 * MIB)
    )
    blocked.start()
    assert sum(range(100_000)) and blocked.is_alive()  # this thread runs
    peer.resume()
    blocked.join(30)
    assert not blocked.is_alive()


def test_l7_a_caller_that_holds_the_interpreter_lock_delays_nobody(
    engine: TransferEngine, peer: Peer
) -> None:
    """L7, on the receiving and on the sending side."""
    source = random_bytes(8 * MIB)
    local, remote = engine.register_memory(source), remote_memory(peer, 8 * MIB)
    engine.open_session(peer.session_id)
    # One call into C that keeps the lock for seconds: nothing else in Python runs there.
    peer.begin("""
        import ctypes
        ctypes.PyDLL(None).usleep(4_000_000)
    """)
    for _ in range(20):
        engine.write(peer.session_id, local, remote, 8 * MIB, deadline=2.0)
    wait_until(lambda: peer.finish(10) is None, "the end of the lock")
    assert remote_digest(peer) == digest(source)
    changes = [c for c in engine.sessions()[0].history if c.to_state in ("suspect", "failed")]
    assert not changes, "the peer's heartbeats went on"

    peer.run("""
        import ctypes
        back = np.zeros(memory.size, np.uint8)
        engine.register_memory(back)
        transfer = engine.submit(sid, "read", back.ctypes.data, there, memory.size)
        ctypes.PyDLL(None).usleep(1_000_000)
        assert transfer.done(), "the transfer waited for the interpreter"
    """, sid=engine.session_id, there=local)
    assert peer.get("bool((back == memory).all())")


def test_a_forked_child_is_told_to_make_its_own_engine(
    engine: TransferEngine, peer: Peer
) -> None:
    local, remote = engine.register_memory(random_bytes(4096)), remote_memory(peer, 4096)
    engine.write(peer.session_id, local, remote, 4096)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            engine.stats()
        except kvmend.InvalidArgumentError as error:
            status = 0 if "forked child" in str(error) else 2
        try:
            with TransferEngine() as own:
                own.register_memory(np.zeros(64, np.uint8))
        except BaseException:
            status = 3
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    engine.write(peer.session_id, local, remote, 4096)  # the parent's goes on


def test_shutdown_is_idempotent_and_final(peer: Peer) -> None:
    engine = TransferEngine()
    address = engine.register_memory(np.zeros(64, np.uint8))
    engine.shutdown()
    engine.shutdown(0)
    with pytest.raises(kvmend.ShuttingDownError):
        engine.write(peer.session_id, address, 1, 1)


def test_an_interpreter_that_leaves_without_shutdown_ends(peer: Peer) -> None:
    """An engine with a running transfer must not hang or crash the process at its end."""
    peer.stop()
    started = time.monotonic()
    code = f"""
import kvmend, numpy as np
engine = kvmend.TransferEngine(shutdown_grace=0.1)
address = engine.register_memory(np.zeros(1 << 20, np.uint8))
engine.submit({peer.session_id!r}, "write", address, address, 1 << 20)
"""
    child = Peer(make_engine=False)
    try:
        child.run("import subprocess, sys")
        assert (
            child.get("subprocess.run([sys.executable, '-c', code], timeout=20).returncode",
                      code=code) == 0
        )
    finally:
        child.kill()
    assert time.monotonic() - started < 25


def test_memory_of_every_kind_can_be_registered(engine: TransferEngine) -> None:
    class Tensor:
        """Looks like a torch tensor."""

        nbytes = 256

        def __init__(self) -> None:
            self.array = np.zeros(256, np.uint8)

        def data_ptr(self) -> int:
            return int(self.array.ctypes.data)

    kept = np.zeros(64, np.float32)
    for memory in (
        np.zeros((4, 4, 4), np.float16),
        bytearray(64),
        memoryview(bytearray(64)),
        Tensor(),
        (kept.ctypes.data, kept.nbytes),
    ):
        address = engine.register_memory(memory)
        engine.unregister_memory(address)
    with pytest.raises(kvmend.InvalidArgumentError, match="C-contiguous"):
        engine.register_memory(np.zeros((8, 8))[:, :4])
    with pytest.raises(kvmend.InvalidArgumentError, match="holds no memory"):
        engine.register_memory("text")


POLL_AT_EXIT = """
import threading, time
from kvmend import TransferEngine
engine = TransferEngine()
def poll():
    while True:
        engine.stats()
for _ in range(4):
    threading.Thread(target=poll, daemon=True).start()
time.sleep(0.3)
"""


def test_a_daemon_thread_inside_a_call_doesnt_spoil_the_exit() -> None:
    """Taking the interpreter lock back at the end once aborted the process."""
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", POLL_AT_EXIT], capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
