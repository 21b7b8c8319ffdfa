"""What you see while the demo runs: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from .router import Request, Router
from .sessions_log import Change, SessionLog

_COLOURS = {
    "connecting": "blue",
    "healthy": "green",
    "suspect": "yellow",
    "failed": "red",
    "probing": "magenta",
    "retired": "grey50",
}
_FAULT_COLOURS = {"pause": "yellow", "reset": "cyan", "kill": "red"}
_CELL = 0.1  # seconds per column, while it runs
_ROWS = ("prefill -> decode", "decode -> prefill")


class Timeline(Protocol):
    """Where the demo's progress goes."""

    def show(self, router: Router) -> None: ...
    def say(self, text: str) -> None: ...
    def change(self, change: Change) -> None: ...
    def request_ended(self, request: Request) -> None: ...
    def refresh(self) -> None: ...
    def close(self) -> None: ...


def make_timeline(log: SessionLog) -> Timeline:
    console = Console(highlight=False)
    return LiveTimeline(console, log) if console.is_terminal else PlainTimeline(console)


def request_line(request: Request) -> str:
    """One line about a request that has ended."""
    head = f"room {request.room:3} {request.spec.name:12}"
    if request.state == "done":
        text = (request.answered or {}).get("text", "")
        shown = f'  "{" ".join(text.split())[:60]}..."' if text else ""
        return (
            f"{head} {request.bytes / 1e6:7.1f} MB in {request.transfer_seconds * 1e3:7.1f} ms"
            f", {request.tail_seconds * 1e3:6.1f} ms after the last send{shown}"
        )
    return f"{head} {request.state}: {request.reason}: {request.detail}"


def change_line(change: Change) -> str:
    return f"{change.row}: {change.from_state} -> {change.to_state}  ({change.cause})"


class PlainTimeline:
    """One line per event, with the seconds since the start."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start = time.monotonic()

    def show(self, router: Router) -> None:
        pass

    def _line(self, t: float, text: str) -> None:
        print(f"[{t - self._start:7.3f}] {text}", flush=True)

    def say(self, text: str) -> None:
        self._line(time.monotonic(), text)

    def change(self, change: Change) -> None:
        self._line(change.t, change_line(change))

    def request_ended(self, request: Request) -> None:
        self._line(request.ended, request_line(request))

    def refresh(self) -> None:
        pass

    def close(self) -> None:
        pass


class LiveTimeline:
    """A strip of coloured cells per session, the faults above, the requests below."""

    def __init__(self, console: Console, log: SessionLog) -> None:
        self._console = console
        self._log = log
        self._start = time.monotonic()
        self._router: Router | None = None
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()
        self._next_refresh = 0.0

    def show(self, router: Router) -> None:
        self._router = router

    def say(self, text: str) -> None:
        self._live.console.print(f"[bold]\\[{time.monotonic() - self._start:6.1f}][/] {text}")

    def change(self, change: Change) -> None:
        self.refresh()

    def request_ended(self, request: Request) -> None:
        colour = "green" if request.state == "done" else "red"
        self._live.console.print(Text(request_line(request), style=colour, overflow="ellipsis"))

    def refresh(self) -> None:
        now = time.monotonic()
        if now >= self._next_refresh:
            self._next_refresh = now + 0.1
            begin = max(self._start, now - self._width * _CELL)
            self._live.update(self._picture(begin, now, _CELL), refresh=True)

    def close(self) -> None:
        """Leaves a picture of the whole run."""
        now = time.monotonic()
        begin = self._log.changes[0].t if self._log.changes else self._start
        cell = max(_CELL, (now - begin) / self._width)
        self._live.update(self._picture(begin, now, cell), refresh=True)
        self._live.stop()

    @property
    def _width(self) -> int:
        return max(20, self._console.width - 20)

    def _picture(self, begin: float, end: float, cell: float) -> Group:
        count = min(self._width, int((end - begin) / cell) + 1)
        spans = [(begin + i * cell, begin + (i + 1) * cell) for i in range(count)]
        strips = [self._fault_strip(spans)]
        strips += [self._session_strip(row, spans) for row in _ROWS]
        legend = Text(" " * 19)
        for state, colour in _COLOURS.items():
            legend.append("█ ", colour).append(f"{state}  ")
        return Group(*strips, legend, self._request_row())

    def _session_strip(self, row: str, spans: list[tuple[float, float]]) -> Text:
        changes = [c for c in self._log.changes if c.row == row]
        strip = Text(f"{row:19}")
        for begin, end in spans:
            strip.append("█", _COLOURS.get(_worst(changes, begin, end), "grey15"))
        return strip

    def _fault_strip(self, spans: list[tuple[float, float]]) -> Text:
        strip = Text(f"{'faults':19}")
        for begin, end in spans:
            active = [
                f
                for f in self._log.faults
                if f.began < end and (not f.ended or f.ended >= begin)
            ]
            strip.append("▼", _FAULT_COLOURS[active[-1].kind]) if active else strip.append(" ")
        return strip

    def _request_row(self) -> Text:
        if self._router is None:
            return Text("")
        states = [r.state for r in self._router.requests.values()]
        parts = [f"{states.count(s)} {s}" for s in ("waiting", "transferring", "arrived", "done")]
        reasons = self._router.failures_by_reason()
        failed = [f"{n} failed: {reason}" for reason, n in reasons.items()]
        return Text(f"{'requests':19}" + ", ".join(parts + failed))


def _worst(changes: list[Change], begin: float, end: float) -> str:
    """The state furthest from healthy that a session was in between two moments."""
    order = ["", "healthy", "retired", "connecting", "probing", "suspect", "failed"]
    during = [""]
    for change in changes:
        if change.t >= end:
            break
        if change.t < begin:
            during = [change.to_state]
        else:
            during.append(change.to_state)
    return max(during, key=lambda state: order.index(state) if state in order else 0)
