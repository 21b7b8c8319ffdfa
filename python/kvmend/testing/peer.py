"""A second process for tests: it has an engine and does what it is told, in Python.

    with Peer() as peer:
        peer.run("memory = np.zeros(4096, np.uint8); address = engine.register_memory(memory)")
        address = peer.get("address")

As `python -m kvmend.testing.peer OPTIONS` it is that process: one JSON line in, one out.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
import traceback
from collections.abc import Callable
from typing import Any

__all__ = ["Peer", "PeerFailed", "wait_until"]

DEADLINE = 30.0  # seconds, of everything that a test waits for


class PeerFailed(AssertionError):
    """The code raised there; the message has its traceback."""


def wait_until(
    condition: Callable[[], Any], what: str = "the condition", deadline: float = DEADLINE
) -> Any:
    """Returns the first true value of `condition`; AssertionError after `deadline` seconds."""
    end = time.monotonic() + deadline
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"after {deadline} s still waiting for {what}")
        select.select([], [], [], 0.002)


class Peer:
    """The handle of such a process. One thread at a time."""

    def __init__(self, *, make_engine: bool = True, **options: Any) -> None:
        """Starts it and waits until its engine listens. `options`: of kvmend.TransferEngine."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps([os.getpid(), make_engine, options])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout
        self._in, self._out = self._process.stdin, self._process.stdout
        self.session_id: str = self.get("engine.session_id") if make_engine else ""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def port(self) -> int:
        return int(self.session_id.rsplit(":", 1)[1])

    def run(self, code: str, **values: Any) -> None:
        """Executes statements there, with `values` (JSON) as variables."""
        self.begin(code, **values)
        self.finish()

    def get(self, expression: str, **values: Any) -> Any:
        """The value of an expression there, by way of JSON."""
        self._send("get", expression, values)
        return self.finish()

    def begin(self, code: str, **values: Any) -> None:
        """Like `run`, without waiting for its end; `finish` waits."""
        self._send("run", textwrap.dedent(code), values)

    def finish(self, deadline: float = DEADLINE) -> Any:
        """Waits for what was begun; raises PeerFailed if it raised."""
        if not select.select([self._out], [], [], deadline)[0]:
            raise AssertionError(f"process {self.pid} hasn't answered within {deadline} s")
        line = self._out.readline()
        if not line:
            raise AssertionError(f"process {self.pid} has ended: {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerFailed(answer["error"])
        return answer["value"]

    def stop(self) -> None:
        """SIGSTOP; returns once it stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        wait_until(lambda: self._state() == "T", "the process to stop")

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; returns once it is gone. Idempotent."""
        self._process.kill()
        self._process.wait()
        self._in.close()
        self._out.close()

    def _state(self) -> str:
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0]

    def _send(self, kind: str, code: str, values: dict[str, Any]) -> None:
        self._in.write(json.dumps([kind, code, values]).encode() + b"\n")
        self._in.flush()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _serve() -> None:
    parent, make_engine, options = json.loads(sys.argv[1])
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the test
    if os.getppid() != parent:
        return
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    names: dict[str, Any] = {}
    exec("import numpy as np, kvmend; from kvmend import *", names)
    if make_engine:
        names["options"] = options
        exec("engine = TransferEngine(**options)", names)
    for line in sys.stdin:
        kind, code, values = json.loads(line)
        names.update(values)
        try:
            value = None
            if kind == "get":
                value = eval(code, names)
            else:
                exec(code, names)
            answer = json.dumps({"value": value})
        except Exception:
            answer = json.dumps({"error": traceback.format_exc()})
        print(answer, file=answers, flush=True)


if __name__ == "__main__":
    _serve()
