"""Registered words of this process that small reads land in and small writes come from."""

from __future__ import annotations

import numpy as np
from kvmend import Access, TransferEngine

from .slots import Slots

__all__ = ["Scratch"]

ROWS = 8192
ROW_BYTES = 16


class Scratch:
    """Rows of two 64-bit words. One thread."""

    def __init__(self, engine: TransferEngine) -> None:
        self.words = np.zeros((ROWS, 2), np.uint64)
        self._base = engine.register_memory(self.words, Access.NONE)
        self._slots = Slots(ROWS)

    def take(self, count: int) -> list[int] | None:
        """Rows, or None while too few are free."""
        return self._slots.take(count)

    def give(self, rows: list[int]) -> None:
        """Back, once no transfer uses them."""
        self._slots.give(rows)

    def address(self, row: int) -> int:
        return self._base + row * ROW_BYTES
