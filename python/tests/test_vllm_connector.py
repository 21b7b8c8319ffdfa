"""The connector's own classes with the real vLLM and torch, made by vLLM's factory.

Runs where vLLM is installed: `./dev vllm` does it. What needs neither is in test_vllm_sides.py.
"""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from kvmend.testing.peer import wait_until
from kvmend.vllm.cache_groups import groups_of
from kvmend.vllm.geometry import Incompatible
from kvmend.vllm.groups import FULL, STATE, WINDOW, Group, moves
from kvmend.vllm.scheduler_side import shorten
from kvmend.vllm.staging import TorchStaging
from kvmend.vllm.tensors import caches_of
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    supports_hma,
)
from vllm.sampling_params import SamplingParams
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request as VllmRequest
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
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        cache_config=SimpleNamespace(cache_dtype="auto"),
        model_config=SimpleNamespace(
            get_head_size=lambda: CONTENT // 2, get_total_num_kv_heads=lambda: HEADS, use_mla=False
        ),
    )


LAYERS = [f"model.layers.{i}.attn" for i in range(2)]


def spec(kind: Any = FullAttentionSpec, **more: Any) -> Any:
    return kind(block_size=TOKENS, num_kv_heads=HEADS, head_size=CONTENT // 2,
                dtype=torch.float32, **more)  # fmt: skip


WINDOW_SPEC = spec(SlidingWindowSpec, sliding_window=TOKENS)


def cache(*groups: tuple[list[str], Any]) -> KVCacheConfig:
    return KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(names, spec) for names, spec in groups])


ONE = cache((LAYERS, spec()))
TWO = cache((LAYERS[:1], spec()), (LAYERS[1:], WINDOW_SPEC))


