"""The router's part: gives each request a room, tells prefill and decode, follows it to its end."""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .cluster import Cluster, Event
from .prefill import WITHDRAWN
from .workload import Spec


@dataclass
class Request:
    """One request; a prompt that is tried again is another request, in another room."""

    room: int
    spec: Spec
    submitted: float
    state: str = "waiting"  # -> transferring -> arrived -> done; or failed, withdrawn
    ended: float = 0.0
    reason: str = ""
    detail: str = ""
    transfer_started: float = 0.0
    transfer_ended: float = 0.0
    bytes: int = 0
    retries: int = 0
    transfer_seconds: float = 0.0
    tail_seconds: float = 0.0
    computed: dict[str, Any] | None = None  # what prefill says about the pages
    answered: dict[str, Any] | None = None  # what decode made of them
    phases: list[str] = field(default_factory=list)  # phases of the demo it was in flight in

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "failed", "withdrawn")


class Router:
    """Keeps a number of requests in flight, from an endless stream of prompts."""

    def __init__(
        self,
        cluster: Cluster,
        specs: list[Spec],
        concurrency: int,
        on_end: Callable[[Request], None],
    ) -> None:
        self._cluster = cluster
        self._stream: Iterator[Spec] = itertools.cycle(specs)
        self._again: deque[Spec] = deque()
        self._concurrency = concurrency
        self._on_end = on_end
        self._rooms = itertools.count(1)
        self.requests: dict[int, Request] = {}
        self.decode_session = ""
        self.flowing = False  # off: nothing new is sent
        self.phase = ""

    # -------------------------------------------------------------------------------------- what is

    @property
    def in_flight(self) -> list[Request]:
        return [r for r in self.requests.values() if not r.is_over]

    @property
    def done(self) -> list[Request]:
        return [r for r in self.requests.values() if r.state == "done"]

    @property
    def failed(self) -> list[Request]:
        return [r for r in self.requests.values() if r.state == "failed"]

    @property
    def withdrawn(self) -> list[Request]:
        return [r for r in self.requests.values() if r.state == "withdrawn"]

    def transferring(self) -> bool:
        """Whether pages of some request are on their way right now."""
        return any(r.state == "transferring" for r in self.requests.values())

    def failures_by_reason(self) -> dict[str, int]:
        return dict(Counter(r.reason for r in self.failed))

    # ----------------------------------------------------------------------------------- what to do

    def begin_phase(self, name: str) -> None:
        """From now on requests in flight count as part of `name` too."""
        self.phase = name
        for request in self.in_flight:
            request.phases.append(name)

    def refill(self) -> None:
        """Sends requests until enough are in flight."""
        while self.flowing and len(self.in_flight) < self._concurrency:
            spec = self._again.popleft() if self._again else next(self._stream)
            self._send(spec)

    def try_again(self, requests: list[Request]) -> None:
        """Puts their prompts at the head of the stream."""
        self._again.extend(r.spec for r in requests)

    def decode_died(self) -> None:
        """Takes back what decode hadn't even announced: nobody would ever claim it."""
        rooms = [r.room for r in self.in_flight]
        self._cluster.processes["prefill"].command("withdraw", rooms=rooms)

    def decode_restarted(self) -> None:
        """Another incarnation answers: pages that had arrived in the old one are gone with it.

        (Requests whose pages were on their way end by themselves: kvmend tells.)
        """
        for request in self.in_flight:
            if request.state == "arrived":
                why = "its pages had arrived, and its answer died with the process"
                self._end(request, "failed", "peer_restarted", why)

    def _send(self, spec: Spec) -> None:
        room = next(self._rooms)
        request = Request(room, spec, time.monotonic(), phases=[self.phase])
        self.requests[room] = request
        order = {"room": room, "spec": spec.to_json(), "decode_session": self.decode_session}
        self._cluster.processes["decode"].command("request", **order)
        self._cluster.processes["prefill"].command("request", **order)

    # ----------------------------------------------------------------------------------- what comes

    def on_event(self, event: Event) -> None:
        request = self.requests.get(event.get("room", 0))
        if request is None or request.is_over:
            return
        if event["event"] == "transferring":
            request.state = "transferring"
            request.transfer_started = event["t"]
        elif event["event"] == "prefilled":
            request.computed = event["facts"]
        elif event["event"] == "answered":
            request.answered = event["facts"]
        elif event["event"] == "room_end":
            self._on_room_end(request, event)
        both_told = request.answered is not None and request.computed is not None
        if request.state == "arrived" and both_told:
            self._end(request, "done")

    def _on_room_end(self, request: Request, event: Event) -> None:
        if not event["ok"]:
            # Both sides tell the same cause; a process that was killed tells nothing.
            state = "withdrawn" if WITHDRAWN in event["detail"] else "failed"
            self._end(request, state, event["reason"], event["detail"])
        elif event["side"] == "prefill":
            request.state = "arrived"
            request.transfer_ended = event["t"]
            for name in ("bytes", "retries", "transfer_seconds", "tail_seconds"):
                setattr(request, name, event[name])

    def _end(self, request: Request, state: str, reason: str = "", detail: str = "") -> None:
        request.state = state
        request.ended = time.monotonic()
        request.reason, request.detail = reason, detail
        self._on_end(request)
