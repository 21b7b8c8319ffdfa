"""The decode rank: receives pages into its own and continues from them."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Generator
from typing import Any

from kvmend import BootstrapClient, KVManager, KVPoll, KVReceiver

from .channel import Channel
from .rooms import AuxRows, tell_end
from .workload import Spec, Workload

_Answer = Generator[None, None, dict[str, Any]]


class DecodeRank:
    """One thread per room waits for its pages; one continues all answers, step by step in turn."""

    def __init__(
        self, workload: Workload, manager: KVManager, channel: Channel, registry: str
    ) -> None:
        self._workload = workload
        self._manager = manager
        self._channel = channel
        self._aux_rows = AuxRows()
        self._prefill = BootstrapClient(registry).find().session_id
        self._arrived: queue.SimpleQueue[_Running | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def handle(self, command: dict[str, Any]) -> None:
        """A command of the orchestrator."""
        if command["cmd"] == "request":
            room, spec = command["room"], Spec(**command["spec"])
            threading.Thread(target=self._receive, args=(room, spec), daemon=True).start()
        elif command["cmd"] == "check_canary":
            pool = self._workload.pool
            self._channel.emit(
                "canary",
                broken=pool.broken_canaries(),
                never_used=pool.never_used,
                pages=pool.pages,
            )

    def stop(self) -> None:
        """Finishes the answers that have begun."""
        self._arrived.put(None)
        self._thread.join()

    def _receive(self, room: int, spec: Spec) -> None:
        pages = self._workload.pool.alloc(self._workload.all_pages(spec))
        aux_row = self._aux_rows.take()
        receiver = KVReceiver(self._manager, self._prefill, room)
        receiver.init()
        receiver.send_metadata(pages[: self._workload.prompt_pages(spec)], aux_row)
        status = receiver.wait()
        tell_end(self._channel, "decode", receiver)
        receiver.clear()  # nobody can write the pages any more
        running = _Running(room, pages, aux_row, self._workload.decode(spec, pages, aux_row))
        if status == KVPoll.SUCCESS:
            self._arrived.put(running)
        else:
            self._release(running)

    def _run(self) -> None:
        running: deque[_Running] = deque()
        while True:
            while not running or not self._arrived.empty():
                arrived = self._arrived.get()
                if arrived is None:
                    return
                running.append(arrived)
            request = running.popleft()
            try:
                next(request.answer)
                running.append(request)
            except StopIteration as end:
                self._channel.emit("answered", room=request.room, facts=end.value)
                self._release(request)

    def _release(self, request: _Running) -> None:
        self._workload.pool.free(request.pages)
        self._aux_rows.give_back(request.aux_row)


class _Running:
    """A request whose pages have arrived."""

    def __init__(self, room: int, pages: list[int], aux_row: int, answer: _Answer) -> None:
        self.room = room
        self.pages = pages
        self.aux_row = aux_row
        self.answer = answer
