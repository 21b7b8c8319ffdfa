"""The demo's own promises: it ends well, says what it did, and never leaves a process behind."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kvmend import KvmendError, KVPoll, PeerRestartedError
from kvmend.demo import prefill
from kvmend.demo.report import _percentiles
from kvmend.demo.sessions import _already_told
from kvmend.demo.sessions_log import Fault, SessionLog
from kvmend.testing.connections import reset_connections
from kvmend.testing.peer import wait_until

COMMAND = [sys.executable, "-m", "kvmend.demo", "--synthetic", "--quick"]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state not in ("Z", "X")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_child_is_left_behind(number: signal.Signals) -> None:
    demo = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert demo.stdout
    try:
        # Interrupted while decode is stopped: the worst moment.
        for line in demo.stdout:
            if "--- pause" in line:
                break
        children = children_of(demo.pid)
        assert len(children) == 3
        os.kill(demo.pid, number)
        rest = demo.stdout.read()
        assert demo.wait(30) == (-number if number == signal.SIGKILL else 130), rest
        wait_until(lambda: not any(is_alive(child) for child in children), "the children's end")
    finally:
        demo.kill()
        demo.wait()
        demo.stdout.close()


@pytest.mark.parametrize("arguments", [[], ["--tcp"]], ids=["local", "tcp"])
def test_the_synthetic_demo_passes(tmp_path: Path, arguments: list[str]) -> None:
    file = tmp_path / "table.json"
    done = subprocess.run(
        [*COMMAND, *arguments, "--json", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(file.read_text())
    assert report["ok"] and all(check["ok"] for check in report["checks"])
    assert [fault["kind"] for fault in report["faults"]] == ["pause", "reset", "kill"]
    assert list(report["failures"]) == ["peer_restarted"]
    assert report["requests"]["in_flight"] == 0
    assert report["bytes"] > 1e9 and report["retries"] > 0
    assert not arguments or report["transports"] == ["tcp"]


def test_changes_of_state_are_told_once() -> None:
    a, b, c = ("x", "y", "1"), ("y", "z", "2"), ("z", "x", "3")
    assert _already_told([], [a]) == 0
    assert _already_told([a, b], [a, b]) == 2
    assert _already_told([a, b], [a, b, c]) == 2
    assert _already_told([a, b], [b, c]) == 1, "the oldest fell out of the history"
    assert _already_told([a, b], [c]) == 0


def test_detection_and_recovery_are_measured_from_the_pages_session() -> None:
    log = SessionLog()

    def change(t: float, to: str, who: str = "prefill") -> None:
        log.on_event({"event": "session", "who": who, "t": t, "from_state": "", "to_state": to,
                      "cause": ""})  # fmt: skip

    fault = Fault("pause", began=10.0)
    change(1.0, "healthy")
    change(11.0, "failed", who="decode")
    change(12.0, "failed")
    change(13.0, "probing")  # a probe that passed by chance while it was stopped
    change(13.5, "failed")
    fault.ended = 15.0
    assert not log.measure(fault)
    change(15.1, "probing")
    change(15.4, "healthy")
    assert log.measure(fault)
    assert fault.detect_seconds == pytest.approx(2.0)
    assert fault.usable_seconds == pytest.approx(0.1)
    assert fault.recover_seconds == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("seconds", "p50", "p99"), [([], 0, 0), ([0.001], 1, 1), ([0.001, 0.002, 0.003], 2, 3)]
)
def test_percentiles(seconds: list[float], p50: float, p99: float) -> None:
    assert _percentiles(seconds) == {"p50": p50, "p99": p99}


def test_resetting_connections_leaves_others_alone() -> None:
    here = ("127.0.0.1", 0)
    with socket.create_server(here) as one, socket.create_server(here) as two:
        a, b = (socket.create_connection(server.getsockname()) for server in (one, two))
        far_a, far_b = one.accept()[0], two.accept()[0]
        with a, b, far_a, far_b:
            assert reset_connections(one.getsockname()[1]) == 1
            for end in (a, far_a):
                with pytest.raises(ConnectionResetError):
                    end.recv(1)
            b.sendall(b"x")
            assert far_b.recv(1) == b"x"


class RoomThatIsOver:
    """A sender whose room failed before `init`: decode had announced it, and died."""

    def __init__(self, _manager: object, room: int, _decode: str) -> None:
        self.room = room

    def init(self, _pages: int, _aux: int) -> None:
        raise self.failure_exception()

    def poll(self) -> KVPoll:
        return KVPoll.FAILED

    def wait_for(self, _status: KVPoll) -> KVPoll:
        return KVPoll.FAILED

    def wait(self) -> KVPoll:
        return KVPoll.FAILED

    def failure_exception(self) -> KvmendError:
        return PeerRestartedError("peer restarted: the process has died")

    def metrics(self) -> SimpleNamespace:
        return SimpleNamespace(bytes=0, retries=0, transferring_seconds=0.0,
                               bootstrapping_seconds=0.0, waiting_seconds=0.0)

    def clear(self) -> None:
        pass


# On a slow machine the demo waited a minute for such a room and failed.
def test_a_room_that_is_over_before_it_begins_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "KVSender", RoomThatIsOver)
    monkeypatch.setattr(prefill, "BootstrapClient", lambda _: SimpleNamespace(register=lambda _: 0))
    workload = SimpleNamespace(pool=SimpleNamespace(alloc=lambda _: [], free=lambda _: None),
                               prompt_pages=lambda _: 0)
    events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    channel = SimpleNamespace(emit=lambda event, **fields: events.put({"event": event, **fields}))
    rank = prefill.PrefillRank(workload, None, channel, "")  # type: ignore[arg-type]
    rank.handle({"cmd": "request", "room": 7, "spec": {"name": "x", "tokens": 1},
                 "decode_session": "127.0.0.1:1"})
    end = events.get(timeout=10)
    assert (end["event"], end["room"], end["ok"]) == ("room_end", 7, False)
    assert end["reason"] == "peer_restarted"
    rank.stop()
