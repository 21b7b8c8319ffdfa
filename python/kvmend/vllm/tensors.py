"""vLLM's cache tensors as memory that an engine can register. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from .geometry import Incompatible, LayerGeometry
from .staging import TorchStaging
from .worker_side import Caches

__all__ = ["caches_of", "dtypes_of"]

#: Of a layer: its cache, or the parts of its state.
Cache: TypeAlias = "torch.Tensor | Sequence[torch.Tensor]"


@dataclass(frozen=True)
class Layer:
    """A tensor, under the name that both sides know it by."""

    name: str
    group: int
    tensor: torch.Tensor
    opaque: bool  # part of a state

    @property
    def place(self) -> tuple[int, int]:
        return self.tensor.data_ptr(), self.tensor.nbytes


def caches_of(
    caches: Mapping[str, Cache], groups: Mapping[str, int], blocks: int, *,
    staging: str = "auto", limit: int = 1 << 30, serves: bool = True, loads: bool = True,
) -> tuple[Caches, tuple[LayerGeometry, ...]]:  # fmt: skip
    """What to register, and where each layer lies in it.

    `caches`: vLLM's, by layer; `groups`: the number of a layer's KV cache group. `blocks`: of
    vLLM's block manager. `staging`, `limit`: as `Settings.staging`, `staging_bytes`. `serves`,
    `loads`: what the staged blocks are for. Raises Incompatible for caches that aren't blocks.
    """
    layers = layers_of(caches, groups)
    if not layers:
        raise Incompatible("the model has no KV cache")
    geometry = tuple(geometry_of(layer, blocks) for layer in layers)
    on_host = all(layer.tensor.device.type == "cpu" for layer in layers)
    if staging == "auto" and not on_host:
        raise Incompatible(
            "the KV cache isn't in host memory. Staging through host memory is untested on GPUs: "
            'set "staging": "always" to use it, and compare its answers first'
        )
    storages = {layer.tensor.untyped_storage().data_ptr(): layer.tensor for layer in layers}
    if staging == "auto":
        memory = [(start, t.untyped_storage().nbytes()) for start, t in storages.items()]
        return Caches(memory, blocks), geometry
    staged = TorchStaging(list(storages.values()), geometry, blocks, limit, serves, loads)
    return Caches([staged.memory], staged.count, staged), staged.geometry


def layers_of(caches: Mapping[str, Cache], groups: Mapping[str, int]) -> list[Layer]:
    """Layers that use another one's cache count once, under the first name in its group."""
    found: dict[tuple[int, tuple[int, int]], Layer] = {}
    for name, group in groups.items():
        for layer in parts_of(name, caches[name], group) if name in caches else ():
            found.setdefault((group, layer.place), layer)
    known = {layer.place for layer in found.values()}
    for name in caches:
        others = [p for p in parts_of(name, caches[name], 0) if p.place not in known]
        if name not in groups and others:
            raise Incompatible(f"{name} is in no KV cache group")
    return list(found.values())


def parts_of(name: str, cache: Cache, group: int) -> list[Layer]:
    if isinstance(cache, torch.Tensor):
        return [Layer(name, group, cache, opaque=False)]
    return [Layer(f"{name}#{i}", group, part, opaque=True) for i, part in enumerate(cache)]


def geometry_of(layer: Layer, blocks: int) -> LayerGeometry:
    tensor = layer.tensor
    return LayerGeometry.of(
        layer.name, tensor.data_ptr(), tensor.shape,
        [stride * tensor.element_size() for stride in tensor.stride()],
        tensor.element_size(), blocks, group=layer.group, opaque=layer.opaque,
    )  # fmt: skip


def dtypes_of(caches: Mapping[str, Cache]) -> str:
    """Of all caches, for comparison."""
    found = set()
    for cache in caches.values():
        parts = [cache] if isinstance(cache, torch.Tensor) else list(cache)
        found |= {str(tensor.dtype) for tensor in parts}
    return "/".join(sorted(found))
