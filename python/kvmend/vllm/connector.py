"""KvmendConnector: vLLM's interface to the two sides. Imports vLLM; has no logic of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm import __version__ as vllm_version
from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from .cache_groups import groups_of, layer_groups
from .groups import STATE
from .metrics import KvmendMetrics, KvmendStats
from .orders import Step, WorkerAddress
from .parallel import Place
from .peers import Identity
from .scheduler_side import SchedulerSide
from .settings import Settings
from .tensors import caches_of, dtypes_of
from .worker_side import WorkerSide

__all__ = ["KvmendConnector"]


@dataclass
class KvmendMetadata(KVConnectorMetadata):
    """Scheduler to workers, once a step."""

    step: Step = field(default_factory=Step)


@dataclass
class KvmendHandshake(KVConnectorHandshakeMetadata):
    """A worker to its scheduler, once."""

    worker: WorkerAddress


@dataclass
class KvmendEndedLeases(KVConnectorWorkerMetadata):
    """Workers to scheduler: slots of leases, and how many workers have ended them in this step."""

    slots: Counter[int]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KvmendEndedLeases:
        assert isinstance(other, KvmendEndedLeases)
        return KvmendEndedLeases(self.slots + other.slots)


class HeldBlocks:
    """Blocks of vLLM's pool, held by counting as one more user of them."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def hold(self, blocks: Sequence[int]) -> None:
        self._pool.touch([self._pool.blocks[number] for number in blocks])

    def free(self, blocks: Sequence[int]) -> None:
        self._pool.free_blocks([self._pool.blocks[number] for number in reversed(blocks)])