class Instance:
    """A scheduler's and a worker's connector, and the step in which vLLM uses them."""

    def __init__(self, role: str, seed: int, cache: KVCacheConfig = ONE, **extra: Any) -> None:
        self.config = config(role, **extra)
        make = KVConnectorFactory.create_connector
        self.scheduler = make(self.config, KVConnectorRole.SCHEDULER, cache)
        self.worker = make(self.config, KVConnectorRole.WORKER, cache)
        random = torch.Generator().manual_seed(seed)
        self.pools = [torch.randn(BLOCKS, HEADS, TOKENS, CONTENT, generator=random)
                      for _ in cache.kv_cache_groups[0].layer_names]  # fmt: skip
        self.caches = {  # layers of different groups share memory, as in vLLM
            name: pool
            for group in cache.kv_cache_groups
            for name, pool in zip(group.layer_names, self.pools, strict=True)
        }
        self.worker.register_kv_caches(self.caches)
        self.pool = BlockPool(BLOCKS, enable_caching=True, hash_block_size=TOKENS)
        blocks = SimpleNamespace(block_pool=self.pool)
        self.scheduler.bind_kv_cache_manager(blocks)
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
        out.kv_connector_worker_meta = pickle.loads(
            pickle.dumps(worker.build_connector_worker_meta())
        )
        out.finished_recving = results.finished_recving
        out.failed_recving = results.failed_recving
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
            num_prompt_tokens=len(PROMPT), num_computed_tokens=0, status=status,
            lora_request=None, mm_features=[], _all_token_ids=list(PROMPT), max_tokens=1,
        )  # fmt: skip

    def prefill(self, *blocks: list[int]) -> dict[str, Any]:
        request = self.request("p", {"do_remote_decode": True}, RequestStatus.WAITING)
        self.scheduler.on_new_request(request)
        request.num_computed_tokens = request.num_prompt_tokens
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
        used = [self.pool.blocks[number] for group in blocks for number in group if number]
        self.pool.touch(used)  # as the request's
        keep, params = self.scheduler.request_finished_all_groups(request, blocks)
        assert params and not keep
        self.pool.free_blocks(used)  # vLLM has nothing more to do for it
        assert self.held == len(used)
        return params

    @property
    def held(self) -> int:
        return BLOCKS - 1 - self.pool.get_num_free_blocks()

    def decode(self, params: dict[str, Any], *blocks: list[int]) -> None:
        request = self.request("d", dict(params), RequestStatus.WAITING)
        tokens = params["kvmend"]["tokens"]
        assert self.scheduler.get_num_new_matched_tokens(request, 0) == (tokens, True)
        groups = tuple(range(len(blocks)))
        assert self.scheduler.get_loaded_kv_cache_group_ids(request) == groups
        allocated = SimpleNamespace(get_block_ids=lambda: blocks)
        self.scheduler.update_state_after_alloc(request, allocated, tokens)
        assert self.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Instance]]:
    """Makes instances; vLLM's distributed state isn't there."""
    import vllm.distributed.parallel_state as parallel

    import kvmend.vllm.connector as connector

    monkeypatch.setattr(parallel, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(parallel, "get_pp_group", lambda: SimpleNamespace(rank_in_group=0))
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
def test_two_groups_that_share_memory_go_from_prefill_to_decode(
    instance: Callable[..., Instance], staging: str
) -> None:
    p = instance("kv_both", 1, TWO, staging=staging)
    d = instance("kv_both", 2, TWO, staging=staging)
    d.decode(p.prefill([7, 2, 5], [0, 3, 8]), [1, 9, 4], [0, 6, 2])
    received = set()

    def both() -> bool:
        p.step()
        out = d.step()
        received.update(out.finished_recving or ())
        assert not out.invalid_block_ids and not out.failed_recving
        return received == {"d"} and p.held == 0

    wait_until(both)
    assert torch.equal(d.pools[0][[1, 9, 4, 6, 2]], p.pools[0][[7, 2, 5, 3, 8]])
    assert not torch.equal(d.pools[0][3], p.pools[0][3])


def test_a_lease_of_two_groups_that_is_over_becomes_a_request_that_failed(
    instance: Callable[..., Instance],
) -> None:
    """vLLM ends its engine if blocks are named then."""
    p = instance("kv_producer", 1, TWO, lease_seconds=0.001)
    d = instance("kv_consumer", 2, TWO)
    params = p.prefill([7, 2, 5], [0, 3, 8])
    wait_until(lambda: p.step() and p.held == 0)
    d.decode(params, [1, 9, 4], [0, 6, 2])
    outs = []

    def received() -> bool:
        outs.append(d.step())
        return bool(outs[-1].finished_recving)

    wait_until(received)
    assert outs[-1].failed_recving == outs[-1].finished_recving == {"d"}
    assert not any(out.invalid_block_ids for out in outs)


@pytest.mark.parametrize("staging", ["auto", "always"])
def test_a_request_goes_from_prefill_to_decode(
    instance: Callable[..., Instance], staging: str
) -> None:
    p = instance("kv_producer", 1, staging=staging)
    d = instance("kv_consumer", 2, staging=staging)
    d.decode(p.prefill([7, 2, 5]), [1, 9, 4])
    received = set()

    def both() -> bool:
        p.step()
        out = d.step()
        received.update(out.finished_recving or ())
        assert not out.invalid_block_ids
        return received == {"d"} and p.held == 0

    wait_until(both)
    for name, cache in d.caches.items():
        assert torch.equal(cache[[1, 9, 4]], p.caches[name][[7, 2, 5]])
        assert not torch.equal(cache[3], p.caches[name][3])
    assert d.counts.reduce()["loads"] == 1 and p.counts.reduce()["leases_done"] == 1


def test_a_lease_that_is_over_becomes_blocks_that_failed(
    instance: Callable[..., Instance],
) -> None:
    p, d = instance("kv_producer", 1, lease_seconds=0.001), instance("kv_consumer", 2)
    params = p.prefill([7, 2, 5])
    wait_until(lambda: p.step() and p.held == 0)
    d.decode(params, [1, 9, 4])
    failed: set[int] = set()

    def received() -> bool:
        out = d.step()
        failed.update(out.invalid_block_ids)
        return bool(out.finished_recving)

    wait_until(received)
    assert failed == {1, 9, 4} and d.counts.reduce()["loads_refused"] == 1


def test_the_class_is_complete_and_refuses_what_it_cannot_do() -> None:
    connector = KVConnectorFactory.get_connector_class(config("kv_both").kv_transfer_config)
    assert issubclass(connector, KVConnectorBase_V1) and not connector.__abstractmethods__
    assert connector.get_required_kvcache_layout(config("kv_both")) == "LBHNC"
    assert supports_hma(connector)
    wrong = config("kv_both")
    wrong.parallel_config.decode_context_parallel_size = 2
    with pytest.raises(ValueError, match="decode_context_parallel_size > 1"):
        connector(wrong, KVConnectorRole.SCHEDULER, ONE)
    with pytest.raises(ValueError, match="there is no 'lease'"):
        connector(config("kv_both", lease=1), KVConnectorRole.SCHEDULER, ONE)
    mamba = cache((LAYERS, MambaSpec(block_size=64, shapes=((2, 3),), dtypes=(torch.float32,))))
    with pytest.raises(ValueError, match="this model has Mamba layers"):
        connector(config("kv_both"), KVConnectorRole.SCHEDULER, mamba)
    connector(config("kv_both", states=True), KVConnectorRole.SCHEDULER, mamba)
    with pytest.raises(ValueError, match="can't move a KV cache of CrossAttentionSpec"):
        connector(config("kv_both"), KVConnectorRole.SCHEDULER,
                  cache((LAYERS, spec(CrossAttentionSpec))))  # fmt: skip


def test_every_method_of_the_base_class_is_accounted_for() -> None:
    """docs/integrations-vllm.md names those that are inherited; a new vLLM may have more."""
    connector = KVConnectorFactory.get_connector_class(config("kv_both").kv_transfer_config)
    page = Path(__file__).parents[2] / "docs/integrations-vllm.md"
    documented = page.read_text()
    base = {
        name
        for name, value in vars(KVConnectorBase_V1).items()
        if not name.startswith("_") and (callable(value) or not isinstance(value, str))
    }
    inherited = {name for name in base if name not in vars(connector)}
    missing = sorted(name for name in inherited if f"`{name}`" not in documented)
    assert not missing


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


@pytest.mark.parametrize(
    "look_back", [spec(SlidingWindowSpec, sliding_window=20), WINDOW_SPEC,
                  spec(ChunkedLocalAttentionSpec, attention_chunk_size=32)]
)  # fmt: skip
def test_prefill_has_every_block_that_decode_needs_whatever_the_length(look_back: Any) -> None:
    """Of vLLM's own managers of blocks, at every place of a window's beginning in its block."""
    config_of = cache((LAYERS[:1], spec()), (LAYERS[1:], look_back))
    groups = groups_of(config_of)

    def manager() -> KVCacheManager:
        return KVCacheManager(config_of, 1024, TOKENS, TOKENS, enable_caching=False)

    def request(tokens: int) -> VllmRequest:
        return VllmRequest("r", list(range(tokens)), SamplingParams(max_tokens=4), None)

    for tokens in range(2, 4 * TOKENS + 2):  # as many as BLOCKS allow
        prefill, decode = manager(), manager()
        short = request(tokens)
        shorten(short, {})
        assert short.num_tokens == tokens - 1 and short.max_tokens == 1
        assert prefill.allocate_slots(short, tokens - 1)
        prefill.remove_skipped_blocks("r", tokens - 1)
        lists = prefill.get_block_ids_for_computed_tokens("r", tokens - 1)
        offered = [g.held(ids, tokens - 1) for g, ids in zip(groups, lists, strict=True)]
        whole = request(tokens)
        assert decode.allocate_slots(
            whole, 0, num_external_computed_tokens=tokens - 1, delay_cache_blocks=True
        )
        ours = decode.get_block_ids("r")
        for group, held, ids in zip(groups, offered, ours, strict=True):
            move = moves(group, held, ids, 0, tokens - 1)
            assert move and len(move.here) == sum(block != 0 for block in ids), (tokens, group)
        whole.num_computed_tokens = tokens - 1
        assert decode.allocate_slots(whole, 1)  # and nothing more of it is asked for
        after = decode.get_block_ids("r")
        assert all(set(new[: len(old)]) <= {0, *old} for old, new in zip(ours, after, strict=True))


def test_groups_are_of_the_kind_that_vllm_says() -> None:
    mamba = MambaSpec(block_size=64, shapes=((2, 3),), dtypes=(torch.float32,))
    config = cache(
        ([], spec()), ([], spec(SlidingWindowSpec, sliding_window=40)),
        ([], spec(ChunkedLocalAttentionSpec, attention_chunk_size=48)), ([], mamba),
    )  # fmt: skip
    assert groups_of(config) == (
        Group(TOKENS, FULL), Group(TOKENS, WINDOW, 40), Group(TOKENS, WINDOW, 48), Group(64, STATE),
    )  # fmt: skip


# ----------------------------------------------------------------------------------------- tensors


def test_layers_of_one_storage_are_registered_once() -> None:
    pool = torch.zeros(BLOCKS, 2, HEADS, TOKENS, CONTENT)
    tensors = {"shares a": pool[:, 0], "a": pool[:, 0], "b": pool[:, 1]}
    caches, layers = caches_of(tensors, {"a": 0, "b": 0}, BLOCKS)
    assert caches.memory == [(pool.data_ptr(), pool.nbytes)] and caches.staging is None
    assert [layer.name for layer in layers] == ["a", "b"]
    assert layers[1].address == pool.data_ptr() + pool[0, 0].nbytes
    assert layers[0].block_stride == pool[0].nbytes


def test_a_layer_counts_once_in_each_group_and_one_of_none_is_refused() -> None:
    one, two = torch.zeros(BLOCKS, 2), torch.zeros(BLOCKS, 2)
    tensors = {"a": one, "b": one, "shares a": one, "c": two}
    _, layers = caches_of(tensors, {"a": 0, "b": 1, "c": 1}, BLOCKS)
    assert [(layer.name, layer.group) for layer in layers] == [("a", 0), ("b", 1), ("c", 1)]
    with pytest.raises(Incompatible, match="c is in no KV cache group"):
        caches_of(tensors, {"a": 0, "b": 1}, BLOCKS)


def test_a_state_has_parts_that_nobody_divides() -> None:
    page = torch.zeros(BLOCKS, 100)
    state = [page[:, :24].unflatten(1, (2, 3, 4)), page[:, 24:64].unflatten(1, (4, 10))]
    caches, layers = caches_of({"m": state}, {"m": 0}, BLOCKS)
    assert [layer.name for layer in layers] == ["m#0", "m#1"]
    assert [layer.block_bytes for layer in layers] == [96, 160]
    assert {(layer.heads, layer.block_stride) for layer in layers} == {(1, 400)}
    assert caches.memory == [(page.data_ptr(), page.nbytes)]


def test_blocks_that_vllm_split_for_its_kernels_stay_whole() -> None:
    cache = torch.zeros(BLOCKS * 2, HEADS, TOKENS // 2, CONTENT)
    for staging in ("auto", "always"):
        _, (layer,) = caches_of({"a": cache}, {"a": 0}, BLOCKS, staging=staging)
        assert layer.block_bytes == layer.extent == cache[:2].nbytes
        assert layer.block_stride == cache[0].nbytes * 2


def test_staging_is_as_large_as_it_may_be_and_shared_by_those_who_use_it() -> None:
    cache = torch.zeros(BLOCKS, HEADS, TOKENS, CONTENT)
    block = cache[0].nbytes

    def staged(limit: int, **uses: bool) -> TorchStaging:
        found = caches_of({"a": cache}, {"a": 0}, BLOCKS, staging="always", limit=limit, **uses)
        assert isinstance(found[0].staging, TorchStaging)
        return found[0].staging

    for limit, serves, loads, lent, own in (
        (4 * block + 1, True, False, 4, 0),
        (4 * block + 1, False, True, 0, 4),
        (4 * block + 1, True, True, 2, 2),
        (1 << 30, True, True, BLOCKS, BLOCKS),
    ):
        found = staged(limit, serves=serves, loads=loads)
        assert (found.lent, found.blocks) == (lent, own)
        assert found.take(own + 1) is None
        assert found.take(own) == list(range(lent, lent + own))
    with pytest.raises(Incompatible, match="staging_bytes is 100"):
        staged(100)


@pytest.mark.parametrize("bounce_bytes", [0, 1, 3 * 2 * HEADS * TOKENS * CONTENT * 4, 1 << 20])
@pytest.mark.parametrize("packed", [True, False])
def test_staged_blocks_hold_what_the_cache_holds_and_go_back(
    bounce_bytes: int, packed: bool
) -> None:
    """With and without the buffer that blocks are gathered in on a device."""
    if packed:  # layers inside a block
        pool = torch.randn(BLOCKS, 2, HEADS, TOKENS, CONTENT)
        layers = [pool[:, 0], pool[:, 1]]
    else:
        layers = [torch.randn(BLOCKS, HEADS, TOKENS, CONTENT) for _ in range(2)]
    before = [layer.clone() for layer in layers]
    _, geometry = caches_of({str(i): layer for i, layer in enumerate(layers)},
                            {"0": 0, "1": 0}, BLOCKS)  # fmt: skip
    distinct = [pool] if packed else layers
    staging = TorchStaging(distinct, geometry, BLOCKS, 1 << 30, bounce_bytes=bounce_bytes)
    blocks, rows = [7, 2, 5, 0, 9], [1, 2, 3, 8, 4]
    staging.save(blocks, rows)
    for where, layer in zip(staging.geometry, before, strict=True):
        for block, row in zip(blocks, rows, strict=True):
            start = where.address + row * where.block_stride
            held = (ctypes.c_char * layer[0].nbytes).from_address(start).raw
            assert held == layer[block].numpy().tobytes()
    for layer in layers:
        layer.zero_()
    staging.restore(rows, [3, 4, 5, 6, 8])
    for layer, old in zip(layers, before, strict=True):
        assert torch.equal(layer[[3, 4, 5, 6, 8]], old[blocks]) and not layer[[0, 1, 2, 7, 9]].any()
