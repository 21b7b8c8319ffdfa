"""Pages of a known content in Llama-3-8B's geometry: no model, gigabytes per second."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import numpy.typing as npt

from kvmend import _kvmend

from .pool import Pool
from .workload import AUX_ROWS, AUX_WORDS, Spec

LAYERS = 32
KV_HEADS = 8
HEAD_DIM = 128
PAGE_TOKENS = 64
ITEM_LEN = PAGE_TOKENS * KV_HEADS * HEAD_DIM * 2  # bfloat16: 128 KiB, K or V of one layer
CHUNK_PAGES = 8


class SyntheticWorkload:
    """Every page of every request has a content of its own; both sides hash what they have."""

    page_tokens = PAGE_TOKENS
    kv_heads = KV_HEADS
    head_dim = HEAD_DIM
    dtype = "bfloat16"

    def __init__(self, pool_pages: int) -> None:
        self.pool = Pool(2 * LAYERS, pool_pages, ITEM_LEN)
        self.aux: npt.NDArray[np.int64] = np.zeros((AUX_ROWS, AUX_WORDS), np.int64)
        self._words = self.pool.array.view(np.uint64)
        odd = np.uint64(0x9E3779B97F4A7C15)
        self._pattern = np.arange(ITEM_LEN // 8, dtype=np.uint64) * odd
        self._buffer_salt = (np.arange(2 * LAYERS, dtype=np.uint64) + np.uint64(1)) * odd

    def prompt_pages(self, spec: Spec) -> int:
        return -(-spec.tokens // PAGE_TOKENS)

    all_pages = prompt_pages  # nothing is generated

    def prefill(
        self, spec: Spec, pages: list[int], aux_row: int, send: Callable[[list[int]], None]
    ) -> dict[str, Any]:
        rng = np.random.default_rng(spec.seed)
        for page, salt in zip(pages, rng.integers(2**63, size=len(pages)), strict=True):
            salts = self._buffer_salt ^ np.uint64(salt)
            np.add(self._pattern, salts[:, None], out=self._words[:, page])
        self.aux[aux_row, 0] = spec.seed
        digest = self._digest(pages)
        for start in range(0, len(pages), CHUNK_PAGES):
            send(pages[start : start + CHUNK_PAGES])
        return {"aux": spec.seed, "digest": digest}

    def decode(
        self, spec: Spec, pages: list[int], aux_row: int
    ) -> Generator[None, None, dict[str, Any]]:
        yield
        return {"aux": int(self.aux[aux_row, 0]), "digest": self._digest(pages)}

    def _digest(self, pages: list[int]) -> str:
        """XXH3-64 of the XXH3-64 of every page of every buffer."""
        parts = [_kvmend.xxh3_64(buffer[page]) for buffer in self.pool.array for page in pages]
        return f"{_kvmend.xxh3_64(np.array(parts, np.uint64).view(np.uint8)):016x}"


def specs(quick: bool) -> list[Spec]:
    """Requests to cycle through: 256 to 1,024 tokens when quick, else up to 3,072."""
    pages = [4, 12, 8, 16, 6, 14] if quick else [8, 40, 16, 48, 24, 32]
    return [Spec(f"{n * PAGE_TOKENS} tokens", n * PAGE_TOKENS, seed=n) for n in pages]
