"""What of the SGLang backend needs no SGLang: settings, layouts, refusals, the plugin.

The classes themselves run under SGLang's own by `./dev sglang`.
"""

import enum
import sys
import types
from types import SimpleNamespace

import kvmend
import kvmend.sglang
import numpy as np
import pytest
import requests
from kvmend import (
    KVManager,
    KVPoll,
    KVPool,
    KVRank,
    KVReceiver,
    KVSender,
    KVSource,
    default_options,
)
from kvmend.sglang import aux_fields, limits, plugin, routes
from kvmend.sglang.layout import layout_of
from kvmend.sglang.settings import PARK_MAX, read_settings
from kvmend.testing.ranks import RankPools

# ------------------------------------------------------------------------------------- settings


def test_unset_names_leave_kvmends_own_speed():
    settings = read_settings({})
    assert settings.engine == {"park_max": PARK_MAX, "probe": True}
    assert settings.bootstrap_timeout == settings.waiting_timeout == 300
    assert not settings.staging


def test_sglangs_names_keep_their_meaning():
    settings = read_settings(
        {
            "SGLANG_ENABLE_FAILED_SESSION_PROBE": "false",
            "SGLANG_FAILED_SESSION_PROBE_INTERVAL_S": "7",
            "SGLANG_FAILED_SESSION_PROBE_MAX_INTERVAL_S": "70",
            "SGLANG_FAILED_SESSION_IDLE_TIMEOUT_S": "900",
            "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "11",
            "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "12",
        }
    )
    assert settings.engine["probe"] is False
    assert settings.engine["probe_max"] == 7
    assert not {"probe_first", "probe_demand"} & settings.engine.keys()
    assert settings.engine["idle_timeout"] == 900
    assert (settings.bootstrap_timeout, settings.waiting_timeout) == (11, 12)


def test_the_probe_interval_is_the_largest_one():
    def longest(environ):
        return read_settings(environ).engine["probe_max"]

    prefix = "SGLANG_FAILED_SESSION_PROBE_"
    assert longest({prefix + "INTERVAL_S": "30"}) == 30
    assert longest({prefix + "MAX_INTERVAL_S": "300"}) == 300
    assert longest({prefix + "INTERVAL_S": "0.01"}) == 0.1


def test_every_engine_option_exists():
    settings = read_settings({"SGLANG_FAILED_SESSION_PROBE_INTERVAL_S": "3"})
    assert settings.engine.keys() <= default_options().keys()


@pytest.mark.parametrize(
    "environ",
    [
        {"SGLANG_FAILED_SESSION_PROBE_INTERVAL_S": "0"},
        {"SGLANG_FAILED_SESSION_PROBE_INTERVAL_S": "soon"},
        {"SGLANG_FAILED_SESSION_PROBE_INTERVAL_S": "nan"},
        {
            "SGLANG_FAILED_SESSION_PROBE_INTERVAL_S": "9",
            "SGLANG_FAILED_SESSION_PROBE_MAX_INTERVAL_S": "8",
        },
        {"SGLANG_FAILED_SESSION_IDLE_TIMEOUT_S": "-1"},
        {"SGLANG_ENABLE_FAILED_SESSION_PROBE": "perhaps"},
    ],
)
def test_a_bad_value_names_its_variable(environ):
    with pytest.raises(ValueError, match=next(iter(environ))):
        read_settings(environ)


# --------------------------------------------------------------------------------------- layout


def kv_args(**changes):
    args = SimpleNamespace(
        kv_data_ptrs=[0x1000, 0x9000, 0xF000],
        kv_data_lens=[4096, 4096, 0],  # a layer without a pool of its own
        kv_item_lens=[512, 512, 512],
        kv_layer_ids=[4, 5, 6],
        kv_cache_dtype_str="bfloat16",
        aux_data_ptrs=[0x20000, 0x21000],
        aux_data_lens=[64, 512],
        aux_item_lens=[16, 64],
        state_types=["swa", "mamba"],
        state_data_ptrs=[[0], [0x30000]],
        state_data_lens=[[0], [256]],
        state_item_lens=[[64], [64]],
        state_layer_ids=[[1], [2]],
        page_size=16,
    )
    vars(args).update(changes)
    return args


