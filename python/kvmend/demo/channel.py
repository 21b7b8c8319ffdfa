"""How a process of the demo talks to the orchestrator: JSON lines on its standard streams."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

_PR_SET_PDEATHSIG = 1


class Channel:
    """Events out, commands in. Any thread may emit; one reads the commands."""

    def __init__(self) -> None:
        # Whatever else prints to stdout must not get into the stream of events.
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def emit(self, event: str, **fields: Any) -> None:
        """Sends one event; "t" is the moment on the machine's monotonic clock, in seconds."""
        line = json.dumps({"event": event, "t": time.monotonic(), **fields})
        with self._lock:
            self._out.write(line + "\n")
            self._out.flush()

    def commands(self) -> Iterator[dict[str, Any]]:
        """Every command until "stop" or the orchestrator's end."""
        for line in sys.stdin:
            command: dict[str, Any] = json.loads(line)
            if command["cmd"] == "stop":
                return
            yield command


def die_with_parent(parent: int) -> None:
    """The kernel kills this process, even a stopped one, when its parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
