"""vLLM's cache tensors as memory that an engine can register. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .geometry import Incompatible, LayerGeometry
from .slots import Slots
from .worker_side import Caches

__all__ = ["TorchStaging", "caches_of"]


def caches_of(
    tensors: Mapping[str, torch.Tensor], blocks: int, staging: str, staging_bytes: int
) -> tuple[Caches, tuple[LayerGeometry, ...]]:
    """What to register, and where each layer lies in it.

    `tensors`: vLLM's, by layer; layers that share one count once, under the first name.
    `blocks`: of vLLM's block manager. `staging`, `staging_bytes`: as in `Settings`.
    Raises Incompatible for caches that aren't made of blocks.
    """
    layers: dict[tuple[int, int], tuple[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        layers.setdefault((tensor.data_ptr(), tensor.nbytes), (name, tensor))
    if not layers:
        raise Incompatible("the model has no KV cache")
    on_host = all(tensor.device.type == "cpu" for _, tensor in layers.values())
    if on_host and staging == "auto":
        return in_place(list(layers.values()), blocks)
    if staging == "auto":
        raise Incompatible(
            "the KV cache isn't in host memory. Staging through host memory is experimental: "
            'set "staging": "always" to use it, and compare its answers first'
        )
    staged = TorchStaging(list(layers.values()), blocks, staging_bytes)
    return Caches(staged.memory, staged.blocks, staged), staged.geometry


def in_place(
    layers: Sequence[tuple[str, torch.Tensor]], blocks: int
) -> tuple[Caches, tuple[LayerGeometry, ...]]:
    storages: dict[int, int] = {}
    for _, tensor in layers:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    geometry = tuple(
        LayerGeometry.of(
            name, tensor.data_ptr(), tensor.shape,
            [stride * tensor.element_size() for stride in tensor.stride()],
            tensor.element_size(), blocks,
        )
        for name, tensor in layers
    )  # fmt: skip
    return Caches(list(storages.items()), blocks), geometry


class TorchStaging:
    """A pool of blocks in host memory, pinned where there is an accelerator.

    A staged block holds a cache's block in its logical order, without gaps. The copies run on the
    current stream, after the work that was queued before; they have happened when they return.
    """

    def __init__(self, layers: Sequence[tuple[str, torch.Tensor]], blocks: int, limit: int) -> None:
        self._tensors = [grouped(name, tensor, blocks) for name, tensor in layers]
        size = sum(tensor[0].nbytes for tensor in self._tensors)
        self._count: int = min(blocks, limit // size)
        if self._count == 0:
            raise Incompatible(f"staging_bytes is {limit}, but a block has {size} bytes")
        self._slots = Slots(self._count)
        pin = any(tensor.device.type == "cuda" for tensor in self._tensors)
        self._host = [
            torch.empty((self._count, *t.shape[1:]), dtype=t.dtype, pin_memory=pin)
            for t in self._tensors
        ]
        self.geometry = tuple(
            LayerGeometry.of(
                name, host.data_ptr(), host.shape, [s * host.element_size() for s in host.stride()],
                host.element_size(), self._count,
            )
            for (name, _), host in zip(layers, self._host, strict=True)
        )  # fmt: skip

    @property
    def memory(self) -> list[Any]:
        """To register; lives as long as this."""
        return [(host.data_ptr(), host.nbytes) for host in self._host]

    @property
    def blocks(self) -> int:
        """How many there are."""
        return self._count

    def take(self, count: int) -> list[int] | None:
        """Staged blocks, or None while too few are free. Decode's; prefill's scheduler counts its
        own."""
        return self._slots.take(count)

    def give(self, blocks: Sequence[int]) -> None:
        """Back."""
        self._slots.give(blocks)

    def save(self, blocks: Sequence[int], staged: Sequence[int]) -> None:
        """Cache -> host."""
        for tensor, host in zip(self._tensors, self._host, strict=True):
            host[list(staged)] = tensor[torch.tensor(blocks, device=tensor.device)].to("cpu")

    def restore(self, staged: Sequence[int], blocks: Sequence[int]) -> None:
        """Host -> cache."""
        for tensor, host in zip(self._tensors, self._host, strict=True):
            tensor[torch.tensor(blocks, device=tensor.device)] = host[list(staged)].to(
                tensor.device
            )


def grouped(name: str, tensor: torch.Tensor, blocks: int) -> torch.Tensor:
    """The tensor with vLLM's blocks as its first dimension (kernels may split them)."""
    if not tensor.dim() or tensor.shape[0] % blocks:
        raise Incompatible(f"{name}: shape {tuple(tensor.shape)} doesn't hold {blocks} blocks")
    return tensor if tensor.shape[0] == blocks else tensor.unflatten(0, (blocks, -1))
