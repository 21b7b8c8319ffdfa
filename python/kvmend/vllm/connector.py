"""KvmendConnector: vLLM's interface to the two sides. Imports vLLM; has no logic of its own."""

from __future__ import annotations

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
)

from .metrics import KvmendMetrics, KvmendStats
from .orders import Step, WorkerAddress
from .peers import Identity
from .scheduler_side import SchedulerSide
from .settings import Settings
from .tensors import caches_of
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


class KvmendConnector(KVConnectorBase_V1):
    """docs/integrations-vllm.md says how to use it and what its extra config may hold."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._settings = Settings.of(self._kv_transfer_config.kv_connector_extra_config or {})
        parallel = vllm_config.parallel_config
        for name in (
            "pipeline_parallel_size",
            "prefill_context_parallel_size",
            "decode_context_parallel_size",
        ):
            if getattr(parallel, name, 1) > 1:
                raise ValueError(f"KvmendConnector doesn't support {name} > 1")
        if (groups := len(kv_cache_config.kv_cache_groups)) > 1:
            raise ValueError(
                f"KvmendConnector moves one KV cache group, and this model has {groups}: start vLLM "
                "with --disable-hybrid-kv-cache-manager (sliding-window layers then cache every "
                "token); models with state layers (Mamba) can't be served"
            )
        self._tp_size: int = parallel.tensor_parallel_size
        self._block_tokens: int = vllm_config.cache_config.block_size
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerSide(self._settings, self._block_tokens)

    # ------------------------------------------------------------------------------- scheduler side

    @property
    def _plan(self) -> SchedulerSide:
        assert self._scheduler is not None, "a method of the scheduler side, called in a worker"
        return self._scheduler

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        self._plan.workers({rank: handshake.worker for rank, handshake in metadata.items()})

    def on_new_request(self, request: Any) -> None:
        self._plan.arrived(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return self._plan.matched_tokens(request, num_computed_tokens)

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        return (0,)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._plan.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KvmendMetadata:
        return KvmendMetadata(self._plan.step())

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self._plan.finished(request, block_ids)

    def update_connector_output(self, connector_output: Any) -> None:
        self._plan.sent(connector_output.finished_sending or ())

    # ---------------------------------------------------------------------------------- worker side

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

        settings, model = self._settings, self._vllm_config.model_config
        caches, layers = caches_of(
            kv_caches, self._kv_cache_config.num_blocks, settings.staging, settings.staging_bytes
        )
        config = self._kv_transfer_config
        if caches.staging and config.is_kv_producer and config.is_kv_consumer:
            raise ValueError("KvmendConnector: kv_both isn't supported with staged caches")
        backends = get_current_attn_backends(self._vllm_config)
        traits = {
            "vLLM's version": vllm_version,
            "the cache's dtype": "/".join(sorted({str(t.dtype) for t in kv_caches.values()})),
            "--kv-cache-dtype": str(self._vllm_config.cache_config.cache_dtype),
            "the attention backend": "/".join(sorted({b.get_name() for b in backends})),
            "the head size": str(model.get_head_size()),
        }
        us = Identity(
            get_tensor_model_parallel_rank(), self._tp_size, model.get_total_num_kv_heads(),
            self._block_tokens, traits, layers,
        )  # fmt: skip
        serves = self._kv_transfer_config.is_kv_producer
        self._worker = WorkerSide(settings, us, caches, serves=serves)

    @property
    def _work(self) -> WorkerSide:
        assert self._worker is not None, "a method of the worker side, before register_kv_caches"
        return self._worker

    def get_handshake_metadata(self) -> KvmendHandshake | None:
        return KvmendHandshake(self._worker.address) if self._worker else None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._work.start_loads(self._orders)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: a request isn't scheduled before all its layers are there."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing: decode reads the blocks once the request has finished."""

    def wait_for_save(self) -> None:
        self._work.begin_leases(self._orders)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        sent, received = self._work.finished(finished_req_ids)
        return sent or None, received or None

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
