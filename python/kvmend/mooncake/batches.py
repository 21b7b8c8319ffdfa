"""Transfers that were started and not yet asked about, by number."""

from __future__ import annotations

import itertools
import threading

from .._kvmend import Transfer

__all__ = ["Batches"]

#: Ids that nobody asks about are forgotten beyond this many, the oldest first.
MAX_BATCHES = 65536


class Batches:
    """Any thread. A number is never handed out twice; 0 is none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._transfers: dict[int, Transfer | None] = {}

    def add(self, transfer: Transfer | None) -> int:
        """The number of a transfer; None stands for one that had nothing to do."""
        with self._lock:
            number = next(self._numbers)
            self._transfers[number] = transfer
            if len(self._transfers) > MAX_BATCHES:
                self._transfers.pop(next(iter(self._transfers)))
            return number

    def get(self, number: int) -> Transfer | None:
        """Raises KeyError: never handed out, or asked to the end already."""
        with self._lock:
            return self._transfers[number]

    def take(self, number: int) -> Transfer | None:
        """`get`, and forgets it."""
        with self._lock:
            return self._transfers.pop(number)
