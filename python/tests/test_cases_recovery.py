"""Cases R1, R3, R9 and R12: what a session survives, between two real processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import kvmend
import numpy as np
import pytest
from kvmend import TransferEngine
from kvmend.testing.connections import reset_connections
from kvmend.testing.peer import Peer, wait_until

MIB = 1 << 20
SIZE = 64 * MIB


class Stream:
    """Memory on both sides; every `write` puts different bytes into all of the peer's."""

    def __init__(self, engine: TransferEngine, peer: Peer, size: int = SIZE) -> None:
        self.engine, self.peer, self.size = engine, peer, size
        self.source = np.random.default_rng(0).integers(0, 256, size, np.uint8)
        self.local = engine.register_memory(self.source)
        self.map_remote()

    def map_remote(self) -> None:
        self.peer.run(
            "memory = np.zeros(size, np.uint8); engine.register_memory(memory)", size=self.size
        )
        self.remote = self.peer.get("memory.ctypes.data")

    def submit(self, deadline: float = 30.0) -> kvmend.Transfer:
        return self.engine.submit(
            self.peer.session_id, "write", self.local, self.remote, self.size, deadline=deadline
        )

    def landed(self) -> bool:
        digest = self.peer.get("kvmend._kvmend.xxh3_64(memory)")
        return bool(digest == kvmend._kvmend.xxh3_64(self.source))

    @property
    def session(self) -> kvmend.SessionInfo:
        (info,) = [s for s in self.engine.sessions() if s.session_id == self.peer.session_id]
        return info


@pytest.fixture(params=["auto", "off"], ids=["local", "tcp"])
def stream(request: pytest.FixtureRequest, peer: Peer) -> Iterator[Stream]:
    """Over both transports: what heals is the session, whatever carries the bytes."""
    with TransferEngine(shutdown_grace=0.2, local=request.param) as engine:
        stream = Stream(engine, peer)
        stream.submit().wait()
        yield stream


def states_since(stream: Stream, count: int) -> list[str]:
    return [change.to_state for change in stream.session.history[count:]]


def test_r1_a_reset_connection_costs_no_request(stream: Stream) -> None:
    changes, epoch = len(stream.session.history), stream.session.epoch
    transfers = [stream.submit() for _ in range(64)]
    wait_until(lambda: stream.session.outstanding_bytes > 0, "bytes on their way")
    assert reset_connections(stream.peer.port) > 0
    for transfer in transfers:
        assert transfer.wait(30)
    assert stream.landed()
    wait_until(lambda: stream.session.state == "healthy", "its trust to be back")
    assert "failed" not in states_since(stream, changes), "one reset is no reason to blacklist"
    assert stream.session.epoch > epoch
    assert stream.session.retries > 0, "the chunks that were on their way were sent again"
    assert stream.session.transfers_failed == 0


def test_r1_resets_in_a_row_cost_no_request_either(stream: Stream) -> None:
    transfers = []
    for _ in range(6):
        epoch = stream.session.epoch
        transfers.append(stream.submit())
        reset_connections(stream.peer.port)
        wait_until(lambda epoch=epoch: stream.session.epoch > epoch, "a new epoch")
    for transfer in transfers:
        assert transfer.wait(30)
    assert stream.landed()
    assert stream.session.state in ("probing", "healthy"), "it flapped: trust comes back slowly"
    assert stream.session.transfers_failed == 0


def test_r1_a_reset_by_the_receiver(stream: Stream) -> None:
    transfer = stream.submit()
    stream.peer.run("from kvmend.testing.connections import reset_connections")
    assert stream.peer.get("reset_connections()") > 0
    assert transfer.wait(30)
    assert stream.landed()


def test_r1_a_reset_of_an_idle_session_is_mended_without_traffic(stream: Stream) -> None:
    before = stream.session.epoch
    assert reset_connections(stream.peer.port) > 0
    wait_until(
        lambda: stream.session.epoch > before and stream.session.state == "healthy",
        "the session to reconnect by itself",
    )


def test_r3_nothing_of_the_old_plan_lands_in_a_restarted_process(
    stream: Stream, start_peer: Callable[..., Peer]
) -> None:
    old = stream.session.incarnation
    stream.peer.stop()
    running = [stream.submit() for _ in range(3)]
    stream.peer.kill()
    stream.peer = start_peer(port=stream.peer.port)
    # The same addresses mean other memory there now: that is how stale writes would be seen.
    stream.peer.run("""
        import ctypes, mmap
        MAP_PRIVATE, MAP_ANONYMOUS, MAP_FIXED_NOREPLACE = 2, 0x20, 0x100000
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        start, end = there & ~4095, (there + size + 4095) & ~4095
        at = libc.mmap(ctypes.c_void_p(start), ctypes.c_size_t(end - start), 3,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0)
        other = (ctypes.c_ubyte * (end - start)).from_address(start) if at == start else None
        other = np.zeros(size, np.uint8) if other is None else np.frombuffer(other, np.uint8)
        engine.register_memory(other)
    """, there=stream.remote, size=SIZE)
    for transfer in running:
        with pytest.raises(kvmend.PeerRestartedError):
            transfer.wait(30)
    with pytest.raises(kvmend.PeerRestartedError):
        stream.submit().wait(30)  # a raw user must learn the new addresses first
    assert not stream.peer.get("bool(other.any())"), "not a byte landed"

    stream.map_remote()
    info = stream.engine.open_session(stream.peer.session_id)
    assert info.incarnation != old
    stream.submit().wait()
    assert stream.landed()
    assert not stream.peer.get("bool(other.any())")


def test_r9_invalid_arguments_dont_count_against_the_peer(stream: Stream) -> None:
    changes = len(stream.session.history)
    for i in range(100):
        bad = [
            (stream.local, stream.remote, 0),
            (64 + i, stream.remote, 64),
            (stream.local, 64 + i, 64),
            (stream.local, stream.remote + SIZE - i, 64 + i),
        ][i % 4]
        with pytest.raises((kvmend.InvalidArgumentError, kvmend.NotRegisteredError,
                            kvmend.OutOfRangeError)) as raised:
            stream.engine.write(stream.peer.session_id, *bad)
        assert raised.value.origin == "caller"
    assert len(stream.session.history) == changes and stream.session.state == "healthy"
    stream.submit().wait()


def test_r12_a_pause_of_5_seconds_costs_no_request(stream: Stream) -> None:
    changes = len(stream.session.history)
    running = [stream.submit(deadline=30) for _ in range(4)]
    stream.peer.stop()
    paused = time.monotonic()
    wait_until(lambda: stream.session.state in ("failed", "probing"), "it to be blacklisted")
    wait_until(lambda: time.monotonic() > paused + 5, "the pause")
    stream.peer.resume()
    for transfer in running:
        assert transfer.wait(30)
    assert stream.landed()
    wait_until(lambda: stream.session.state == "healthy", "its trust to be back")
    assert "failed" in states_since(stream, changes)
    assert stream.session.recoveries == 1
    assert stream.session.transfers_failed == 0
