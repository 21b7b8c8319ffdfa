"""Small pools for tests of the KV manager."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvmend import KVComponent, KVLayout, KVPool

__all__ = ["Pools"]


class Pools:
    """`kv`: (buffers, pages, item_len) bytes; `aux`: (8, 16) int64; and the layout of both."""

    def __init__(self, pages: int = 64, buffers: int = 4, item_len: int = 4096) -> None:
        self.kv: npt.NDArray[np.uint8] = np.zeros((buffers, pages, item_len), np.uint8)
        self.aux: npt.NDArray[np.int64] = np.zeros((8, 16), np.int64)
        self.layout = KVLayout(
            [
                KVComponent(list(self.kv), item_len, dtype="uint8"),
                KVComponent([self.aux], 16 * 8, pool=KVPool.AUX, dtype="int64"),
            ],
            page_tokens=16,
            kv_heads=1,
            head_dim=item_len // 16,
        )

    def fill(self, seed: int) -> None:
        """Random pages and aux rows."""
        rng = np.random.default_rng(seed)
        self.kv[:] = rng.integers(0, 256, self.kv.shape, np.uint8)
        self.aux[:] = rng.integers(-(2**60), 2**60, self.aux.shape)

    def page_bytes(self, pages: list[int]) -> bytes:
        """What these pages hold, buffer by buffer."""
        return self.kv[:, pages].tobytes()