def test_pools_become_components_in_order():
    made = layout_of(kv_args(), KVRank(tp_rank=1, tp_size=2))
    kv, aux, mamba = made.layout.components
    assert (kv.pool, kv.items, kv.dtype) == (KVPool.KV, 8, "bfloat16")
    assert [b[:2] for b in kv.buffer_list] == [(0x1000, 512), (0x9000, 512)]
    assert kv.layer_ids == [4, 5]
    assert (aux.pool, aux.items) == (KVPool.AUX, 4)
    assert [b[:2] for b in aux.buffer_list] == [(0x20000, 16), (0x21000, 64)]
    assert (mamba.pool, mamba.items, mamba.layer_ids) == (KVPool.MAMBA, 4, [2])
    assert made.layout.rank.tp_rank == 1
    # Nobody says how this mamba state is divided: it moves between equal sizes only.
    assert made.layout.element_order == "opaque"
    assert "mamba" in made.opaque


def test_heads_are_no_difference_where_pages_move_whole():
    # ./dev sglang, "state and chunks": prefill's KVArgs say the heads, decode's don't count.
    args = kv_args(kv_head_num=1, total_kv_head_num=1)
    sides = [layout_of(args, KVRank(), decode=decode).layout for decode in (False, True)]
    assert [(side.kv_heads, side.element_order) for side in sides] == [(0, "opaque")] * 2
    assert sides[0].components[0].shapes == sides[1].components[0].shapes


def test_windows_of_an_mla_model_are_the_same_on_both_sides():
    args = kv_args(state_types=["swa"], state_data_ptrs=[[0x30000]], state_data_lens=[[256]],
                   state_item_lens=[[64]], kv_head_num=1)  # fmt: skip
    sides = [layout_of(args, KVRank(), decode=decode, mla=True).layout for decode in (False, True)]
    assert sides[0].components[2].pool == KVPool.SWA
    assert sides[0].components[2].shapes == sides[1].components[2].shapes
    assert sides[0].kv_heads == sides[1].kv_heads



def plain(**changes):
    """K and V of two layers, no state."""
    return kv_args(
        **{
            "kv_data_ptrs": [0x1000, 0x2000, 0x3000, 0x4000],
            "kv_data_lens": [4096] * 4,
            "kv_item_lens": [512] * 4,
            "kv_layer_ids": [],
            "prefill_start_layer": 6,
            "prefill_end_layer": 8,
            "num_draft_entries": 0,
            "state_types": [],
            **changes,
        }
    )


def test_decode_leaves_the_heads_to_prefill():
    rank = KVRank(tp_rank=1, tp_size=4)
    prefill = layout_of(plain(kv_head_num=1, total_kv_head_num=2), rank)
    assert (prefill.layout.kv_heads, prefill.layout.total_kv_heads) == (1, 2)
    decode = layout_of(plain(), rank, decode=True)
    assert (decode.layout.kv_heads, decode.layout.total_kv_heads) == (0, 0)
    for made in (prefill, decode):
        assert list(made.layout.components[0].shapes) == []
        assert (made.layout.element_order, made.opaque) == ("nhd", "")
    for made in (
        layout_of(plain(kv_head_num=1, total_kv_head_num=2), rank, hnd=True),
        layout_of(plain(swa_kv_cache_layout="hnd"), rank, decode=True),
    ):
        assert made.layout.element_order == "hnd"


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_head_num": 2, "total_kv_head_num": 2},  # each of 2 ranks would have 1
        {"kv_head_num": 3, "total_kv_head_num": 6},  # 32 bytes of a token aren't 3 heads
        {"kv_head_num": 0, "total_kv_head_num": 4},
        {},
    ],
)
def test_without_heads_tensor_ranks_divide_the_bytes_of_a_token(changes):
    made = layout_of(plain(**changes), KVRank(tp_rank=1, tp_size=2))
    (shape,) = made.layout.components[0].shapes
    assert (shape.rows, shape.columns, shape.total_columns) == (16, 32, 64)
    assert (made.layout.element_order, made.opaque, made.divided_states) == ("nhd", "", False)


