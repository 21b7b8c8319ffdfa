"""A pool of KV pages in one mapping, with an allocator and a canary."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from kvmend import MemoryPool

#: What a page holds that nobody has written: eight bytes, repeated.
CANARY = np.uint64(0xC0FFEE_DEAD_BEEF_77)


class Pool:
    """`pages` pages in each of `buffers` buffers; page p of buffer b is `array[b, p]`.

    Any thread may allocate and free. The content is the users' affair: kvmend guarantees that
    nobody writes a page whose room has ended.
    """

    def __init__(self, buffers: int, pages: int, item_len: int) -> None:
        self.pages = pages
        self.item_len = item_len
        size = buffers * pages * item_len
        #: (buffers, pages, item_len), uint8
        self.array: npt.NDArray[np.uint8] = (
            MemoryPool(size).array[:size].reshape(buffers, pages, item_len)
        )
        self._free = list(range(pages))
        self._ever_used: set[int] = set()
        self._changed = threading.Condition()

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all buffers."""
        return int(self.array.shape[0]) * self.item_len

    def alloc(self, count: int) -> list[int]:
        """Takes pages; waits until there are enough."""
        if count > self.pages:
            raise ValueError(f"{count} pages wanted, the pool has {self.pages}")
        with self._changed:
            self._changed.wait_for(lambda: len(self._free) >= count)
            taken = [self._free.pop() for _ in range(count)]
            self._ever_used.update(taken)
            return taken

    def free(self, pages: list[int]) -> None:
        """Gives pages back. They are taken again first: so some pages are never used at all."""
        with self._changed:
            self._free.extend(pages)
            self._changed.notify_all()

    def fill_canary(self) -> None:
        """Before anything is allocated."""
        self.array.view(np.uint64)[:] = CANARY

    def broken_canaries(self) -> list[int]:
        """Pages that somebody wrote although they were never allocated."""
        with self._changed:
            untouched = [p for p in range(self.pages) if p not in self._ever_used]
        words = self.array.view(np.uint64)
        return [p for p in untouched if (words[:, p] != CANARY).any()]

    @property
    def never_used(self) -> int:
        """How many pages were never allocated."""
        with self._changed:
            return self.pages - len(self._ever_used)
