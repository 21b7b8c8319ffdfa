"""One process of the demo: `python -m kvmend.demo.worker CONFIG`, started by cluster.py.

CONFIG is JSON: {"role": "registry" | "prefill" | "decode" | "reference", "parent": pid, ...}.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

from kvmend import BootstrapServer, KVManager, TransferEngine

from .channel import Channel, die_with_parent
from .sessions import SessionWatch
from .workload import layout_of, make_workload

ROOM_DEADLINE = 60.0  # seconds


def main() -> int:
    config: dict[str, Any] = json.loads(sys.argv[1])
    die_with_parent(config["parent"])
    # Threads wait for each other's Python code; 5 ms, the default, is long beside a transfer.
    sys.setswitchinterval(0.0005)
    channel = Channel()
    if config["role"] == "registry":
        run_registry(channel)
    elif config["role"] == "reference":
        run_reference(config["prompts"], channel)
    else:
        run_rank(config, channel)
    return 0


def run_registry(channel: Channel) -> None:
    """Where decode finds prefill."""
    with BootstrapServer("127.0.0.1", 0) as server:
        channel.emit("ready", address=server.address)
        for _ in channel.commands():
            pass


def run_reference(prompts: int, channel: Channel) -> None:
    """What one process alone answers to each prompt, without kvmend."""
    from .model import NoModel, reference, specs

    try:
        for spec in specs()[:prompts]:
            channel.emit("expected", spec=spec.to_json(), tokens=reference(spec))
    except NoModel as error:
        channel.emit("no_model", detail=str(error))
    channel.emit("ready")
    for _ in channel.commands():
        pass


def run_rank(config: dict[str, Any], channel: Channel) -> None:
    """A prefill or decode rank: pages, engine, manager, then commands until told to stop."""
    from .decode import DecodeRank
    from .prefill import PrefillRank

    workload = make_workload(config["workload"])
    if config["role"] == "decode":
        workload.pool.fill_canary()
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(
            TransferEngine("127.0.0.1", config["port"], local=config["local"])
        )
        channel.emit("listening", session_id=engine.session_id, incarnation=engine.incarnation)
        manager = stack.enter_context(
            KVManager(
                engine,
                config["role"],
                layout_of(workload),
                room_deadline=ROOM_DEADLINE,
                # One decode: all of the pool may wait for it.
                parked_share_per_session=1.0,
                parked_share=1.0,
            )
        )
        watch = SessionWatch(engine, channel)
        stack.callback(watch.stop)
        rank_class = DecodeRank if config["role"] == "decode" else PrefillRank
        rank = rank_class(workload, manager, channel, config["registry"])
        channel.emit("ready", session_id=engine.session_id)
        for command in channel.commands():
            rank.handle(command)
        rank.stop()
    channel.emit("stopped")


if __name__ == "__main__":
    sys.exit(main())