def test_of_mla_all_tensor_ranks_hold_the_same():
    made = layout_of(plain(), KVRank(tp_rank=1, tp_size=2), mla=True)
    (shape,) = made.layout.components[0].shapes
    assert shape.total_columns == 0
    assert made.layout.total_kv_heads == 1


@pytest.mark.parametrize(
    ("rank", "mla", "changes", "ids"),
    [
        (KVRank(pp_rank=1, pp_size=2), False, {}, [6, 7, 6, 7]),
        (KVRank(pp_rank=1, pp_size=2), True, {"prefill_end_layer": 10}, [6, 7, 8, 9]),
        (KVRank(), False, {"prefill_start_layer": None}, [0, 1, 0, 1]),
        (KVRank(pp_rank=1, pp_size=2), False, {"kv_layer_ids": [1, 2, 1, 2]}, [1, 2, 1, 2]),
        # Four buffers of one layer each, draft layers, a start that isn't told: positions pair.
        (KVRank(pp_rank=1, pp_size=2), False, {"prefill_end_layer": 7}, []),
        (KVRank(), False, {"num_draft_entries": 2}, []),
        (KVRank(pp_rank=1, pp_size=2), False, {"prefill_start_layer": None}, []),
    ],
)
def test_stages_are_told_apart_by_layer(rank, mla, changes, ids):
    assert list(layout_of(plain(**changes), rank, mla=mla).layout.components[0].layer_ids) == ids


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kv_layout": "hnd"}, "hnd, and KVArgs don't say how many heads"),
        ({"swa_kv_cache_layout": "vectorized_5d"}, "vectorized_5d"),
        ({"page_size": 100}, "equal tokens"),
    ],
)
def test_pages_whose_inside_isnt_known_stay_whole(changes, says):
    made = layout_of(plain(**changes), KVRank(tp_rank=1, tp_size=2))
    assert says in made.opaque
    assert made.layout.element_order == "opaque"


def test_a_state_is_divided_as_sglang_says():
    args = plain(
        state_types=["mamba"],
        state_data_ptrs=[[0x30000, 0x40000, 0x50000]],
        state_data_lens=[[960, 640, 80]],
        state_item_lens=[[96, 64, 8]],
        state_layer_ids=[[0, 0, 0]],
        state_dim_per_tensor=[[8, 4, 0]],
        state_slice_outer_counts=[[3, 1, 1]],
        state_conv_shard_groups=[[[4, 4, 8], None, None]],
    )
    made = layout_of(args, KVRank(tp_rank=1, tp_size=2))
    state = made.layout.components[2]
    conv, temporal, replicated = (state.shapes[i] for i in state.shape_of)
    assert (conv.rows, conv.columns, conv.total_columns) == (3, 8, 16)
    assert list(conv.groups) == [4, 4, 8]
    assert (temporal.rows, temporal.columns, temporal.total_columns) == (1, 4, 8)
    assert replicated.total_columns == 0
    assert made.divided_states
    assert not made.opaque


def test_state_indices_follow_the_pools_that_are_there():
    made = layout_of(kv_args(), KVRank())
    assert made.state_slots == (1,)
    assert made.states(None) == []
    assert made.states([[7, 8], [3]]) == [[3]]
    assert made.states([[7, 8], None]) == [[]]
    assert made.states([[7, 8]]) == [[]]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kv_data_ptrs": [], "kv_data_lens": [], "kv_item_lens": []}, "whole pages"),
        ({"state_types": ["dsa_tail", "mamba"]}, "dsa_tail"),
        ({"state_types": ["swa", "telepathy"]}, "'telepathy'"),
    ],
)
def test_pools_that_cant_be_moved_are_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        layout_of(kv_args(**changes), KVRank())


# ----------------------------------------------------------------------- ranks of different sizes


