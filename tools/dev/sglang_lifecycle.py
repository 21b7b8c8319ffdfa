"""The life of the backend's manager with the wheel's own base classes, in one process: start,
giving the pools back and taking them again, a change of the role on the same engine, refusals."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np


class Pools:
    """The fields of KVArgs that the manager reads, over memory of our own."""

    def __init__(self, args: Any) -> None:
        self.memory = np.zeros((2, 16, 4096), np.uint8)
        self.aux = np.zeros((8, 64), np.uint8)
        args.engine_rank = args.system_dp_rank = args.pp_rank = args.gpu_id = 0
        args.kv_data_ptrs = [buffer.ctypes.data for buffer in self.memory]
        args.kv_data_lens = [buffer.nbytes for buffer in self.memory]
        args.kv_item_lens = [4096, 4096]
        args.kv_layer_ids = []
        args.kv_cache_dtype_str = "bfloat16"
        args.aux_data_ptrs, args.aux_data_lens = [self.aux.ctypes.data], [self.aux.nbytes]
        args.aux_item_lens = [64]
        args.state_types, args.state_data_ptrs, args.state_data_lens = [], [], []
        args.state_item_lens, args.state_layer_ids, args.state_dim_per_tensor = [], [], []
        args.page_size, args.rust_http_port = 16, None
        self.args = args


def main() -> int:
    sys.path.insert(0, sys.argv[1])
    import os

    os.environ.update(ENGINE_MODULE="kvmend.mooncake", SGLANG_HOST_IP="127.0.0.1")
    os.environ["SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"] = "2"
    import harness
    import sglang_shim

    ns = sglang_shim.install()
    import kvmend.sglang as ours

    port = harness.free_port()
    ns.CONFIG.disagg.disaggregation_bootstrap_port = port
    server = ours.KVBootstrapServer("127.0.0.1", port)
    modes, poll = ns.DisaggregationMode, ns.KVPoll
    server_args = type("ServerArgs", (), {"enable_pd_role_switch": True})()

    def manager(mode: Any) -> Any:
        return ours.KVManager(Pools(ns.KVArgs()).args, mode, server_args, False)

    threads = threading.active_count()
    prefill = manager(modes.PREFILL)
    session = prefill.get_session_id()
    prefill.deregister_buffer_to_engine()
    sender = ours.KVSender(prefill, f"127.0.0.1:{port}", 1)
    assert sender.poll() == poll.Failed, "no pools, no request"
    try:
        sender.failure_exception()
        raise SystemExit("failure_exception returned")
    except ns.KVTransferError as error:
        assert "gave them back" in str(error), error
    prefill.register_buffer_to_engine()

    sender = ours.KVSender(prefill, f"127.0.0.1:{port}", 2)
    assert sender.poll() == poll.Bootstrapping
    again = ours.KVSender(prefill, f"127.0.0.1:{port}", 3)
    again.abort()
    assert again.poll() == poll.Failed
    again.clear()
    assert 3 in prefill._unheard, "kept for decode to hear of"
    harness.time.sleep(3.5)
    assert 3 not in prefill._unheard, "not for ever"
    assert sender.poll() == poll.Failed, "SGLang's bootstrap timeout"
    sender.clear()
    assert prefill.manager.stats().rooms <= 1
    prefill.teardown()

    decode = manager(modes.DECODE)
    assert decode.get_session_id() == session, "the engine outlives the role"
    assert decode.try_ensure_parallel_info(f"127.0.0.1:{port}")
    assert not decode.refusals
    assert decode.should_verify_kv_checksum(f"127.0.0.1:{port}")
    decode.attn_tp_size = 2  # each of two ranks gets a part of what prefill digested
    assert not decode.should_verify_kv_checksum(f"127.0.0.1:{port}")
    decode.attn_tp_size = 1
    receiver = ours.KVReceiver(decode, f"127.0.0.1:{port}", 9)
    receiver.init(0)
    assert receiver.poll() == poll.WaitingForInput
    receiver.send_metadata(np.array([99], np.int32), 0)  # there are 16 pages
    assert receiver.poll() == poll.Failed
    try:
        receiver.failure_exception()
        raise SystemExit("failure_exception returned")
    except ns.KVTransferError as error:
        # The registry still names this process, which says so if it is asked first.
        assert "99" in str(error) or "is a decode engine" in str(error), error
    assert decode.is_abort_release_safe(9, 1)
    decode.teardown()
    assert threading.active_count() <= threads, [t.name for t in threading.enumerate()]

    ns.CONFIG.device.device = "cuda"
    try:
        manager(modes.DECODE)
        raise SystemExit("GPU memory was taken")
    except ValueError as error:
        assert "'cuda'" in str(error), error
    server.close()
    print("the manager's life: as it should be")
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    import os

    os._exit(code)
