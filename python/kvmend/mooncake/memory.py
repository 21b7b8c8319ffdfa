"""The memory that this process registered, and the buffers that the engine manages."""

from __future__ import annotations

import bisect
import ctypes
import mmap
import os
import threading

__all__ = ["ManagedBuffers", "Ranges", "is_readable"]


class Ranges:
    """Registered (address, bytes), without overlaps. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes: dict[int, int] = {}  # in the order of registration
        self._sorted: list[int] = []

    def add(self, pairs: list[tuple[int, int]]) -> None:
        with self._lock:
            for address, length in pairs:
                self._bytes[address] = length
                bisect.insort(self._sorted, address)

    def remove(self, address: int) -> None:
        with self._lock:
            if self._bytes.pop(address, None) is not None:
                del self._sorted[bisect.bisect_left(self._sorted, address)]

    def contains(self, address: int, length: int) -> bool:
        """Whether [address, address + length) lies in one of them."""
        with self._lock:
            at = bisect.bisect_right(self._sorted, address)
            if at == 0:
                return False
            base = self._sorted[at - 1]
            return address + length <= base + self._bytes[base]

    def first(self) -> int:
        """The address that was registered first, or 0."""
        with self._lock:
            return next(iter(self._bytes), 0)


class ManagedBuffers:
    """Memory of the engine's own, page-aligned and zeroed. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._maps: dict[int, mmap.mmap] = {}

    def allocate(self, length: int) -> int:
        """Its address; 0 when the system has none."""
        try:
            memory = mmap.mmap(-1, length)
        except (OSError, OverflowError, ValueError):
            return 0
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        with self._lock:
            self._maps[address] = memory
        return address

    def take(self, address: int) -> mmap.mmap | None:
        """Removes one from the table; its memory goes when the caller drops it."""
        with self._lock:
            return self._maps.pop(address, None)

    def put_back(self, address: int, memory: mmap.mmap) -> None:
        with self._lock:
            self._maps[address] = memory


def is_readable(ranges: list[tuple[int, int]]) -> tuple[int, int] | None:
    """The first of (address, bytes) that isn't host memory of this process, or None.

    Looks at the two ends: enough to tell addresses of a GPU and bogus ones.
    """
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        for address, length in ranges:
            try:
                ends = address, address + length - 1
                if not all(os.pread(memory, 1, end) for end in ends):
                    return address, length
            except (OSError, OverflowError):
                return address, length
    finally:
        os.close(memory)
    return None
