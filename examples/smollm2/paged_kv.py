"""A pool of fixed-size KV pages: the memory that kvmend registers and moves."""

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np


class PoolExhausted(RuntimeError):
    """More pages were asked for than the pool has free; nothing was allocated."""


class PagedKVPool:
    """Keys and values of all layers, in `num_pages` pages of `page_tokens` tokens.

    Each layer has one K buffer and one V buffer of shape
    `(num_pages, page_tokens, kv_heads, head_dim)`, C-contiguous. Page `p` is row `p` of every
    buffer, so a page is `2 * layers` separate pieces of `item_len` bytes, each at
    `buffer address + p * item_len`: exactly a kvmend region list.

    `buffers` holds the K buffers of layers 0, 1, ... and then the V buffers of layers 0, 1, ...

    Use it from one thread at a time. Pages of different requests may be written by someone else
    (a transfer) meanwhile: the pool touches only the pages it is told to.
    """

    def __init__(
        self,
        num_pages: int,
        page_tokens: int,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype=np.float32,
        buffers: Sequence | None = None,
    ):
        """Allocate zeroed memory, or use the caller's.

        `buffers`: `2 * layers` writable objects of `num_pages * item_len` bytes each, in the
        order described above: arrays, or anything with the buffer protocol (memoryview, mmap).
        They are used in place and must outlive the pool.

        Raises ValueError for a size below one or memory that does not fit.
        """
        sizes = dict(
            num_pages=num_pages,
            page_tokens=page_tokens,
            layers=layers,
            kv_heads=kv_heads,
            head_dim=head_dim,
        )
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self.num_pages = num_pages
        self.page_tokens = page_tokens
        self.layers = layers
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.dtype = np.dtype(dtype)
        shape = (num_pages, page_tokens, kv_heads, head_dim)
        if buffers is None:
            self.buffers = [np.zeros(shape, self.dtype) for _ in range(2 * layers)]
        else:
            self.buffers = _adopt(buffers, 2 * layers, shape, self.dtype)
        # The same memory seen as (num_pages * page_tokens) token slots.
        self._slots = [b.reshape(-1, kv_heads, head_dim) for b in self.buffers]
        self._free = deque(range(num_pages))
        self._is_free = [True] * num_pages

    @property
    def item_len(self) -> int:
        """Bytes of one page in one buffer."""
        return self.page_tokens * self.kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers, K and V."""
        return self.item_len * len(self.buffers)

    @property
    def free_pages(self) -> int:
        """Pages that `alloc` can still give."""
        return len(self._free)

    def pages_for(self, tokens: int) -> int:
        """Pages needed to hold `tokens` tokens."""
        return -(-tokens // self.page_tokens)

    def alloc(self, n: int) -> list[int]:
        """Take `n` pages. Their content is whatever the last user left there.

        The longest-free pages come first, so page numbers of a busy pool are scattered.
        Raises PoolExhausted when fewer than `n` are free.
        """
        if n < 0:
            raise ValueError(f"cannot allocate {n} pages")
        if n > len(self._free):
            raise PoolExhausted(f"{n} pages wanted, {len(self._free)} of {self.num_pages} free")
        pages = [self._free.popleft() for _ in range(n)]
        for page in pages:
            self._is_free[page] = False
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """Give pages back. Raises ValueError (and frees none) for one that is not allocated."""
        pages = list(pages)
        if len(set(pages)) != len(pages):
            raise ValueError(f"a page stands twice in {pages}")
        for page in pages:
            if not 0 <= page < self.num_pages:
                raise ValueError(f"page {page} is outside 0..{self.num_pages - 1}")
            if self._is_free[page]:
                raise ValueError(f"page {page} is not allocated")
        for page in pages:
            self._is_free[page] = True
        self._free.extend(pages)

    def slots(self, pages: Sequence[int], start: int, count: int) -> np.ndarray:
        """Slot numbers of tokens `start .. start + count` of a request that owns `pages`.

        A slot is `page * page_tokens + offset in the page`. Raises ValueError when the pages
        are too few, or one is outside the pool.
        """
        if start < 0 or start + count > len(pages) * self.page_tokens:
            raise ValueError(
                f"tokens {start}..{start + count - 1} do not fit in {len(pages)} pages "
                f"of {self.page_tokens} tokens"
            )
        table = np.asarray(pages, dtype=np.intp)
        if table.size and not (0 <= table.min() and table.max() < self.num_pages):
            raise ValueError(f"a page of {list(pages)} is outside 0..{self.num_pages - 1}")
        positions = np.arange(start, start + count)
        return table[positions // self.page_tokens] * self.page_tokens + (
            positions % self.page_tokens
        )

    def write(self, layer: int, slots: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """Store `k` and `v`, each `(len(slots), kv_heads, head_dim)`, at these slots."""
        self._slots[layer][slots] = k
        self._slots[self.layers + layer][slots] = v

    def read(self, layer: int, pages: Sequence[int], tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Copies of K and V of the first `tokens` tokens, `(tokens, kv_heads, head_dim)` each."""
        table = np.asarray(pages[: self.pages_for(tokens)], dtype=np.intp)
        return tuple(
            self.buffers[i].take(table, axis=0).reshape(-1, self.kv_heads, self.head_dim)[:tokens]
            for i in (layer, self.layers + layer)
        )


def _adopt(buffers: Sequence, count: int, shape: tuple, dtype: np.dtype) -> list[np.ndarray]:
    """View the caller's memory as arrays of `shape` and `dtype`, without copying."""
    if len(buffers) != count:
        raise ValueError(f"{count} buffers wanted (K and V of each layer), {len(buffers)} given")
    want = int(np.prod(shape)) * dtype.itemsize
    arrays = []
    for i, buffer in enumerate(buffers):
        view = memoryview(buffer)
        if view.readonly or not view.c_contiguous:
            raise ValueError(f"buffer {i} must be writable and C-contiguous")
        if view.nbytes != want:
            raise ValueError(f"buffer {i} has {view.nbytes} bytes, {want} wanted for {shape}")
        arrays.append(np.frombuffer(view.cast("B"), dtype=dtype).reshape(shape))
    return arrays
