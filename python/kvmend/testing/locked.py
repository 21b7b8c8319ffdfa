"""A decode process whose interpreter lock is held for 15 s, and a prefill that goes on (L7)."""

from __future__ import annotations

import threading

from kvmend import KVPoll, TransferEngine

from .pair import Pair
from .peer import Peer, wait_until

__all__ = ["Locked"]


class Locked:
    """Rooms are opened before the lock is taken, and sent while it is held, by a thread here."""

    SECONDS = 15

    def __init__(self, engine: TransferEngine, peer: Peer) -> None:
        self.pair, self.rooms = Pair(engine, peer), list(range(40, 64))
        self.statuses: list[KVPoll] = []
        self.pair.peer.run("for room in list: receive(room, [room])", list=self.rooms)
        stats = self.pair.manager.stats
        wait_until(lambda: stats().announced == len(self.rooms), "the announcements")
        self.pair.peer.begin(
            """
            import ctypes
            ctypes.PyDLL(None).usleep(microseconds)
            held = [int(rooms[room].poll()) for room in list]
            """,
            list=self.rooms,
            microseconds=self.SECONDS * 1_000_000,
        )
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        """The rooms one after the other, spread over most of that time."""
        for room in self.rooms:
            sender = self.pair.sender(room, 1)
            sender.send([room])
            self.statuses.append(sender.wait(10))
            if self._given_up.wait(0.75 * self.SECONDS / len(self.rooms)):
                return

    def finish(self) -> list[int]:
        """Until the lock is given back; where decode saw the rooms stand just then."""
        self._thread.join()
        self.pair.peer.finish()
        held: list[int] = self.pair.peer.get("held")
        return held

    def give_up(self) -> None:
        self._given_up.set()
        self._thread.join()
