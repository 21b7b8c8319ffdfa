"""The prefill rank: computes the pages of a prompt and sends them, chunk by chunk."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

from kvmend import BootstrapClient, KVManager, KvmendError, KVPoll, KVSender
from kvmend.testing.connections import reset_connections

from .channel import Channel
from .rooms import AuxRows, tell_end
from .workload import Spec, Workload

WITHDRAWN = "the router withdrew the request: decode died before anything of it moved"


class PrefillRank:
    """One thread computes, request after request; one per room waits for its end."""

    def __init__(
        self, workload: Workload, manager: KVManager, channel: Channel, registry: str
    ) -> None:
        self._workload = workload
        self._manager = manager
        self._channel = channel
        self._aux_rows = AuxRows()
        self._lock = threading.Lock()
        self._senders: dict[int, KVSender] = {}
        self._withdrawn: set[int] = set()  # before their turn came
        self._requests: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        BootstrapClient(registry).register(manager)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def handle(self, command: dict[str, Any]) -> None:
        """A command of the orchestrator."""
        if command["cmd"] == "request":
            self._requests.put(command)
        elif command["cmd"] == "withdraw":
            self._withdraw(set(command["rooms"]))
        elif command["cmd"] == "reset_connections":
            self._channel.emit("was_reset", count=reset_connections(command["port"]))

    def _withdraw(self, rooms: set[int]) -> None:
        """The router takes back what hasn't begun here, or was never announced by decode."""
        with self._lock:
            self._withdrawn |= rooms - set(self._senders)
            announced = [s for room, s in self._senders.items() if room in rooms]
        for sender in announced:
            if sender.poll() == KVPoll.BOOTSTRAPPING:
                sender.abort(WITHDRAWN)

    def stop(self) -> None:
        """Finishes what was asked for."""
        self._requests.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (command := self._requests.get()) is not None:
            self._prefill(command["room"], Spec(**command["spec"]), command["decode_session"])

    def _prefill(self, room: int, spec: Spec, decode_session: str) -> None:
        pages = self._workload.pool.alloc(self._workload.prompt_pages(spec))
        aux_row = self._aux_rows.take()
        sender = KVSender(self._manager, room, decode_session)
        with self._lock:
            self._senders[room] = sender
            withdrawn = room in self._withdrawn
        times = SendTimes(time.monotonic())

        def send(chunk: list[int]) -> None:
            times.sending()  # before: the room may be over when send() returns
            sender.send(chunk)

        def release() -> None:
            self._workload.pool.free(pages)
            self._aux_rows.give_back(aux_row)

        # Before anything that may fail: a room can be over as soon as it begins (its decode announced
        # it and died), and its watch is who tells.
        threading.Thread(target=self._watch, args=(sender, times, release), daemon=True).start()
        try:
            sender.init(len(pages), aux_row)
            if withdrawn:
                sender.abort(WITHDRAWN)
            facts = self._workload.prefill(spec, pages, aux_row, send)
            self._channel.emit("prefilled", room=room, facts=facts)
        except KvmendError:
            pass  # the room has failed: its watch tells

    def _watch(self, sender: KVSender, times: SendTimes, release: Any) -> None:
        if sender.wait_for(KVPoll.TRANSFERRING) >= KVPoll.TRANSFERRING:
            self._channel.emit("transferring", room=sender.room)
        sender.wait()
        tell_end(self._channel, "prefill", sender, tail_seconds=times.tail(sender))
        sender.clear()
        with self._lock:
            del self._senders[sender.room]
        release()  # nothing reads the pages any more


class SendTimes:
    """When a room's chunks were handed over."""

    def __init__(self, created: float) -> None:
        self._created = created
        self._last = created

    def sending(self) -> None:
        self._last = time.monotonic()

    def tail(self, sender: KVSender) -> float:
        """Seconds from the last `send` to the room's end, which is what decode waits for."""
        m = sender.metrics()
        age = m.bootstrapping_seconds + m.waiting_seconds + m.transferring_seconds
        return max(0.0, age - (self._last - self._created))
