"""The backend between servers of different parallelism, with SGLang's own classes: every byte.

Each rank is a process with a small model's pools (kvmend.testing.ranks), whose content follows from
layer, token and head. Several requests per case; other pages must stay untouched. Exits 1 when a
byte was wrong, or something that can't be paired wasn't refused.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import numpy as np
from sglang_fleet import WAYS

LAYERS = 4
#: name -> (prefill tp, pp; decode tp, pp; heads; options), and what a refusal says.
CASES: dict[str, tuple[tuple[int, int, int, int, int], dict[str, Any], str]] = {
    "MHA, tp 1 to 1": ((1, 1, 1, 1, 4), {}, ""),
    "MHA, tp 2 to 1": ((2, 1, 1, 1, 4), {}, ""),
    "MHA, tp 4 to 2": ((4, 1, 2, 1, 4), {}, ""),
    "MHA, tp 1 to 2": ((1, 1, 2, 1, 4), {}, ""),
    "MHA, tp 1 to 4": ((1, 1, 4, 1, 4), {}, ""),
    "MHA, pp 2 to 1": ((1, 2, 1, 1, 4), {}, ""),
    "MHA, tp 2 pp 2 to tp 1": ((2, 2, 1, 1, 4), {}, ""),
    "MHA, pp 2 to 2": ((1, 2, 1, 2, 4), {}, ""),
    "MHA with a convolution state, tp 2 to 1": ((2, 1, 1, 1, 4), {"mamba": True}, ""),
    "MHA with a convolution state, tp 1 to 2": ((1, 1, 2, 1, 4), {"mamba": True}, ""),
    "MLA, tp 2 to 1": ((2, 1, 1, 1, 1), {"mla": True}, ""),
    "MLA, tp 1 to 2": ((1, 1, 2, 1, 1), {"mla": True}, ""),
    "MLA, pp 2 to 1": ((1, 2, 1, 1, 1), {"mla": True}, ""),
    "replicated heads, tp 2 to 2": ((2, 1, 2, 1, 1), {}, ""),
    "MHA, tp 1 pp 2 to tp 2": ((1, 2, 2, 1, 4), {}, ""),
    "replicated heads, tp 2 to 1": ((2, 1, 1, 1, 1), {}, ""),
    "replicated heads, tp 1 to 2": ((1, 1, 2, 1, 1), {}, ""),
    "GQA of 2 heads, tp 4 to 2": ((4, 1, 2, 1, 2), {}, ""),
    "GQA of 2 heads, tp 2 to 4": ((2, 1, 4, 1, 2), {}, ""),
    "GQA of 2 heads, tp 4 to 1": ((4, 1, 1, 1, 2), {}, ""),
    "GQA of 1 head, tp 4 to 2": ((4, 1, 2, 1, 1), {}, ""),
    "replicated heads, tp 2 pp 2 to tp 1": ((2, 2, 1, 1, 1), {}, ""),
    "hnd, tp 2 to 1": ((2, 1, 1, 1, 4), {"hnd": ["prefill", "decode"]}, ""),
    "hnd, tp 1 to 2": ((1, 1, 2, 1, 4), {"hnd": ["prefill", "decode"]}, ""),
    "hnd to nhd, tp 1 to 1": ((1, 1, 1, 1, 4), {"hnd": ["prefill"]}, ""),
    "hnd, GQA of 2 heads, tp 4 to 2": ((4, 1, 2, 1, 2), {"hnd": ["prefill", "decode"]}, ""),
    "other metadata, tp 1 to 1": ((1, 1, 1, 1, 4), {"metadata": True}, ""),
    "other metadata, tp 2 to 1": ((2, 1, 1, 1, 4), {"metadata": True}, ""),
    "replicated heads that prefill doesn't tell": ((2, 1, 1, 1, 1), {"headless": True}, "columns"),
    "another element order, tp 2 to 1": ((2, 1, 1, 1, 4), {"order": "vectorized_5d"},
                                         "is vectorized_5d"),
}  # fmt: skip
ROOMS = 3
#: Channels of [query | key | value] of the convolution state, over all ranks; rows of it.
GROUPS, ROWS = [4, 4, 8], 3


class Metadata:
    """SGLang's own metadata buffers, with what only one side has: prefill sampling masks, decode a
    checksum of the KV cache."""

    PREFILL_ONLY = "output_token_sampling_mask_idx"
    DECODE_ONLY = "kv_checksum"

    def __init__(self, ns: Any, role: str) -> None:
        import torch

        os.environ["SGLANG_ENABLE_DISAGG_SAMPLING_MASK"] = str(int(role == "prefill"))
        self.buffers = ns.utils.MetadataBuffers(
            8, hidden_size=64, hidden_states_dtype=torch.float32, max_sampling_mask_tokens=32,
            kv_checksum_enabled=role == "decode",
        )  # fmt: skip
        self.fields = {k: v for k, v in vars(self.buffers).items() if isinstance(v, torch.Tensor)}
        assert (self.PREFILL_ONLY in self.fields) == (role == "prefill")
        assert (self.DECODE_ONLY in self.fields) == (role == "decode")

    def fill(self, row: int) -> None:
        for n, name in enumerate(sorted(self.fields)):
            self.fields[name][row] = n + len(name)

    def wrong(self, row: int) -> str:
        """`fill` numbers prefill's names, so theirs are known here."""
        masks = ("len", "idx", "logprobs")
        theirs = (self.fields.keys() - {self.DECODE_ONLY}) | {
            "output_token_sampling_logprobs" if m == "logprobs" else f"output_token_sampling_mask_{m}"
            for m in masks
        }
        found = []
        for n, name in enumerate(sorted(theirs)):
            if name not in self.fields:
                continue
            expected = n + len(name)
            if not bool((self.fields[name][row] == expected).all()):
                found.append(f"{name} {self.fields[name][row].flatten()[:4].tolist()}")
        if bool(self.fields[self.DECODE_ONLY][row].any()):
            found.append(f"{self.DECODE_ONLY} keeps an older request's")
        return ", ".join(found)


