"""The forward pass of a Llama-architecture model in float32 NumPy, KV in a paged pool."""

from collections.abc import Sequence

import numpy as np

from .paged_kv import PagedKVPool
from .weights import LayerWeights, Weights


class LlamaModel:
    """Computes hidden states and logits. Holds no state of any sequence: that is in the pool.

    The same tokens in the same steps give the same bits, whatever the page numbers, as long as
    the BLAS library and its number of threads are the same. Safe from several threads that use
    different pages.
    """

    def __init__(self, weights: Weights):
        self.config = weights.config
        self._weights = weights
        # Position tables, (context, head_dim / 2) each, rounded once from float64.
        half = self.config.head_dim // 2
        frequencies = self.config.rope_base ** (-np.arange(half) / half)
        angles = np.outer(np.arange(self.config.context), frequencies)
        self._cos = np.cos(angles).astype(np.float32)
        self._sin = np.sin(angles).astype(np.float32)

    def new_pool(self, num_pages: int, page_tokens: int = 16, buffers=None) -> PagedKVPool:
        """A float32 pool of this model's geometry; `buffers` as in PagedKVPool."""
        c = self.config
        return PagedKVPool(
            num_pages, page_tokens, c.layers, c.kv_heads, c.head_dim, np.float32, buffers
        )

    def forward(
        self, tokens: Sequence[int], start: int, pool: PagedKVPool, pages: Sequence[int]
    ) -> np.ndarray:
        """Run `tokens` at positions `start, start + 1, ...`; return hidden states `(n, hidden)`.

        `pages` is the sequence's page table; it must already hold the positions below `start`.
        Keys and values of the new tokens are written to it. Attention then reads everything,
        new tokens too, from the pool and from nowhere else.

        Raises ValueError for no tokens, an id outside the vocabulary, positions past the
        context or past the pages.
        """
        c = self.config
        ids = np.asarray(tokens, dtype=np.intp)
        if ids.ndim != 1 or not ids.size:
            raise ValueError("at least one token is needed")
        if ids.min() < 0 or ids.max() >= c.vocab:
            raise ValueError(f"a token id is outside 0..{c.vocab - 1}")
        if start + len(ids) > c.context:
            raise ValueError(f"position {start + len(ids) - 1} is past the context of {c.context}")
        slots = pool.slots(pages, start, len(ids))
        x = self._weights.embedding[ids]
        for i, layer in enumerate(self._weights.layers):
            normed = _rms_norm(x, layer.attn_norm, c.norm_eps)
            x = x + self._attention(i, layer, normed, start, pool, pages, slots)
            x = x + _feed_forward(layer, _rms_norm(x, layer.ffn_norm, c.norm_eps))
        return x

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """Scores of the next token, `(vocab,)`, from one row `(hidden,)` of `forward`."""
        normed = _rms_norm(hidden, self._weights.final_norm, self.config.norm_eps)
        return self._weights.embedding @ normed

    def _attention(
        self,
        index: int,
        layer: LayerWeights,
        x: np.ndarray,
        start: int,
        pool: PagedKVPool,
        pages: Sequence[int],
        slots: np.ndarray,
    ) -> np.ndarray:
        """Causal grouped-query attention of layer `index`; `x` and the result are (n, hidden)."""
        c = self.config
        n, total, group = len(x), start + len(x), c.heads // c.kv_heads
        q, k, v = np.split(
            (x @ layer.qkv).reshape(n, -1, c.head_dim), [c.heads, c.heads + c.kv_heads], axis=1
        )
        cos, sin = self._cos[start:total, None], self._sin[start:total, None]
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        pool.write(index, slots, k, v)
        keys, values = pool.read(index, pages, total)

        # Query heads that share a KV head become rows of one matrix: (kv_heads, group * n, dim).
        q *= np.float32(c.head_dim**-0.5)
        q = q.transpose(1, 0, 2).reshape(c.kv_heads, group * n, c.head_dim)
        scores = q @ keys.transpose(1, 2, 0)  # (kv_heads, group * n, total)
        if n > 1:
            future = np.arange(total) > np.arange(start, total)[:, None]  # (n, total)
            scores.reshape(c.heads, n, total)[:, future] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed = scores @ values.transpose(1, 0, 2)  # (kv_heads, group * n, dim)
        mixed = mixed.reshape(c.heads, n, c.head_dim).transpose(1, 0, 2).reshape(n, -1)
        return mixed @ layer.attn_out


def _rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """Scale each row to a root mean square of one, then each column by `weight`."""
    mean_square = np.square(x).mean(axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + np.float32(eps)) * weight


def _rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """RoPE: turn the pairs (i, i + dim / 2) of `(n, heads, dim)` by the position's angles."""
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)


def _feed_forward(layer: LayerWeights, x: np.ndarray) -> np.ndarray:
    """SwiGLU: down(silu(gate(x)) * up(x))."""
    gate, up = np.split(x @ layer.gate_up, 2, axis=-1)
    # For a gate below -88, exp overflows to inf and the quotient is the right limit, 0.
    with np.errstate(over="ignore"):
        activated = gate / (1 + np.exp(-gate))
    activated *= up
    return activated @ layer.down
