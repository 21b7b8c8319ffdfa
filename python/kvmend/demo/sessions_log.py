"""Every change of every session's state, in time; how long faults took to be seen and mended."""

from __future__ import annotations

from dataclasses import dataclass

from .cluster import Event


@dataclass(frozen=True)
class Change:
    """One session went from one state to another."""

    t: float
    row: str  # "prefill -> decode"
    from_state: str
    to_state: str
    cause: str


@dataclass
class Fault:
    """One injected fault. Times are moments on the monotonic clock; 0: not (yet)."""

    kind: str  # "pause", "reset", "kill"
    began: float
    ended: float = 0.0  # when the cause was gone
    detected: float = 0.0  # when the session left "healthy"
    usable: float = 0.0  # when it took requests again, if only on trial, after the cause was gone
    recovered: float = 0.0  # when it was "healthy" again, after the cause was gone

    @property
    def detect_seconds(self) -> float | None:
        return max(0.0, self.detected - self.began) if self.detected else None

    @property
    def usable_seconds(self) -> float | None:
        return max(0.0, self.usable - self.ended) if self.usable else None

    @property
    def recover_seconds(self) -> float | None:
        return max(0.0, self.recovered - self.ended) if self.recovered else None


class SessionLog:
    """Changes in order of arrival, and the faults measured by the session that carries pages."""

    PAGES = "prefill -> decode"

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.states: dict[str, str] = {}  # row -> state
        self.faults: list[Fault] = []

    def on_event(self, event: Event) -> Change | None:
        if event["event"] != "session":
            return None
        row = "prefill -> decode" if event["who"] == "prefill" else "decode -> prefill"
        change = Change(event["t"], row, event["from_state"], event["to_state"], event["cause"])
        self.changes.append(change)
        self.states[row] = change.to_state
        return change

    def on_decode_killed(self, t: float) -> None:
        """The dead process tells no more changes of its session."""
        row = "decode -> prefill"
        self.changes.append(Change(t, row, self.states.get(row, ""), "retired", "it was killed"))

    def measure(self, fault: Fault) -> bool:
        """Fills in detection and recovery from the changes; True once both are known."""
        states = [c for c in self.changes if c.row == self.PAGES and c.t >= fault.began - 0.001]
        for change in states:
            if change.to_state != "healthy" and not fault.detected:
                fault.detected = change.t
            mended = fault.detected and fault.ended and change.t >= fault.ended - 0.001
            if change.to_state in ("healthy", "probing") and mended and not fault.usable:
                fault.usable = change.t
            if change.to_state == "healthy" and mended and not fault.recovered:
                fault.recovered = change.t
        return bool(fault.detected and fault.recovered)