class KvmendConnector(KVConnectorBase_V1, SupportsHMA):
    """docs/integrations-vllm.md says how to use it and what its extra config may hold.

    The same page says which methods of the base class are inherited, and why.
    """

    _cache_hit_source = CacheHitSource.P2P  # of vLLM's metrics

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._settings = Settings.of(self._kv_transfer_config.kv_connector_extra_config or {})
        parallel = vllm_config.parallel_config
        for name in ("prefill_context_parallel_size", "decode_context_parallel_size"):
            if getattr(parallel, name, 1) > 1:
                raise ValueError(f"KvmendConnector doesn't support {name} > 1")
        self._groups = groups_of(kv_cache_config)
        if any(group.kind == STATE for group in self._groups) and not self._settings.states:
            raise ValueError(
                "KvmendConnector: this model has Mamba layers; moving their states is untested. "
                'Set "states": true to do it, and compare its answers first'
            )
        self._transfer_ids: tuple[int, ...] = kv_cache_config.transfer_group_ids
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._ended_leases: Counter[int] = Counter()
        if role == KVConnectorRole.SCHEDULER:
            serves = self._kv_transfer_config.is_kv_producer
            self._scheduler = SchedulerSide(self._settings, self._groups, serves=serves)

    # ------------------------------------------------------------------------------- scheduler side

    def _ours(self, block_ids: Sequence[list[int]]) -> tuple[list[int], ...]:
        """Without the groups that vLLM builds anew after a load."""
        return tuple(block_ids[group] for group in self._transfer_ids)

    @property
    def _plan(self) -> SchedulerSide:
        assert self._scheduler is not None, "a method of the scheduler side, called in a worker"
        return self._scheduler

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        self.set_xfer_handshake_metadata_pp_aware({(0, k): v for k, v in metadata.items()})

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        self._plan.workers({rank: handshake.worker for rank, handshake in metadata.items()})

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self._plan.bind(HeldBlocks(gpu_block_pool))

    def on_new_request(self, request: Any) -> None:
        self._plan.arrived(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return self._plan.matched_tokens(request, num_computed_tokens)

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        """All: the request's own blocks are read, not what a hash stands for."""
        return self._transfer_ids

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._plan.allocated(request, self._ours(blocks.get_block_ids()), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KvmendMetadata:
        return KvmendMetadata(self._plan.step())

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """vLLM asks `request_finished_all_groups`; other callers may have a group only."""
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return False, self._plan.finished(request, self._ours(block_ids))

    def reset_cache(self) -> bool:
        """There is none: prefill's blocks are vLLM's, and what is leased stays until it is over."""
        return True

    def update_connector_output(self, connector_output: Any) -> None:
        found = connector_output.kv_connector_worker_meta
        if isinstance(found, KvmendEndedLeases):
            self._plan.ended(found.slots)

    # ---------------------------------------------------------------------------------- worker side

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        from vllm.distributed.parallel_state import get_pp_group, get_tensor_model_parallel_rank

        settings, model = self._settings, self._vllm_config.model_config
        config, parallel = self._kv_transfer_config, self._vllm_config.parallel_config
        caches, layers = caches_of(
            kv_caches, layer_groups(self._kv_cache_config), self._kv_cache_config.num_blocks,
            staging=settings.staging, limit=settings.staging_bytes,
            serves=config.is_kv_producer, loads=config.is_kv_consumer,
        )  # fmt: skip
        backends = get_current_attn_backends(self._vllm_config)
        traits = {
            "vLLM's version": vllm_version,
            "the cache's dtype": dtypes_of(kv_caches),
            "--kv-cache-dtype": str(self._vllm_config.cache_config.cache_dtype),
            "the attention backend": "/".join(sorted({b.get_name() for b in backends})),
            "the head size": str(model.get_head_size()),
        }
        place = Place(
            get_tensor_model_parallel_rank(), parallel.tensor_parallel_size,
            get_pp_group().rank_in_group, parallel.pipeline_parallel_size,
        )  # fmt: skip
        us = Identity(place, model.get_total_num_kv_heads(), self._groups, traits, layers)
        self._worker = WorkerSide(settings, us, caches, serves=config.is_kv_producer)

    @property
    def _work(self) -> WorkerSide:
        assert self._worker is not None, "a method of the worker side, before register_kv_caches"
        return self._worker

    def get_handshake_metadata(self) -> KvmendHandshake | None:
        return KvmendHandshake(self._worker.address) if self._worker else None

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Before the forward pass, where `start_load_kv` comes after it."""
        super().bind_connector_metadata(connector_metadata)
        self._work.begin(self._orders)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Nothing: see `bind_connector_metadata`."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: a request isn't scheduled before all its layers are there."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing: decode reads the blocks once the request has finished."""

    def wait_for_save(self) -> None:
        """Nothing: a finished request's blocks were written in earlier steps."""

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        ended = self._work.finished(finished_req_ids)
        self._ended_leases.update(ended.leases)
        return KVConnectorTransferResults(set(), ended.received, ended.failed)

    def build_connector_worker_meta(self) -> KvmendEndedLeases | None:
        found, self._ended_leases = self._ended_leases, Counter()
        return KvmendEndedLeases(found) if found else None

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """vLLM asks `get_transfer_results`; this can't say which requests have failed."""
        found = self.get_transfer_results(finished_req_ids)
        if found.failed_recving:
            raise RuntimeError(f"loads of {sorted(found.failed_recving)} have failed")
        return found.finished_sending or None, found.finished_recving or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._work.take_failed_blocks()

    def get_kv_connector_stats(self) -> KvmendStats | None:
        counts = self._worker.take_counts() if self._worker else None
        return KvmendStats(data=counts) if counts else None

    def shutdown(self) -> None:
        if self._worker:
            self._worker.shutdown()

    @property
    def _orders(self) -> Step:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, KvmendMetadata)
        return metadata.step

    # ------------------------------------------------------------------------------- class methods

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """Heads before tokens, so that the heads of a rank are one run of a block's bytes."""
        model = vllm_config.model_config
        return None if model is None or model.use_mla else "LBHNC"

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvmendStats:
        return KvmendStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> KvmendMetrics:
        return KvmendMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
