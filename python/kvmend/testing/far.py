"""A long and narrow way between two engines: TCP proxies with a known delay and rate, for tests."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
import time
from typing import Any

from kvmend import KVManager, KVPoll, KVSender, TransferEngine

from .pair import OPEN
from .peer import Peer
from .pools import Pools

__all__ = ["BYTES", "FRAME", "ONE_WAY", "RATE", "Far", "FarPair"]

_BLOCK = 64 << 10

# Of a FarPair.
ONE_WAY = 0.02  # seconds
RATE = 12e6  # bytes per second
FRAME = 64 << 10
SIZES = {"pages": 256, "buffers": 2, "item_len": 32 << 10}
BYTES = 256 * 2 * (32 << 10)  # of all pages

#: Run in decode: asks for a room, and looks when its first and its last byte come.
_WATCH = """
import threading, time
seen = {}
def watched(room, pages):
    pools.kv[:] = 0
    seen["asked"] = time.monotonic()
    receive(room, pages)
    def look():
        first, last = pools.kv[0, pages[0]], pools.kv[-1, pages[-1]]
        for name, page in (("begun", first), ("landed", last)):
            while not page[-1] and not rooms[room].poll() in (0, 4):
                time.sleep(0.0005)
            seen[name] = time.monotonic()
        rooms[room].wait(60)
        seen["complete"] = time.monotonic()
    seen["thread"] = threading.Thread(target=look)
    seen["thread"].start()
def facts(room):
    seen.pop("thread").join(60)
    m = rooms[room].metrics()
    return {**seen, "bytes": m.bytes, "waiting": m.waiting_seconds,
            "transferring": m.transferring_seconds, "reason": m.reason}
"""


class Far:
    """Listens at `session_id`; every byte arrives `one_way` seconds later on the other side, and
    `rate` bytes per second go in each direction, all connections together.

    An engine is far away if it advertises `session_id` and `target` names its own port.
    """

    def __init__(self, one_way: float, rate: float) -> None:
        self.one_way, self.rate = one_way, rate
        self.target = 0
        self.bytes_in = 0  # that came from whoever connected
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._free = {True: 0.0, False: 0.0}  # when the way takes the next byte, by direction
        self._open: set[socket.socket] = set()
        self._over = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def session_id(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def reset(self) -> None:
        """Breaks every connection; what is on its way is lost."""
        with self._lock:
            sockets, self._open = self._open, set()
        for one in sockets:
            with contextlib.suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            _shut(one)

    def close(self) -> None:
        self._over = True
        _shut(self._listener)
        self.reset()

    def _accept(self) -> None:
        while not self._over:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            with self._lock:
                self._open |= {near, far}
            for source, sink, inward in ((near, far, True), (far, near, False)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(
                    target=self._carry, args=(source, sink, inward), daemon=True
                ).start()

    def _carry(self, source: socket.socket, sink: socket.socket, inward: bool) -> None:
        under_way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        threading.Thread(target=self._deliver, args=(sink, under_way), daemon=True).start()
        while True:
            try:
                block = source.recv(_BLOCK)
            except OSError:
                block = b""
            with self._lock:
                self._free[inward] = (
                    max(self._free[inward], time.monotonic()) + len(block) / self.rate
                )
                due = self._free[inward] + self.one_way
                if inward:
                    self.bytes_in += len(block)
            under_way.put((due, block))
            if not block:
                return

    @staticmethod
    def _deliver(sink: socket.socket, under_way: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        while True:
            due, block = under_way.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                if not block:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(block)
            except OSError:
                return


class FarPair:
    """Prefill here, decode in a peer; each reaches the other by such a way only."""

    def __init__(self, decode: Peer) -> None:
        """`decode`: without an engine."""
        self.ways = [Far(ONE_WAY, RATE), Far(ONE_WAY, RATE)]
        here, there = self.ways
        here.target = _free_port()
        self.engine = TransferEngine(
            port=here.target,
            advertise=here.session_id,
            local="off",
            chunk_bytes=FRAME,
            admin_listen="127.0.0.1:0",
            shutdown_grace=0.2,
        )
        self.pools = Pools(**SIZES)
        self.pools.kv[:] = 3
        self.manager = KVManager(self.engine, "prefill", self.pools.layout)
        self.decode, self.to_decode = decode, there
        there.target = _free_port()
        self.decode.run(
            "engine = TransferEngine(port=port, advertise=at, local='off', chunk_bytes=frame)",
            port=there.target,
            at=there.session_id,
            frame=FRAME,
        )
        self.decode.run(OPEN, sizes=SIZES, prefill=self.engine.session_id)
        self.decode.run(_WATCH)
        first = self.announce(1, 1)  # connections and layouts are known from here on
        first.send([0])
        assert first.wait(30) == KVPoll.SUCCESS
        self.facts(1)

    def announce(self, room: int, pages: int) -> KVSender:
        """Decode asks for the room, and looks when its bytes come."""
        self.decode.run("watched(room, list(range(pages)))", room=room, pages=pages)
        sender = KVSender(self.manager, room)
        sender.init(pages)
        return sender

    def facts(self, room: int) -> dict[str, Any]:
        """What decode saw of it, by its own clock, and what its metrics say; once it is over."""
        return dict(self.decode.get("facts(room)", room=room))

    def close(self) -> None:
        self.manager.teardown()
        self.engine.shutdown()
        for way in self.ways:
            way.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