def args_of(pools: RankPools, *, total: int, order: str, decode: bool) -> SimpleNamespace:
    """KVArgs as the scheduler of a rank fills them in: decode's have no heads."""
    layers = range(len(pools.layers))
    buffers = [pools.kv[half, at] for half in range(pools.halves) for at in layers]
    heads = {} if decode else {"kv_head_num": len(pools.heads), "total_kv_head_num": total}
    return SimpleNamespace(
        kv_data_ptrs=[one.ctypes.data for one in buffers],
        kv_data_lens=[one.nbytes for one in buffers],
        kv_item_lens=[one.nbytes // len(one) for one in buffers],
        kv_layer_ids=[],
        kv_cache_dtype_str="uint8",
        swa_kv_cache_layout=order,
        aux_data_ptrs=[pools.aux.ctypes.data],
        aux_data_lens=[pools.aux.nbytes],
        aux_item_lens=[32],
        state_types=[],
        page_size=pools.page_tokens,
        **heads,
    )


class Instance:
    """All tensor ranks of a server, each with an engine and a manager, in this process."""

    def __init__(self, role: str, tp: int, heads: int, order: str) -> None:
        self.ranks = []
        for tp_rank in range(tp):
            rank = KVRank(tp_rank=tp_rank, tp_size=tp)
            pools = RankPools(rank, heads=heads, layers=[0, 1], order=order)
            args = args_of(pools, total=heads, order=order, decode=role == "decode")
            made = layout_of(args, rank, decode=role == "decode")
            engine = kvmend.TransferEngine()
            self.ranks.append((pools, engine, KVManager(engine, role, made.layout)))

    def close(self) -> None:
        for _, engine, manager in self.ranks:
            manager.teardown()
            engine.shutdown()


def request(prefill: Instance, decode: Instance) -> list[str]:
    """One request between all of them; what went wrong at each decode rank."""
    here, there = [3, 9, 4], [7, 2, 5]
    p, d = len(prefill.ranks), len(decode.ranks)
    receivers, senders = [], []
    for at, (_, _, manager) in enumerate(decode.ranks):
        ranks = range(at * p // d, max((at + 1) * p // d, at * p // d + 1))
        sources = [
            KVSource(prefill.ranks[r][1].session_id, max(d // p, 1), False) for r in ranks
        ]
        receivers.append(KVReceiver(manager, sources, 1))
        receivers[-1].send_metadata(there, 3)
    for pools, _, manager in prefill.ranks:
        pools.fill(here)
        senders.append(KVSender(manager, 1))
        senders[-1].init(len(here), 1)
        senders[-1].send(here)
    said = []
    for receiver, (pools, _, _) in zip(receivers, decode.ranks, strict=True):
        if receiver.wait(30) == KVPoll.SUCCESS:
            said.append(pools.wrong(there, 3))
        else:
            said.append(str(receiver.failure_exception()))
    return said


@pytest.mark.parametrize("orders", [("nhd", "nhd"), ("hnd", "hnd"), ("hnd", "nhd")])
@pytest.mark.parametrize(
    ("prefill_tp", "decode_tp", "heads"),
    [
        (4, 2, 2), (2, 4, 2), (2, 1, 1), (1, 2, 1), (4, 1, 2), (1, 4, 2), (2, 2, 1),
        (4, 2, 1), (2, 1, 4), (1, 2, 4),
    ],
)  # fmt: skip
def test_replicated_heads_and_either_order_byte_for_byte(prefill_tp, decode_tp, heads, orders):
    prefill = Instance("prefill", prefill_tp, heads, orders[0])
    decode = Instance("decode", decode_tp, heads, orders[1])
    try:
        assert request(prefill, decode) == [""] * decode_tp
    finally:
        decode.close()
        prefill.close()


def test_a_page_that_cant_hold_the_heads_of_its_rank_is_refused_with_both_sizes():
    prefill, decode = Instance("prefill", 2, 2, "nhd"), Instance("decode", 1, 4, "nhd")
    try:
        (said,) = request(prefill, decode)
    finally:
        decode.close()
        prefill.close()
    assert "32 (4 rows x 1 of 2 columns) here, 128 (4 rows x 4 of 2 columns) there" in said


# ------------------------------------------------------------------------------ metadata by name


class Tensor:
    def __init__(self, rows: int, width: int, dtype: str) -> None:
        self.array = np.zeros((rows, width), dtype)
        self.dtype = dtype

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)


class MetadataBuffers:
    """As SGLang's: tensors as attributes, of which `get_buf_infos` lists those that are there."""

    def __init__(self, **fields: tuple[int, str]) -> None:
        self.names = list(fields)
        self.padding = None
        for name, (width, dtype) in fields.items():
            setattr(self, name, Tensor(4, width, dtype))

    def get_buf_infos(self):
        arrays = [getattr(self, name).array for name in self.names]
        return (
            [one.ctypes.data for one in arrays],
            [one.nbytes for one in arrays],
            [one[0].nbytes for one in arrays],
        )


BASE = {"output_ids": (16, "int32"), "cached_tokens": (16, "int32"), "bootstrap_room": (8, "uint64")}


@pytest.fixture
def metadata(monkeypatch):
    """SGLang's module after the backend was chosen."""
    monkeypatch.setattr(aux_fields, "_names", {})  # memory is used again
    utils = SimpleNamespace(MetadataBuffers=type("Buffers", (MetadataBuffers,), {}))
    aux_fields.watch(utils)
    aux_fields.watch(utils)
    return utils.MetadataBuffers


def exchange(sent: MetadataBuffers, taken: MetadataBuffers) -> str:
    """Moves row 1 of `sent` into row 3 of `taken`; why not, or ""."""
    pages, sides = [], []
    for role, buffers in (("prefill", sent), ("decode", taken)):
        pages.append(np.zeros((4, 64), np.uint8))
        pointers, lengths, items = buffers.get_buf_infos()
        args = kv_args(
            kv_data_ptrs=[pages[-1].ctypes.data], kv_data_lens=[256], kv_item_lens=[64],
            kv_layer_ids=[0], state_types=[], aux_data_ptrs=pointers, aux_data_lens=lengths,
            aux_item_lens=items,
        )  # fmt: skip
        made = layout_of(args, KVRank(), decode=role == "decode")
        engine = kvmend.TransferEngine()
        sides.append((engine, KVManager(engine, role, made.layout), made))
    (prefill, sending, _), (decode, receiving, made) = sides
    try:
        receiver = KVReceiver(receiving, prefill.session_id, 1)
        receiver.send_metadata([2], 3)
        sender = KVSender(sending, 1)
        sender.init(1, 1)
        sender.send([0])
        if receiver.wait(30) != KVPoll.SUCCESS:
            return str(receiver.failure_exception())
        made.aux_rows.clear_missing(3, receiver.aux_fields())
        return ""
    finally:
        for engine, manager, _ in reversed(sides):
            manager.teardown()
            engine.shutdown()


def test_servers_with_other_metadata_get_what_both_have(metadata):
    """Decode has a field that prefill lacks, another order, and not the one that prefill has."""
    sent = metadata(**BASE, output_topk_p=(16, "float32"))
    taken = metadata(kv_checksum=(8, "uint64"), **dict(reversed(BASE.items())))
    for n, name in enumerate(sent.names):
        getattr(sent, name).array[:] = n + 1
    taken.kv_checksum.array[:] = 99  # an older request's
    assert exchange(sent, taken) == ""
    for name in BASE:
        field = getattr(taken, name).array
        assert (field[3] == getattr(sent, name).array[1]).all() and not field[:3].any()
    assert taken.kv_checksum.array[:, 0].tolist() == [99, 99, 99, 0]


@pytest.mark.parametrize(
    ("prefill", "decode", "says"),
    [
        ({}, {"output_ids": (32, "int32")}, '"output_ids" 64 bytes of int32 here, 128 bytes'),
        ({}, {"cached_tokens": (8, "int64")}, '"cached_tokens" 64 bytes of int32 here, 64 bytes of'),
        ({}, {"output_dsa_topk_indices": (4, "int32")}, "missing here, required there"),
        ({"output_dsa_topk_indices": (4, "int32")}, {}, ""),
    ],
)
def test_metadata_that_doesnt_go_together_is_refused_by_name(metadata, prefill, decode, says):
    said = exchange(metadata(**{**BASE, **prefill}), metadata(**{**BASE, **decode}))
    assert says in said and bool(said) == bool(says)


def test_buffers_nobody_has_named_pair_by_position(metadata):
    plain_class = MetadataBuffers
    assert exchange(plain_class(**BASE), plain_class(**BASE)) == ""
    said = exchange(plain_class(**BASE), metadata(**BASE))
    assert "0 aux fields named here, 3 there" in said


def test_a_version_without_such_a_class_is_left_alone():
    aux_fields.watch(SimpleNamespace())


# ---------------------------------------------------------------------------- bootstrap messages

ROW = {
    **{f"{name}_{what}": n for name in ("attn_tp", "attn_cp", "attn_dp", "pp", "system_dp")
       for what, n in (("rank", 0), ("size", 1))},
    "rank_ip": "127.0.0.1", "rank_port": 4711, "page_size": 16, "kv_cache_dtype": "bfloat16",
    "prefill_http_port": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (ROW, None),
        ({**ROW, "attn_tp_size": 2, "attn_tp_rank": 1}, None),
        ([], "JSON object"),
        ({}, "attn_tp_rank None"),
        ({**ROW, "attn_tp_size": "x"}, "attn_tp_size 'x'"),
        ({**ROW, "attn_tp_rank": -1}, "attn_tp_rank -1"),
        ({**ROW, "pp_size": True}, "pp_size True"),
        ({**ROW, "pp_size": 1 << 40}, "pp_size"),
        ({**ROW, "system_dp_rank": 1}, "system_dp_rank 1"),
        ({**ROW, "rank_port": "4711"}, "rank_port '4711'"),
        ({**ROW, "rank_port": 70000}, "rank_port"),
        ({**ROW, "rank_ip": None}, "rank_ip"),
        ({**ROW, "page_size": 1.5}, "page_size"),
        ({**ROW, "prefill_http_port": "no"}, "prefill_http_port"),
        ({k: v for k, v in ROW.items() if k != "kv_cache_dtype"}, "kv_cache_dtype"),
    ],
)
def test_a_registration_is_looked_at_before_sglang_takes_it(row, says):
    found = routes.registration_error(row)
    assert (found is None) == (says is None) and (says or "") in (found or "")


def test_a_question_is_numbers():
    names = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
    good = dict.fromkeys(names, "-1")
    assert routes.question_error(good) is None
    for name in names:
        for bad in ("", "x", "1e3", "9" * 5000):
            assert name in (routes.question_error({**good, name: bad}) or "")


def test_a_registry_that_comes_late_is_told_then(monkeypatch):
    """B3; stock SGLang gives up after 15 s."""
    answers = [requests.ConnectionError("refused"), 503, requests.Timeout("slow"), 200]
    told = []

    def put(url, json, timeout):
        told.append((url, json))
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(status_code=answer, text="no")

    monkeypatch.setattr(routes.requests, "put", put)
    monkeypatch.setattr(routes.Registration, "FIRST", 0.01)
    registration = routes.Registration("http://127.0.0.1:1/kvmend/route", ROW)
    registration.thread.join(30)
    assert told == [("http://127.0.0.1:1/kvmend/route", ROW)] * 4
    registration.stop()
    answers[:] = [requests.ConnectionError("refused")] * 100
    monkeypatch.setattr(routes.Registration, "FIRST", 3600.0)
    waiting = routes.Registration("http://127.0.0.1:1/kvmend/route", ROW)
    waiting.stop()
    assert not waiting.thread.is_alive()


# ------------------------------------------------------------------------------------- refusals

FINE = {
    "device": "cpu",
    "policy": "early",
    "staging": False,
    "kv_sharding": False,
    "all_cp_ranks": False,
    "cp_tp_sharing": False,
    "dcp_size": 1,
}


def test_a_plain_configuration_is_served():
    limits.check_configuration(**FINE)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"device": "cuda"}, "'cuda'"),
        ({"policy": "prefill_complete"}, "prefill_complete"),
        ({"staging": True}, "SGLANG_DISAGG_STAGING_BUFFER"),
        ({"kv_sharding": True}, "--enable-kv-cache-sharding"),
        ({"all_cp_ranks": True}, "context-parallel"),
        ({"cp_tp_sharing": True}, "--enable-cp-tp-group-sharing"),
        ({"dcp_size": 2}, "decode context parallelism"),
    ],
)
def test_what_isnt_served_is_refused_with_a_way_out(change, says):
    with pytest.raises(ValueError, match="kvmend.exec") as refused:
        limits.check_configuration(**{**FINE, **change})
    assert says in str(refused.value)


