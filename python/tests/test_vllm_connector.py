"""The connector's own classes with the real vLLM and torch, made by vLLM's factory.

Runs where vLLM is installed: `./dev vllm` does it. What needs neither is in test_vllm_sides.py.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from kvmend.testing.peer import wait_until
from kvmend.vllm.geometry import Incompatible
from kvmend.vllm.tensors import caches_of
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus

BLOCKS, HEADS, TOKENS, CONTENT = 10, 3, 16, 8
PROMPT = list(range(40))  # three blocks


def config(role: str, **extra: Any) -> Any:
    """As much of a VllmConfig as the connector and the factory touch."""
    return SimpleNamespace(
        kv_transfer_config=KVTransferConfig(
            kv_connector="KvmendConnector",
            kv_connector_module_path="kvmend.vllm",
            kv_role=role,
            kv_connector_extra_config=extra,
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=True),
        cache_config=SimpleNamespace(block_size=TOKENS, cache_dtype="auto"),
        model_config=SimpleNamespace(
            get_head_size=lambda: CONTENT // 2, get_total_num_kv_heads=lambda: HEADS, use_mla=False
        ),
    )


CACHE = SimpleNamespace(num_blocks=BLOCKS, kv_cache_groups=[SimpleNamespace()])


class Instance:
    """A scheduler's and a worker's connector, and the step in which vLLM uses them."""

    def __init__(self, role: str, seed: int, **extra: Any) -> None:
        self.config = config(role, **extra)
        make = KVConnectorFactory.create_connector
        self.scheduler = make(self.config, KVConnectorRole.SCHEDULER, CACHE)
        self.worker = make(self.config, KVConnectorRole.WORKER, CACHE)
        random = torch.Generator().manual_seed(seed)
        self.caches = {
            f"model.layers.{i}.attn": torch.randn(BLOCKS, HEADS, TOKENS, CONTENT, generator=random)
            for i in range(2)
        }
        self.worker.register_kv_caches(self.caches)
        handshake = pickle.loads(pickle.dumps(self.worker.get_handshake_metadata()))
        self.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): handshake})
        self.counts = self.scheduler.build_kv_connector_stats()
        self.counts.reset()

    def step(self, finished: set[str] | None = None) -> KVConnectorOutput:
        """As vLLM's model runner does it."""
        metadata = self.scheduler.build_connector_meta(SchedulerOutput.make_empty())
        worker, out = self.worker, KVConnectorOutput()
        worker.bind_connector_metadata(pickle.loads(pickle.dumps(metadata)))
        worker.start_load_kv(None)
        for name, cache in self.caches.items():
            worker.wait_for_layer_load(name)
            worker.save_kv_layer(name, cache, None)
        worker.wait_for_save()
        results = worker.get_transfer_results(finished or set())
        out.finished_sending = results.finished_sending
        out.finished_recving = results.finished_recving
        out.invalid_block_ids = worker.get_block_ids_with_load_errors()
        if stats := worker.get_kv_connector_stats():
            sent = self.scheduler.build_kv_connector_stats(
                pickle.loads(pickle.dumps(stats.to_dict()))
            )
            self.counts = self.counts.aggregate(sent)
        worker.clear_connector_metadata()
        self.scheduler.update_connector_output(out)
        return out

    def request(self, name: str, params: dict[str, Any], status: RequestStatus) -> Any:
        return SimpleNamespace(
            request_id=name, kv_transfer_params=params, prompt_token_ids=list(PROMPT),
            num_prompt_tokens=len(PROMPT), num_computed_tokens=len(PROMPT), status=status,
            lora_request=None, mm_features=[],
        )  # fmt: skip

    def prefill(self, blocks: list[int]) -> dict[str, Any]:
        request = self.request(
            "p", {"do_remote_decode": True}, RequestStatus.FINISHED_LENGTH_CAPPED
        )
        keep, params = self.scheduler.request_finished(request, blocks)
        assert keep and params
        return params

    def decode(self, params: dict[str, Any], blocks: list[int]) -> None:
        request = self.request("d", dict(params), RequestStatus.WAITING)
        assert self.scheduler.get_num_new_matched_tokens(request, 0) == (len(PROMPT), True)
        allocated = SimpleNamespace(get_block_ids=lambda: (blocks,))
        self.scheduler.update_state_after_alloc(request, allocated, len(PROMPT))
        assert self.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Instance]]:
    """Makes instances; vLLM's distributed state isn't there."""
    import vllm.distributed.parallel_state as parallel

    import kvmend.vllm.connector as connector

    monkeypatch.setattr(parallel, "get_tensor_model_parallel_rank", lambda: 0)
    backend = SimpleNamespace(get_name=lambda: "CPU_ATTN")
    monkeypatch.setattr(connector, "get_current_attn_backends", lambda _: [backend])
    made: list[Instance] = []

    def make(*args: Any, **more: Any) -> Instance:
        made.append(Instance(*args, **more))
        return made[-1]

    yield make
    for one in made:
        one.worker.shutdown()
        one.scheduler.shutdown()


