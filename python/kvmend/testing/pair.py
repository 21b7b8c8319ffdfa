"""A prefill manager in this process and a decode manager in a peer, for tests."""

from __future__ import annotations

import zlib
from typing import Any

from kvmend import KVManager, KVSender, TransferEngine

from .peer import Peer
from .pools import Pools

__all__ = ["OPEN", "Pair"]

#: Run in a peer: makes it a decode rank.
OPEN = """
from kvmend.testing.pools import Pools
import zlib
pools = Pools(**sizes)
manager = KVManager(engine, "decode", pools.layout)
rooms = {}

def receive(room, pages, aux=None, **more):
    rooms[room] = receiver = KVReceiver(manager, prefill, room)
    receiver.init()
    try:
        receiver.send_metadata(pages, aux, **more)
    except kvmend.IncompatibleError:
        pass  # the refusal was here first: `ended` says it

def ended(room):
    status = rooms[room].wait(timeout=30)
    error = rooms[room].failure_exception()
    return [status, error.code_name if error else "", str(error or "")]
"""


class Pair:
    """A prefill manager here and a decode manager in the peer."""

    def __init__(self, engine: TransferEngine, peer: Peer, **sizes: int) -> None:
        self.engine, self.peer = engine, peer
        self.pools = Pools(**sizes)
        self.pools.fill(seed=1)
        self.manager = KVManager(engine, "prefill", self.pools.layout)
        self.peer.run(OPEN, sizes=sizes, prefill=engine.session_id)

    def receive(self, room: int, pages: list[int], aux: int | None = None) -> None:
        self.peer.run("receive(room, pages, aux)", room=room, pages=pages, aux=aux)

    def ended(self, room: int) -> Any:
        return self.peer.get("ended(room)", room=room)

    def sender(self, room: int, pages: int, aux: int | None = None) -> KVSender:
        sender = KVSender(self.manager, room)
        sender.init(pages, aux)
        return sender

    def pages_equal(self, here: list[int], there: list[int]) -> bool:
        got = self.peer.get("zlib.crc32(pools.page_bytes(pages))", pages=there)
        return bool(zlib.crc32(self.pools.page_bytes(here)) == got)
