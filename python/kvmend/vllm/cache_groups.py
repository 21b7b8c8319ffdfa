"""vLLM's KV cache groups as ours. Imports vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    RSWASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from .groups import FULL, STATE, WINDOW, Group

__all__ = ["groups_of", "layer_groups"]


def groups_of(config: Any) -> tuple[Group, ...]:
    """The groups of a KVCacheConfig that are moved. Raises ValueError for a kind that can't be."""
    if any(group.host_resident for group in config.transfer_groups):
        raise ValueError("KvmendConnector can't move a KV cache that is in a pool of host memory")
    return tuple(group_of(group.kv_cache_spec) for group in config.transfer_groups)


def group_of(spec: Any) -> Group:
    tokens = spec.block_size
    if isinstance(spec, UniformTypeKVCacheSpecs):  # of no layer: in a stage that has none of them
        return group_of(spec.first_spec) if spec.kv_cache_specs else Group(tokens, FULL)
    if isinstance(spec, MambaSpec):
        if spec.num_speculative_blocks:
            raise ValueError("KvmendConnector doesn't move states with speculative blocks")
        return Group(tokens, STATE)
    if isinstance(spec, SlidingWindowSpec):
        return Group(tokens, WINDOW, spec.sliding_window)
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return Group(tokens, WINDOW, spec.attention_chunk_size)
    if isinstance(spec, FullAttentionSpec) and not isinstance(spec, RSWASpec):
        return Group(tokens, FULL)
    raise ValueError(f"KvmendConnector can't move a KV cache of {type(spec).__name__}")


def layer_groups(config: Any) -> Mapping[str, int]:
    """The number of each layer's group, among those that are moved."""
    found: Mapping[str, int] = config.transfer_group_index_by_layer
    return found
