"""Numbers that are lent and given back. Not thread-safe."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

__all__ = ["Slots"]


class Slots:
    """A pool of `count` numbers from `first` on; what was given back first is lent first."""

    def __init__(self, count: int, first: int = 0) -> None:
        self._free = deque(range(first, first + count))

    def __len__(self) -> int:
        """How many are free."""
        return len(self._free)

    def take(self, count: int = 1) -> list[int] | None:
        """`count` of them, or None if there aren't as many."""
        if count > len(self._free):
            return None
        return [self._free.popleft() for _ in range(count)]

    def give(self, numbers: Iterable[int]) -> None:
        """Back."""
        self._free.extend(numbers)
