"""Blocks of the cache in host memory, for caches that the engine can't reach. Imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .geometry import Incompatible, LayerGeometry
from .slots import Slots

__all__ = ["TorchStaging"]

ALIGNMENT = 64
BOUNCE_BYTES = 64 << 20  # device memory that blocks are gathered in


@dataclass(frozen=True)
class Pages:
    """The bytes of every block in one place of the cache; `at`: where they go in a staged block."""

    bytes: torch.Tensor  # (blocks, extent)
    at: int

    def part(self, rows: torch.Tensor) -> torch.Tensor:
        """Of staged blocks."""
        return rows.narrow(-1, self.at, self.bytes.shape[1])


class TorchStaging:
    """A pool of blocks in host memory, pinned where the cache is on an accelerator.

    A staged block is one run of bytes: what the block holds in every layer, as it lies there.
    Layers of different KV cache groups that share memory are copied once. The copies run on the
    current stream, after the work that was queued before; they have happened when they return.

    From a device, blocks are gathered in a buffer there, and every run of staged blocks is then one
    transfer; the other way round likewise.
    """

    def __init__(
        self, tensors: Sequence[torch.Tensor], layers: Sequence[LayerGeometry], blocks: int,
        limit: int, serves: bool = True, loads: bool = True, *, bounce_bytes: int | None = None,
    ) -> None:  # fmt: skip
        """`tensors`: one of each storage that `layers` lie in; `blocks` each. `limit`: bytes of
        host memory. `serves`, `loads`: prefill and decode share it if both. `bounce_bytes`: of the
        buffer on the device; default: none if that is the host."""
        device = tensors[0].device
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
        extents: dict[tuple[int, int], int] = {}
        for layer in layers:
            place = layer.address, layer.block_stride
            extents[place] = max(layer.extent, extents.get(place, 0))
        at: dict[tuple[int, int], int] = {}
        size = 0
        for place, extent in extents.items():
            at[place] = size
            size += -(-extent // ALIGNMENT) * ALIGNMENT
        uses = int(serves) + int(loads)
        self._count = min(uses * blocks, limit // size)
        if self._count < max(uses, 1):
            raise Incompatible(f"staging_bytes is {limit}, but a block has {size} bytes")
        self._lent = self._count // uses if serves else 0
        self._slots = Slots(self._count - self._lent if loads else 0, self._lent)
        self._host = torch.empty(
            (self._count, size), dtype=torch.uint8, pin_memory=device.type != "cpu"
        )
        self._pages = [
            Pages(bytes_of(storages, address, stride, blocks, extent), at[address, stride])
            for (address, stride), extent in extents.items()
        ]
        self.geometry = tuple(
            replace(
                layer, address=self._host.data_ptr() + at[layer.address, layer.block_stride],
                block_stride=size,
            )
            for layer in layers
        )  # fmt: skip
        if bounce_bytes is None:
            bounce_bytes = 0 if device.type == "cpu" else BOUNCE_BYTES
        rows = min(max(1, bounce_bytes // size), self._count)
        self._bounce = torch.empty((rows, size), dtype=torch.uint8, device=device)
        self._bounces = bounce_bytes > 0
        self._device = device

    @property
    def memory(self) -> Any:
        """To register; lives as long as this."""
        return self._host.data_ptr(), self._host.nbytes

    @property
    def count(self) -> int:
        """How many there are."""
        return self._count

    @property
    def blocks(self) -> int:
        """How many of them decode has."""
        return self._count - self._lent

    @property
    def lent(self) -> int:
        """How many prefill's scheduler hands out, from number 0 on."""
        return self._lent

    def take(self, count: int) -> list[int] | None:
        """Decode's: staged blocks, or None while too few are free."""
        return self._slots.take(count)

    def give(self, blocks: Sequence[int]) -> None:
        """Back."""
        self._slots.give(blocks)

    def save(self, blocks: Sequence[int], staged: Sequence[int]) -> None:
        """Cache -> host."""
        if not self._bounces:
            for pages in self._pages:
                part = pages.part(self._host)
                for block, row in zip(blocks, staged, strict=True):
                    part[row].copy_(pages.bytes[block])
            return
        for first, index, rows in self._batches(blocks):
            for pages in self._pages:
                pages.part(rows).copy_(pages.bytes.index_select(0, index))
            for row, start, end in runs(staged[first : first + len(rows)]):
                self._host[row : row + end - start].copy_(rows[start:end], non_blocking=True)
        self._finish()

    def restore(self, staged: Sequence[int], blocks: Sequence[int]) -> None:
        """Host -> cache."""
        if not self._bounces:
            for pages in self._pages:
                part = pages.part(self._host)
                for block, row in zip(blocks, staged, strict=True):
                    pages.bytes[block].copy_(part[row])
            return
        for first, index, rows in self._batches(blocks):
            for row, start, end in runs(staged[first : first + len(rows)]):
                rows[start:end].copy_(self._host[row : row + end - start], non_blocking=True)
            for pages in self._pages:
                pages.bytes.index_copy_(0, index, pages.part(rows))
        self._finish()

    def _batches(self, blocks: Sequence[int]) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """(number of the first, blocks as an index, as many rows of the buffer)."""
        for first in range(0, len(blocks), len(self._bounce)):
            some = blocks[first : first + len(self._bounce)]
            yield first, torch.tensor(some, device=self._device), self._bounce[: len(some)]

    def _finish(self) -> None:
        if self._device.type != "cpu":
            torch.accelerator.current_stream(self._device).synchronize()


def bytes_of(
    storages: dict[int, torch.UntypedStorage], address: int, stride: int, blocks: int, extent: int
) -> torch.Tensor:
    """Bytes at `address` and every `stride` after it, as (blocks, extent)."""
    for start, storage in storages.items():
        offset = address - start
        if 0 <= offset <= storage.nbytes() - (blocks - 1) * stride - extent:
            whole = torch.empty(0, dtype=torch.uint8, device=storage.device)
            return whole.set_(storage, offset, (blocks, extent), (stride, 1))
    raise Incompatible("a layer's blocks reach beyond their memory")


def runs(numbers: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(first number, its place, the place after the last one) of consecutive numbers."""
    start = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield numbers[start], start, i
            start = i
