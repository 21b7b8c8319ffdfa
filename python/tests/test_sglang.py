"""What of the SGLang backend needs no SGLang: settings, layouts, refusals, the plugin.

The classes themselves run under SGLang's own by `./dev sglang`.
"""

import enum
import sys
import types
from types import SimpleNamespace

import kvmend.sglang
import pytest
from kvmend import KVPool, KVRank, default_options
from kvmend.sglang import limits, plugin
from kvmend.sglang.layout import layout_of
from kvmend.sglang.settings import PARK_MAX, read_settings

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


def test_tensor_ranks_divide_the_bytes_of_a_token():
    made = layout_of(plain(), KVRank(tp_rank=1, tp_size=2))
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
        ({"kv_layout": "hnd"}, "hnd"),
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
