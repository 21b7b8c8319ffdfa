"""Case B6: SIGTERM with 50 transfers in flight, to real processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kvmend import TransferEngine
from kvmend.testing.peer import Peer, wait_until

COUNT = 50
SIZE = 4 << 20

#: Run in the process that is to leave: fifty writes of its own, and what to do on SIGTERM.
LEAVE = """
import json, os, signal
source = np.random.default_rng(7).integers(0, 256, size, np.uint8)
here = engine.register_memory(source)
def leave(number, frame):
    engine.shutdown(grace)
    try:
        engine.submit(target, "write", here, there, size).wait(5)
        late = "admitted"
    except KvmendError as error:
        late = error.code_name
    ended = []
    for transfer in transfers:
        try:
            ended.append("ok" if transfer.wait(0) else "running")
        except KvmendError as error:
            ended.append(error.code_name)
    with open(report + ".new", "w") as file:
        json.dump([late, ended], file)
    os.rename(report + ".new", report)
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
transfers = [engine.submit(target, "write", here, there + i * size, size, deadline=30)
             for i in range(count)]
"""


def begin(peer: Peer, target: str, there: int, report: Path, grace: float) -> None:
    peer.run(LEAVE, target=target, there=there, report=str(report), grace=grace,
             count=COUNT, size=SIZE)
    os.kill(peer.pid, signal.SIGTERM)


@pytest.mark.parametrize("local", ["auto", "off"])
def test_b6_what_is_in_flight_drains_and_the_peers_are_told(
    start_peer: Callable[..., Peer], tmp_path: Path, local: str
) -> None:
    report = tmp_path / "report"
    with TransferEngine(local=local) as engine:
        memory = np.zeros(COUNT * SIZE, np.uint8)
        there = engine.register_memory(memory)
        peer = start_peer(local=local)
        engine.open_session(peer.session_id)
        begin(peer, engine.session_id, there, report, grace=20)
        wait_until(report.exists, "the process to leave")
        late, ended = json.loads(report.read_text())
        assert late == "shutting_down"
        assert ended == ["ok"] * COUNT
        wrote = np.random.default_rng(7).integers(0, 256, SIZE, np.uint8)
        assert (memory.reshape(COUNT, SIZE) == wrote).all()

        def told() -> bool:
            (info,) = engine.sessions()
            return "shutting down" in " ".join(change.cause for change in info.history)

        wait_until(told, "this side to know why")


def test_b6_what_cant_drain_fails_with_the_reason_when_the_grace_is_over(
    start_peer: Callable[..., Peer], tmp_path: Path
) -> None:
    report = tmp_path / "report"
    target = start_peer(local="off")
    target.run("memory = np.zeros(size, np.uint8); there = engine.register_memory(memory)",
               size=COUNT * SIZE)
    there = target.get("there")
    peer = start_peer(local="off")
    peer.run("engine.open_session(target)", target=target.session_id)
    target.stop()
    begin(peer, target.session_id, there, report, grace=0.5)
    wait_until(report.exists, "the process to leave")
    late, ended = json.loads(report.read_text())
    assert late == "shutting_down"
    assert ended == ["shutting_down"] * COUNT