class Conv:
    """A state row: ROWS x (query | key | value of this rank) int32."""

    def __init__(self, tp_rank: int, tp_size: int) -> None:
        channels, base = [], 0
        for total in GROUPS:
            part = total // tp_size
            channels += range(base + tp_rank * part, base + (tp_rank + 1) * part)
            base += total
        rows, columns = np.ix_(np.arange(ROWS), np.array(channels))
        self.content = (1 + rows * 1000 + columns).astype(np.int32)
        self.memory = np.zeros((8, *self.content.shape), np.int32)

    def wrong(self, row: int) -> str:
        expected = np.zeros_like(self.memory)
        expected[row] = self.content
        return "" if (expected == self.memory).all() else f"state:\n{self.memory[row]}"


def kv_args(
    ns: Any, pools: Any, conv: Conv | None, metadata: Metadata | None, spec: dict[str, Any]
) -> Any:
    k = ns.KVArgs()
    k.engine_rank, k.pp_rank, k.system_dp_rank = spec["tp_rank"], spec["pp_rank"], 0
    k.rust_http_port, k.ib_device, k.gpu_id = None, None, 0
    buffers = [pools.kv[h, i] for h in range(pools.halves) for i in range(len(pools.layers))]
    k.kv_data_ptrs = [one.ctypes.data for one in buffers]
    k.kv_data_lens = [one.nbytes for one in buffers]
    k.kv_item_lens = [one.nbytes // one.shape[0] for one in buffers]
    k.kv_layer_ids, k.kv_cache_dtype_str = [], "uint8"
    k.kv_layout, k.swa_kv_cache_layout = None, spec.get("order")
    if spec["role"] == "prefill" and not spec.get("headless"):  # decode's scheduler doesn't say it
        k.kv_head_num, k.total_kv_head_num = len(pools.heads), spec["heads"]
    k.aux_data_ptrs, k.aux_data_lens = [pools.aux.ctypes.data], [pools.aux.nbytes]
    k.aux_item_lens = [pools.aux.nbytes // len(pools.aux)]
    if metadata is not None:
        infos = metadata.buffers.get_buf_infos()
        k.aux_data_ptrs, k.aux_data_lens, k.aux_item_lens = infos
    k.page_size, k.num_draft_entries, k.is_hybrid_mla_backend = pools.page_tokens, 0, False
    k.prefill_start_layer, k.prefill_end_layer = pools.layers[0], pools.layers[-1] + 1
    k.mla_compression_ratios = None
    states: list[Any] = [[]] * 7
    if conv is not None:
        memory = conv.memory
        states = [
            [ns.base.StateType.MAMBA], [[memory.ctypes.data]], [[memory.nbytes]],
            [[memory.nbytes // len(memory)]], [[0]], [[memory.shape[2]]], [[ROWS]],
        ]  # fmt: skip
    (k.state_types, k.state_data_ptrs, k.state_data_lens, k.state_item_lens, k.state_layer_ids,
     k.state_dim_per_tensor, k.state_slice_outer_counts) = states  # fmt: skip
    k.state_conv_shard_groups = [[GROUPS]] if conv is not None else []
    return k


class Stages:
    """The pipeline group of a rank: what stage 0 says is a file."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.world_size, self.rank_in_group = spec["pp"], spec["pp_rank"]
        self._file = f"{os.path.dirname(spec['log'])}/said-{spec['role']}-{spec['tp_rank']}"

    def broadcast_object(self, said: Any, src: int = 0) -> Any:
        if self.rank_in_group == src:
            with open(self._file + ".new", "w") as file:
                json.dump(said, file)
            os.rename(self._file + ".new", self._file)
        until = time.monotonic() + 60
        while not os.path.exists(self._file) and time.monotonic() < until:
            time.sleep(0.01)
        with open(self._file) as file:
            return json.load(file)


class Rank:
    """One process: a scheduler's use of the classes, without a model."""

    def __init__(self, spec: dict[str, Any]) -> None:
        import sglang_shim

        from kvmend import KVRank
        from kvmend.testing.ranks import RankPools

        self.spec, self.ns = spec, sglang_shim.install()
        config = self.ns.CONFIG
        parallel = config.parallel
        parallel.attn_tp_size, parallel.attn_tp_rank = spec["tp"], spec["tp_rank"]
        parallel.tp_size, parallel.pp_size = spec["tp"], spec["pp"]
        parallel.pp_group = Stages(spec)
        config.disagg.disaggregation_bootstrap_port = int(spec["bootstrap"].rpartition(":")[2])
        config.disagg.disaggregation_mode = spec["role"]
        each = LAYERS // spec["pp"]
        layers = range(spec["pp_rank"] * each, (spec["pp_rank"] + 1) * each)
        rank = KVRank(tp_rank=spec["tp_rank"], tp_size=spec["tp"])
        mla = bool(spec.get("mla"))
        hnd = spec["role"] in spec.get("hnd", ())
        self.pools = RankPools(rank, heads=spec["heads"], layers=layers, halves=1 if mla else 2,
                               order="hnd" if hnd else "nhd")  # fmt: skip
        self.metadata = Metadata(self.ns, spec["role"]) if spec.get("metadata") else None
        last_stage = spec["pp_rank"] + 1 == spec["pp"]
        mamba = spec.get("mamba") and last_stage
        self.conv = Conv(spec["tp_rank"], spec["tp"]) if mamba else None
        mode = self.ns.DisaggregationMode
        self.mgr = self.ns.MooncakeKVManager(
            kv_args(self.ns, self.pools, self.conv, self.metadata, spec),
            mode.PREFILL if spec["role"] == "prefill" else mode.DECODE,
            type("ServerArgs", (), {"enable_pd_role_switch": False})(),
            is_mla_backend=mla,
        )

    def run(self) -> list[str]:
        act = self.prefill if self.spec["role"] == "prefill" else self.decode
        return [act(room) for room in range(1, ROOMS + 1)]

    def pages(self, room: int) -> list[int]:
        seed = room + (0 if self.spec["role"] == "prefill" else 100 + self.spec["tp_rank"])
        chosen: list[int] = np.random.default_rng(seed).permutation(24)[:6].tolist()
        return chosen

    def prefill(self, room: int) -> str:
        here = self.pages(room)
        self.pools.kv[:] = 0
        self.pools.fill(here)
        if self.conv is not None:
            self.conv.memory[room] = self.conv.content
        if self.metadata is not None:
            self.metadata.fill(1)
        sender = self.ns.MooncakeKVSender(self.mgr, self.spec["bootstrap"], room)
        if (error := self.wait(sender, self.ns.KVPoll.WaitingForInput)) is not None:
            return error
        sender.init(len(here), 1)
        pages = np.array(here, np.int32)
        sender.send(pages[:2])
        sender.send(pages[2:], state_indices=[[room]] if self.conv is not None else None)
        error = self.wait(sender, self.ns.KVPoll.Success)
        sender.clear()
        return error or ""

    def decode(self, room: int) -> str:
        self.pools.kv[:] = 0
        self.pools.aux[:] = 0
        there, end = self.pages(room), time.monotonic() + 60
        while not self.mgr.try_ensure_parallel_info(self.spec["bootstrap"]):
            if time.monotonic() > end:
                return "no answer of the bootstrap server"
            time.sleep(0.2)
        receiver = self.ns.MooncakeKVReceiver(self.mgr, self.spec["bootstrap"], room)
        receiver.init(0)
        if (error := self.wait(receiver, self.ns.KVPoll.WaitingForInput)) is not None:
            return error
        if self.conv is not None:
            self.conv.memory[:] = 0
        if self.metadata is not None:
            for tensor in self.metadata.fields.values():
                tensor[:] = 7  # an older request's
        state = [[5]] if self.conv is not None else None
        receiver.send_metadata(np.array(there, np.int32), 3, state, decode_prefix_len=0)
        if (error := self.wait(receiver, self.ns.KVPoll.Success)) is not None:
            return error
        receiver.clear()
        if self.metadata is not None:
            self.pools.aux[3] = [11, 22, 33, 44]  # lies idle here
            if wrong := self.metadata.wrong(3):
                return wrong
        wrong = self.pools.wrong(there, 3)
        return wrong or (self.conv.wrong(5) if self.conv is not None else "")

    def wait(self, end: Any, status: int) -> str | None:
        """None, or why it will never come to `status`."""
        until = time.monotonic() + 60
        while (now := end.poll()) != status:
            if now == self.ns.KVPoll.Failed:
                try:
                    end.failure_exception()
                except Exception as error:
                    return str(error)
            if time.monotonic() > until:
                return f"stays at {now}"
            time.sleep(0.001)
        return None


def start(work: str, spec: dict[str, Any]) -> subprocess.Popen[str]:
    environment = {**os.environ, **WAYS["backend"], "SGLANG_HOST_IP": "127.0.0.1",
                   "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "30", "OMP_NUM_THREADS": "1"}  # fmt: skip
    if spec["role"] in spec.get("hnd", ()):
        environment["SGLANG_USE_HND_KVCACHE"] = "1"
    command = [sys.executable, __file__, work, json.dumps(spec)]
    if spec["role"] == "bootstrap":
        command = [sys.executable, os.path.join(work, "worker.py"), "--role", "bootstrap",
                   "--bootstrap", spec["bootstrap"]]  # fmt: skip
    with open(spec["log"], "w") as log:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            env=environment,
        )  # fmt: skip


def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def run_case(work: str, name: str) -> bool:
    (p_tp, p_pp, d_tp, d_pp, heads), options, refusal = CASES[name]
    logs = tempfile.mkdtemp(prefix="sglang_unequal_")
    common = {"bootstrap": f"127.0.0.1:{free_port()}", "heads": heads, **options}
    server = start(work, {"role": "bootstrap", "log": f"{logs}/bootstrap", **common})
    assert server.stdout
    server.stdout.readline()
    specs = [
        {"role": role, "tp": tp, "tp_rank": tp_rank, "pp": pp, "pp_rank": pp_rank,
         "log": f"{logs}/{role}-{tp_rank}-{pp_rank}", **common}
        for role, tp, pp in (("prefill", p_tp, p_pp), ("decode", d_tp, d_pp))
        for tp_rank in range(tp)
        for pp_rank in range(pp)
    ]
    ranks = [start(work, spec) for spec in specs]
    outputs = [""] * len(ranks)

    def collect(i: int) -> None:
        outputs[i] = ranks[i].stdout.readline()  # type: ignore[union-attr]

    threads = [threading.Thread(target=collect, args=(i,)) for i in range(len(ranks))]
    for thread in threads:
        thread.start()
    # Prefill's requests of a pair that is refused would wait for their timeout.
    for spec, thread in zip(specs, threads, strict=True):
        if not refusal or spec["role"] == "decode":
            thread.join(120)
    for process in (*ranks, server):
        process.kill()
    for thread in threads:
        thread.join()
    for process in (*ranks, server):
        process.wait()
    found = []
    for spec, out in zip(specs, outputs, strict=True):
        if refusal and spec["role"] == "prefill":
            continue
        try:
            found += [f"{spec['role']} {spec['tp_rank']}/{spec['pp_rank']}: {one}"
                      for one in json.loads(out) if one]  # fmt: skip
        except ValueError:
            with open(spec["log"]) as log:
                found.append(f"{spec['role']} {spec['tp_rank']}: {log.read()[-1500:]}")
    if refusal:
        good = len(found) == d_tp * d_pp * ROOMS and all(refusal in one for one in found)
    else:
        good = not found
    said = found[0] if refusal and found else ""
    print(f"{name:42} {'refused: ' + said if refusal and good else 'every byte' if good else found}",
          flush=True)  # fmt: skip
    return good


def main() -> int:
    work = sys.argv[1]
    if len(sys.argv) > 2 and sys.argv[2].startswith("{"):
        sys.path.insert(0, work)
        out, sys.stdout = sys.stdout, sys.stderr
        results = Rank(json.loads(sys.argv[2])).run()
        print(json.dumps(results), file=out, flush=True)
        sys.stdin.readline()  # the others may still need this process: it ends with the case
        os._exit(0)
    names = [name for name in CASES if not sys.argv[2:] or name in sys.argv[2:]]
    results = [run_case(work, name) for name in names]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
