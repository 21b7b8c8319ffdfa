"""The processes of the demo: start, command, stop, kill; and what they say, as events."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Event = dict[str, Any]
_LOG_TAIL = 30  # lines


class DemoError(RuntimeError):
    """The demo can't go on; the message says why."""


class Process:
    """A child in a session of its own, so that Ctrl-C reaches only the orchestrator."""

    def __init__(self, name: str, config: dict[str, Any], log: Path) -> None:
        self.name = name
        self.log = log
        command = [sys.executable, "-m", "kvmend.demo.worker"]
        with log.open("ab") as errors:
            self.popen = subprocess.Popen(
                [*command, json.dumps({**config, "parent": os.getpid()})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                # Threads of BLAS wait by spinning; and the bits of a result depend on their number.
                env={"OPENBLAS_NUM_THREADS": "1", **os.environ},
            )
        assert self.popen.stdin and self.popen.stdout
        self.stdin, self.stdout = self.popen.stdin, self.popen.stdout
        os.set_blocking(self.stdout.fileno(), False)
        self._unread = b""

    @property
    def pid(self) -> int:
        return self.popen.pid

    def command(self, cmd: str, **fields: Any) -> None:
        """Sends a command; a stopped process gets it when it goes on."""
        self.stdin.write(json.dumps({"cmd": cmd, **fields}).encode() + b"\n")
        self.stdin.flush()

    def read_events(self) -> list[Event] | None:
        """What it has said since; None at its end."""
        data = self.stdout.read()
        if data == b"":
            return None
        *lines, self._unread = (self._unread + (data or b"")).split(b"\n")
        return [{**json.loads(line), "who": self.name} for line in lines]

    def end(self, grace: float) -> int:
        """Waits for it, then kills it; its exit status."""
        try:
            return self.popen.wait(grace)
        except subprocess.TimeoutExpired:
            self.popen.kill()  # also ends a stopped process
            return self.popen.wait()
        finally:
            self.stdin.close()
            self.stdout.close()

    def log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL:]
        return "\n".join(f"    {self.name}: {line}" for line in lines)


class Cluster:
    """All children. As a context manager it leaves none behind, however it is left."""

    def __init__(self, on_event: Callable[[Event], None]) -> None:
        self._on_event = on_event
        self._selector = selectors.DefaultSelector()
        self._logs = tempfile.TemporaryDirectory(prefix="kvmend-demo-")
        self.processes: dict[str, Process] = {}

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.popen.kill()
        for process in self.processes.values():
            process.end(grace=5.0)
        self._selector.close()
        self._logs.cleanup()

    def start(self, name: str, config: dict[str, Any]) -> Process:
        """Starts a process; `name` may be that of one that was killed."""
        process = Process(name, config, Path(self._logs.name) / f"{name}.log")
        self.processes[name] = process
        self._selector.register(process.stdout, selectors.EVENT_READ, process)
        return process

    def kill(self, name: str) -> float:
        """SIGKILL; returns the moment. What it said before is still handed on."""
        process = self.processes.pop(name)
        moment = time.monotonic()
        process.popen.send_signal(signal.SIGKILL)
        process.popen.wait()
        for event in process.read_events() or []:
            self._on_event(event)
        self._selector.unregister(process.stdout)
        process.end(grace=0)
        return moment

    def pump(self, timeout: float) -> None:
        """Hands on what the processes say; waits up to `timeout` seconds for the first."""
        for key, _ in self._selector.select(timeout):
            process: Process = key.data
            events = process.read_events()
            if events is None:
                self._selector.unregister(process.stdout)
                self._on_event({"event": "exited", "who": process.name, "t": time.monotonic()})
            for event in events or []:
                self._on_event(event)

    def stop(self, name: str, grace: float) -> None:
        """Asks one process to stop; kills it after `grace` seconds."""
        process = self.processes.pop(name)
        process.command("stop")
        self._selector.unregister(process.stdout)
        process.end(grace)

    def stop_all(self, grace: float) -> dict[str, int]:
        """Asks all to stop, waits up to `grace` seconds, kills the rest; exit statuses."""
        for process in self.processes.values():
            process.command("stop")
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and any(
            p.popen.poll() is None for p in self.processes.values()
        ):
            self.pump(0.05)
        statuses = {p.name: p.end(grace=0.1) for p in self.processes.values()}
        self.processes.clear()
        return statuses

    def log_tails(self) -> str:
        """The end of every process's log: for a demo that failed."""
        return "\n".join(filter(None, (p.log_tail() for p in self.processes.values())))
