"""A lease as words in prefill's memory, which decode reads and writes by one-sided transfers.

Each slot of the board holds one lease at a time; leases of a slot are numbered (its generation).
`words[slot] = (w, ~w)` with w = 2 * generation while that lease runs, 2 * generation + 1 once it is
over; the complement shows a word that was read while it changed. `done[slot][i]` is written by the
i-th decode rank that has finished with the blocks: generation and how many ranks there are.
`renewed[slot][i]` is written by a decode whose request waits: generation and a count that changes.

Prefill ends a lease by changing the word *before* its blocks can be used again. So a reader that
finds the word of its lease after its last block arrived knows that all of them were still there.
"""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

__all__ = [
    "MARK_BYTES",
    "MAX_READERS",
    "SLOTS",
    "WORD_BYTES",
    "Board",
    "LeaseState",
    "lease_state",
    "mark",
]

SLOTS = 4096  # leases at a time of one instance
MAX_READERS = 64  # decode ranks that read from one prefill rank
WORD_BYTES = 16  # a word and its complement
MARK_BYTES = 8  # of what readers write

Words = npt.NDArray[np.uint64]


class LeaseState(enum.Enum):
    """What a reader learns from a word."""

    AHEAD = "prefill hasn't begun the lease yet"
    LIVE = "running"
    OVER = "over: the blocks may belong to another request"
    TORN = "read while it changed"


def lease_state(word: int, complement: int, generation: int) -> LeaseState:
    """What a slot's two words say about the lease `generation`."""
    if word != complement ^ (2**64 - 1):
        return LeaseState.TORN
    if word < 2 * generation:
        return LeaseState.AHEAD
    return LeaseState.LIVE if word == 2 * generation else LeaseState.OVER


def mark(generation: int, number: int) -> int:
    """What a reader writes about a lease: into `done`, how many readers there are; into `renewed`,
    how often it has renewed."""
    return (generation % 2**48) << 16 | number % 2**16


class Board:
    """The leases of one prefill rank. One thread."""

    def __init__(self, slots: int = SLOTS, readers: int = MAX_READERS) -> None:
        self.words: Words = np.zeros((slots, 2), np.uint64)
        self.words[:, 1] = ~self.words[:, 0]
        self.done: Words = np.zeros((slots, readers), np.uint64)
        self.renewed: Words = np.zeros((slots, readers), np.uint64)

    def begin(self, slot: int, generation: int) -> None:
        """From here on readers find the lease running."""
        self._set(slot, 2 * generation)

    def end(self, slot: int, generation: int) -> None:
        """Afterwards no read of the lease's blocks counts any more."""
        self._set(slot, 2 * generation + 1)

    def finished(self, slot: int, generation: int) -> bool:
        """Whether every reader has said that it has finished."""
        if int(self.done[slot, 0]) >> 16 != generation % 2**48:  # asked often, of every lease
            return False
        numbers = marks(self.done[slot], generation)
        return len(numbers) >= numbers[0]

    def renewals(self, slot: int, generation: int) -> list[int]:
        """Changes when a reader renews."""
        return marks(self.renewed[slot], generation)

    def _set(self, slot: int, word: int) -> None:
        self.words[slot, 0] = word
        self.words[slot, 1] = word ^ (2**64 - 1)


def marks(row: Words, generation: int) -> list[int]:
    """The numbers of a row's marks about this lease."""
    ours = row[row >> np.uint64(16) == np.uint64(generation % 2**48)]
    return [int(word) & 0xFFFF for word in ours]