def server(**changes):
    return SimpleNamespace(
        **{
            "attn_tp_size": 2,
            "pp_size": 1,
            "enable_kv_cache_sharding": False,
            "enable_dsa_cache_layer_split": False,
            **changes,
        }
    )


def test_what_cant_be_paired_is_named():
    assert limits.unequal(server(), server(), "") is None
    assert limits.unequal(server(), server(), "its inside isn't known") is None
    assert limits.unequal(server(attn_tp_size=4), server(), "") is None
    assert limits.unequal(server(pp_size=2), server(), "") is None
    said = limits.unequal(server(attn_tp_size=4), server(), "its inside isn't known") or ""
    assert "TP is 4 at prefill and 2 at decode, but its inside isn't known" in said
    said = limits.unequal(server(enable_dsa_cache_layer_split=True), server(), "") or ""
    assert "split" in said


# --------------------------------------------------------------------------------------- plugin


class FakeBackend(enum.Enum):
    MOONCAKE = "mooncake"
    FAKE = "fake"


class FakeClass(enum.Enum):
    KVARGS = "kvargs"
    MANAGER = "manager"
    BOOTSTRAP_SERVER = "bootstrap_server"


@pytest.fixture
def sglang(monkeypatch):
    """What of SGLang the plugin touches."""
    hooks = {}
    choices = ["mooncake"]
    modules = {
        "sglang.srt.arg_groups.choices": {"DISAGG_TRANSFER_BACKEND_CHOICES": choices},
        "sglang.srt.disaggregation.utils": {"TransferBackend": FakeBackend},
        "sglang.srt.plugins.hook_registry": {
            "HookRegistry": SimpleNamespace(register=lambda *a: hooks.setdefault(a[0], a[1:])),
            "HookType": SimpleNamespace(AROUND="around"),
        },
    }
    for name, names in modules.items():
        parts = name.split(".")
        for n in range(1, len(parts)):
            parent = ".".join(parts[:n])
            if parent not in sys.modules:
                monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
        module = types.ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
    return SimpleNamespace(hooks=hooks, choices=choices)


