"""Addresses of memory that Python objects hold."""

from __future__ import annotations

import enum
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from ._kvmend import MemoryPool
from .errors import InvalidArgumentError

__all__ = ["Access", "Memory", "MemoryPool", "address_of", "as_bytes"]


class Access(enum.IntFlag):
    """What peers may do with a region by its address alone (rooms need none of it)."""

    NONE = 0
    REMOTE_READ = 1
    REMOTE_WRITE = 2
    READ_WRITE = 3


@runtime_checkable
class HasDataPtr(Protocol):
    """A torch tensor, or something that looks like one."""

    def data_ptr(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


#: A C-contiguous NumPy array, a MemoryPool, a torch CPU tensor, anything with the buffer protocol
#: (bytearray, memoryview, mmap), or (address, bytes) of memory that the caller keeps alive.
Memory: TypeAlias = Any


def as_bytes(memory: Memory) -> npt.NDArray[np.uint8]:
    """The same memory, seen as a flat uint8 array; it keeps `memory` alive.

    Raises InvalidArgumentError for memory with gaps and for what holds no memory at all.
    """
    if isinstance(memory, np.ndarray):
        if not memory.flags.c_contiguous:
            raise InvalidArgumentError(
                f"an array of shape {memory.shape} and strides {memory.strides} isn't C-contiguous"
            )
        return memory.reshape(-1).view(np.uint8)
    try:
        view = memoryview(memory)
        return np.frombuffer(view.cast("B") if view.nbytes else b"", dtype=np.uint8)
    except (TypeError, BufferError) as error:
        raise InvalidArgumentError(
            f"a {type(memory).__name__} holds no memory that can be registered: {error}"
        ) from None


def address_of(memory: Memory) -> tuple[int, int, object, bool]:
    """(address, bytes, what keeps it alive, whether it is read-only)."""
    if isinstance(memory, tuple):
        if len(memory) != 2 or not all(isinstance(n, (int, np.integer)) for n in memory):
            raise InvalidArgumentError(f"{memory!r} isn't (address, bytes)")
        address, length = (int(n) for n in memory)
        if not (0 <= address < 2**64 and 0 <= length < 2**64):
            raise InvalidArgumentError(f"{memory!r}: address and bytes must be from 0 to 2**64 - 1")
        return address, length, None, False
    if isinstance(memory, MemoryPool):
        memory = memory.array
    if isinstance(memory, HasDataPtr) and not isinstance(memory, np.ndarray):
        contiguous = getattr(memory, "is_contiguous", None)
        if contiguous is not None and not contiguous():
            raise InvalidArgumentError("the tensor isn't contiguous")
        return memory.data_ptr(), memory.nbytes, memory, False
    view = as_bytes(memory)
    return view.ctypes.data, view.nbytes, view, not view.flags.writeable
