"""The pools of one rank of a small model whose every byte is known, for tests of layouts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvmend import KVComponent, KVLayout, KVPool, KVRank

__all__ = ["RankPools"]

Bytes = npt.NDArray[np.uint8]


class RankPools:
    """`kv[half, layer]`: pages of tokens x heads of this rank x dim; `aux`: rows of int64.

    `heads`: of the model; 1 and `halves=1`: MLA. `layers`: ids of those that this rank has.
    `order`: "nhd", or "hnd" for pages of heads x tokens.
    """

    def __init__(
        self,
        rank: KVRank,
        *,
        heads: int,
        layers: Sequence[int],
        halves: int = 2,
        page_tokens: int = 4,
        pages: int = 24,
        dim: int = 8,
        order: str = "nhd",
    ) -> None:
        held = max(1, heads // rank.tp_size)
        self.rank, self.page_tokens = rank, page_tokens
        self.heads = rank.tp_rank * heads // rank.tp_size + np.arange(held)
        self.layers, self.halves, self.dim = list(layers), halves, dim
        inside = (page_tokens, held) if order == "nhd" else (held, page_tokens)
        self.kv: Bytes = np.zeros((halves, len(self.layers), pages, *inside, dim), np.uint8)
        #: The same memory, always tokens x heads.
        self.by_token: Bytes = self.kv if order == "nhd" else self.kv.swapaxes(3, 4)
        self.aux: npt.NDArray[np.int64] = np.zeros((8, 4), np.int64)
        buffers = [self.kv[half, at] for half in range(halves) for at in range(len(self.layers))]
        self.layout = KVLayout(
            [
                KVComponent(
                    buffers, page_tokens * held * dim, dtype="uint8", layer_ids=self.layers * halves
                ),
                KVComponent([self.aux], 32, pool=KVPool.AUX, dtype="int64"),
            ],
            page_tokens=page_tokens,
            kv_heads=held,
            head_dim=dim,
            total_kv_heads=heads,
            element_order=order,
            rank=rank,
        )

    def _content(self, tokens: npt.NDArray[np.int64]) -> Bytes:
        """What (half, layer, token, head, dim) hold of these tokens; never 0."""
        axes = np.ix_(
            np.arange(self.halves),
            np.array(self.layers, np.int64),
            tokens,
            self.heads,
            np.arange(self.dim),
        )
        half, layer, token, head, element = axes
        mixed = half * 101 + layer * 37 + token * 7 + head * 53 + element * 3
        content: Bytes = (mixed % 251 + 1).astype(np.uint8)
        return content

    def _pages_content(self, count: int) -> Bytes:
        tokens = np.arange(count * self.page_tokens) * self.rank.dcp_size + self.rank.dcp_rank
        shape = (*self.by_token.shape[:2], count, *self.by_token.shape[3:])
        return self._content(tokens).reshape(shape)

    def fill(self, pages: Sequence[int]) -> None:
        """Writes a request's tokens into these pages, and its aux row 1."""
        self.by_token[:, :, pages] = self._pages_content(len(pages))
        self.aux[1] = [11, 22, 33, 44]

    def wrong(self, pages: Sequence[int], aux: int, tokens: int = 0) -> str:
        """What differs from that request here: wrong bytes, or other pages touched; "" if nothing.

        `tokens`: of the request, where the last page isn't full.
        """
        expected = np.zeros(self.by_token.shape, np.uint8)
        content = self._pages_content(len(pages))
        if tokens:
            mine = len(range(self.rank.dcp_rank, tokens, self.rank.dcp_size))
            flat = content.reshape(*content.shape[:2], -1, *content.shape[4:])
            flat[:, :, mine:] = 0
        expected[:, :, pages] = content
        found = []
        if (bad := int((self.by_token != expected).sum())) > 0:
            found.append(f"{bad} of {expected.size} KV bytes")
        rows = np.zeros_like(self.aux)
        rows[aux] = [11, 22, 33, 44]
        if not (self.aux == rows).all():
            found.append("aux")
        return ", ".join(found)
