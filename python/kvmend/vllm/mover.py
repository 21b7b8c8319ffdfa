"""Decode's worker: the thread that moves loads on, so that they don't wait for vLLM's steps."""

from __future__ import annotations

import logging
import threading

from .load import Load, Surroundings
from .notes import Note
from .offers import Offer
from .orders import LoadOrder

__all__ = ["Mover"]

log = logging.getLogger("vllm.kvmend")

LOOK = 0.0005  # seconds between looks at what runs


class Mover:
    """Runs loads and notes. Its thread sleeps while there are none. Methods: one other thread."""

    def __init__(self, around: Surroundings, deadline: float) -> None:
        """`deadline`: seconds of a load."""
        self._around = around
        self._deadline = deadline
        self._wake = threading.Condition()  # guards what follows
        self._loads: dict[str, Load] = {}
        self._notes: list[Note] = []
        self._ended: list[Load] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="kvmend-loads", daemon=True)
        self._thread.start()

    def load(self, order: LoadOrder) -> None:
        """Begins it; `take` has it once it has ended."""
        with self._wake:
            self._loads[order.request_id] = Load(order, self._around, self._deadline)
            self._wake.notify()

    def release(self, offer: Offer) -> None:
        """Tells prefill that nobody here needs the offer (any more)."""
        with self._wake:
            self._notes.append(Note(offer, self._around))
            self._wake.notify()

    def renew(self, offer: Offer, number: int) -> None:
        """Tells prefill that a request still waits; `number` differs from the last time's."""
        with self._wake:
            self._notes.append(Note(offer, self._around, number))
            self._wake.notify()

    def cancel(self, request_ids: set[str]) -> None:
        """Ends their loads soon, if there are any."""
        with self._wake:
            for request_id in request_ids & self._loads.keys():
                self._loads[request_id].cancel()

    def take(self) -> list[Load]:
        """Loads that have ended since the last call."""
        with self._wake:
            found, self._ended = self._ended, []
        return found

    def close(self) -> None:
        """Ends the thread; what runs is left where it is."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                if self._closed:
                    return
                if self._loads or self._notes:
                    self._wake.wait(LOOK)
                else:
                    self._wake.wait()
                loads, notes = list(self._loads.items()), list(self._notes)
            ended = [name for name, load in loads if load.poll()]
            over = [note for note in notes if self._over(note)]
            with self._wake:
                for name in ended:
                    load = self._loads.pop(name)
                    self._ended.append(load)
                    self._notes.append(Note(load.order.offer, self._around))
                self._notes = [note for note in self._notes if note not in over]

    def _over(self, note: Note) -> bool:
        try:
            return note.poll()
        except Exception:
            log.exception("prefill couldn't be told about a lease; it ends by its time")
            return True