def test_the_plugin_registers_a_backend_of_its_own_name(sglang, monkeypatch):
    plugin.register()
    plugin.register()
    assert sglang.choices == ["mooncake", "kvmend"]
    ours = FakeBackend("kvmend")
    assert (ours.name, ours.value, ours in FakeBackend) == ("KVMEND", "kvmend", True)
    ((target, (hook, kind)),) = sglang.hooks.items()
    assert (target, kind) == ("sglang.srt.disaggregation.utils.get_kv_class", "around")

    asked = []
    stand_in = {"KvmendKVManager": object(), "KvmendKVBootstrapServer": object()}
    monkeypatch.setattr(kvmend.sglang, "__getattr__", stand_in.__getitem__)

    def original(backend, kind):
        asked.append((backend, kind))
        return "original"

    assert hook(original, ours, FakeClass.MANAGER) is stand_in["KvmendKVManager"]
    assert hook(original, ours, FakeClass.BOOTSTRAP_SERVER) is stand_in["KvmendKVBootstrapServer"]
    assert not asked
    assert hook(original, ours, FakeClass.KVARGS) == "original"
    assert hook(original, FakeBackend.MOONCAKE, FakeClass.MANAGER) == "original"
    monkeypatch.setenv(plugin.REPLACE, "1")
    assert hook(original, FakeBackend.MOONCAKE, FakeClass.MANAGER) is stand_in["KvmendKVManager"]
    assert hook(original, FakeBackend.FAKE, FakeClass.MANAGER) == "original"


def test_importing_the_package_needs_no_sglang():
    with pytest.raises(AttributeError, match="NoSuchClass"):
        _ = kvmend.sglang.NoSuchClass
    assert "KVManager" in kvmend.sglang.__all__
