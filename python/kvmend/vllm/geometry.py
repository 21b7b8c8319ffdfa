"""Where the bytes of a block lie in one layer's cache, and how two layouts of it fit together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Incompatible", "LayerGeometry", "Runs", "match"]

Numbers = npt.NDArray[np.uint64]


class Incompatible(ValueError):
    """Two instances whose caches can't be mapped onto each other; says why."""


@dataclass(frozen=True)
class LayerGeometry:
    """One layer's cache on one rank. All in bytes but the counts.

    Block b begins at `address + b * block_stride`. Inside it lie `kernel_blocks` (vLLM may split a
    block for its kernels) of `heads` of `tokens` of `content` contiguous bytes, at their strides.
    What `content` holds (K and V of a token, or a head's K of all tokens and then V) is opaque.
    """

    name: str
    address: int
    block_stride: int
    kernel_blocks: int
    kernel_stride: int
    heads: int
    head_stride: int
    tokens: int
    token_stride: int
    content: int
    group: int = 0  # its KV cache group

    @classmethod
    def of(
        cls, name: str, address: int, shape: Sequence[int], strides: Sequence[int],
        itemsize: int, blocks: int, *, group: int = 0, opaque: bool = False,
    ) -> LayerGeometry:  # fmt: skip
        """Of a tensor; `strides` in bytes. vLLM's shape is (blocks, heads, tokens, content); any
        other whose first dimension counts blocks is taken as one head of opaque bytes, and that
        one too if it is `opaque`.

        Raises Incompatible if it doesn't hold `blocks` blocks, or has gaps that it can't have.
        """
        if not shape or shape[0] % blocks:
            raise Incompatible(f"{name}: shape {tuple(shape)} doesn't hold {blocks} blocks")
        kernel_blocks, kernel_stride = shape[0] // blocks, strides[0]
        if not opaque and len(shape) == 4 and (strides[3] == itemsize or shape[3] == 1):
            heads, tokens, content = shape[1], shape[2], shape[3] * itemsize
            head_stride, token_stride = strides[1], strides[2]
        else:
            heads, tokens, content = 1, 1, dense_bytes(name, shape[1:], strides[1:], itemsize)
            head_stride = token_stride = content
        return cls(
            name, address, kernel_stride * kernel_blocks, kernel_blocks, kernel_stride,
            heads, head_stride, tokens, token_stride, content, group,
        )  # fmt: skip

    @property
    def block_bytes(self) -> int:
        """What a block holds."""
        return self.kernel_blocks * self.heads * self.tokens * self.content

    @property
    def extent(self) -> int:
        """From a block's first byte to its last, gaps included."""
        return (
            (self.kernel_blocks - 1) * self.kernel_stride
            + (self.heads - 1) * self.head_stride
            + (self.tokens - 1) * self.token_stride
            + self.content
        )

    def offsets(self, first_head: int, heads: int) -> Numbers:
        """Offset in a block of every (kernel block, head, token) of some heads, in that order."""
        kernel = np.arange(self.kernel_blocks, dtype=np.uint64) * np.uint64(self.kernel_stride)
        head = np.arange(first_head, first_head + heads, dtype=np.uint64)
        token = np.arange(self.tokens, dtype=np.uint64) * np.uint64(self.token_stride)
        grid = kernel[:, None, None] + (head * np.uint64(self.head_stride))[:, None] + token
        return np.asarray(grid).ravel()


def dense_bytes(name: str, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    """Bytes of an array without gaps, in any order of dimensions; Incompatible if it has any."""
    size = itemsize
    for length, stride in sorted(zip(shape, strides, strict=True), key=lambda pair: pair[1]):
        if length == 1:
            continue
        if stride != size:
            raise Incompatible(f"{name}: a block of shape {tuple(shape)} has gaps")
        size *= length
    return size


@dataclass(frozen=True)
class Runs:
    """Pieces of a block that are contiguous on both sides: where here, where there, how long."""

    here: Numbers
    there: Numbers
    lengths: Numbers


def match(
    here: LayerGeometry, here_head: int, there: LayerGeometry, there_head: int, heads: int
) -> Runs:
    """The runs of `heads` heads, from `here_head` on here and `there_head` on there.

    Raises Incompatible if the two hold different things.
    """
    mine, theirs = shape_of(here), shape_of(there)
    if mine != theirs:
        raise Incompatible(
            f"{here.name}: (kernel blocks, tokens, content) {mine} here, {theirs} there"
        )
    for side, geometry, first in (("here", here, here_head), ("there", there, there_head)):
        if first + heads > geometry.heads:
            raise Incompatible(
                f"{here.name}: {side} are {geometry.heads} heads, not {first + heads}"
            )
    a, b = here.offsets(here_head, heads), there.offsets(there_head, heads)
    step = np.uint64(here.content)
    joined = (a[1:] == a[:-1] + step) & (b[1:] == b[:-1] + step)
    starts = np.flatnonzero(np.concatenate(([True], ~joined)))
    lengths = np.diff(np.append(starts, len(a))).astype(np.uint64) * step
    return Runs(a[starts], b[starts], lengths)


def shape_of(geometry: LayerGeometry) -> tuple[int, int, int]:
    return geometry.kernel_blocks, geometry.tokens, geometry.content