@pytest.mark.parametrize("staging", ["auto", "always"])
def test_a_request_goes_from_prefill_to_decode(
    instance: Callable[..., Instance], staging: str
) -> None:
    p = instance("kv_producer", 1, staging=staging)
    d = instance("kv_consumer", 2, staging=staging)
    d.decode(p.prefill([7, 2, 5]), [0, 9, 4])
    received, sent = set(), set()

    def both() -> bool:
        sent.update(p.step().finished_sending or ())
        out = d.step()
        received.update(out.finished_recving or ())
        assert not out.invalid_block_ids
        return received == {"d"} and sent == {"p"}

    wait_until(both)
    for name, cache in d.caches.items():
        assert torch.equal(cache[[0, 9, 4]], p.caches[name][[7, 2, 5]])
        assert not torch.equal(cache[1], p.caches[name][1])
    assert d.counts.reduce()["loads"] == 1 and p.counts.reduce()["leases_done"] == 1


def test_a_lease_that_is_over_becomes_blocks_that_failed(
    instance: Callable[..., Instance],
) -> None:
    p, d = instance("kv_producer", 1, lease_seconds=0.001), instance("kv_consumer", 2)
    params = p.prefill([7, 2, 5])
    wait_until(lambda: p.step().finished_sending)
    d.decode(params, [0, 9, 4])
    failed: set[int] = set()

    def received() -> bool:
        out = d.step()
        failed.update(out.invalid_block_ids)
        return bool(out.finished_recving)

    wait_until(received)
    assert failed == {0, 9, 4} and d.counts.reduce()["loads_refused"] == 1


def test_the_class_is_complete_and_refuses_what_it_cannot_do() -> None:
    connector = KVConnectorFactory.get_connector_class(config("kv_both").kv_transfer_config)
    assert issubclass(connector, KVConnectorBase_V1) and not connector.__abstractmethods__
    assert connector.get_required_kvcache_layout(config("kv_both")) == "LBHNC"
    for change, message in (
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size > 1"),
        ({"decode_context_parallel_size": 2}, "decode_context_parallel_size > 1"),
    ):
        wrong = config("kv_both")
        vars(wrong.parallel_config).update(change)
        with pytest.raises(ValueError, match=message):
            connector(wrong, KVConnectorRole.SCHEDULER, CACHE)
    with pytest.raises(ValueError, match="there is no 'lease'"):
        connector(config("kv_both", lease=1), KVConnectorRole.SCHEDULER, CACHE)
    two = SimpleNamespace(num_blocks=1, kv_cache_groups=[1, 2])
    with pytest.raises(ValueError, match="disable-hybrid-kv-cache-manager"):
        connector(config("kv_both"), KVConnectorRole.SCHEDULER, two)


def test_prometheus_has_every_counter_with_vllms_labels() -> None:
    connector = KVConnectorFactory.get_connector_class(config("kv_both").kv_transfer_config)
    registry = CollectorRegistry()

    def of(kind: Any) -> Any:
        return lambda **more: kind(registry=registry, **more)

    types = {kind: of(kind) for kind in (Counter, Gauge, Histogram)}
    metrics = connector.build_prom_metrics(config("kv_both"), types, ["engine"], {0: ["0"]})
    metrics.observe({"loads": 2, "load_bytes": 4096, "load_seconds": [0.002, 0.2]})
    metrics.observe({"loads": 1})
    get = registry.get_sample_value
    assert get("vllm:kvmend_loads_total", {"engine": "0"}) == 3
    assert get("vllm:kvmend_load_bytes_total", {"engine": "0"}) == 4096
    assert get("vllm:kvmend_loads_refused_total", {"engine": "0"}) == 0
    assert get("vllm:kvmend_load_seconds_count", {"engine": "0"}) == 2


# ----------------------------------------------------------------------------------------- tensors


def test_layers_of_one_storage_are_registered_once() -> None:
    pool = torch.zeros(BLOCKS, 2, HEADS, TOKENS, CONTENT)
    caches, layers = caches_of({"a": pool[:, 0], "b": pool[:, 1], "shares a": pool[:, 0]},
                               BLOCKS, "auto", 1)  # fmt: skip
    assert caches.memory == [(pool.data_ptr(), pool.nbytes)] and caches.staging is None
    assert [layer.name for layer in layers] == ["a", "b"]
    assert layers[1].address == pool.data_ptr() + pool[0, 0].nbytes
    assert layers[0].block_stride == pool[0].nbytes


def test_blocks_that_vllm_split_for_its_kernels_stay_whole() -> None:
    cache = torch.zeros(BLOCKS * 2, HEADS, TOKENS // 2, CONTENT)
    for staging in ("auto", "always"):
        _, (layer,) = caches_of({"a": cache}, BLOCKS, staging, 1 << 20)
        assert layer.block_stride == cache[0].nbytes * 2
        assert layer.block_bytes == cache[:2].nbytes


def test_staging_is_as_large_as_it_may_be() -> None:
    cache = torch.zeros(BLOCKS, HEADS, TOKENS, CONTENT)
    block = cache[0].nbytes
    assert caches_of({"a": cache}, BLOCKS, "always", 4 * block + 1)[0].blocks == 4
    assert caches_of({"a": cache}, BLOCKS, "always", 1 << 30)[0].blocks == BLOCKS
    with pytest.raises(Incompatible, match="staging_bytes is 100"):
        caches_of({"a": cache}, BLOCKS, "always", 100)
