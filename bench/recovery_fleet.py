"""A load and the target processes it writes to, broken by recovery.py; what its records say."""

from __future__ import annotations

import signal
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from recovery_lab import Lab, Peer

OK, PEER_RESTARTED = 0, 10
RECORD = struct.Struct("<ddII")
BASE = 0x5_0000_0000_00  # every target's pools lie here, in each of its lives
STRIDE = 1 << 32


@dataclass
class Group:
    """One target process: its engines share its fate."""

    number: int
    ports: list[int]
    sessions: list[int]  # as the load numbers them
    peer: Peer


@dataclass
class Outage:
    """One fault of some sessions. Times are CLOCK_MONOTONIC."""

    fault: str
    seconds: float
    sessions: list[int]
    start: float  # just before it was begun
    placed: float = 0  # it was in force everywhere
    end: float = 0  # just before it was taken away
    settled: float = 0  # its requests are counted from `start` until here
    detected: dict[int, float] = field(default_factory=dict)  # session -> seconds after `start`
    false_recoveries: int = 0
    stale_bytes: int = 0
    gone: float = 0  # seconds until the kernel had done away with a killed process


@dataclass
class Records:
    """Requests by session, in the order of their ends: (submitted, done, code)."""

    by_session: dict[int, list[tuple[float, float, int]]]
    settled: bool


class Fleet:
    """Several groups of targets and one load that writes to all of them without pause."""

    def __init__(self, lab: Lab, groups: int, engines: int, *, period_ms: float = 20,
                 deadline_s: float = 30, extra: Sequence[str] = ()) -> None:
        self.lab = lab
        self.deadline_s = deadline_s
        self.extra = list(extra)
        self.outages: list[Outage] = []
        self._log = lab.folder / f"load-{time.monotonic_ns()}.bin"
        self.load = lab.start("load", "a", "--log", str(self._log), "--period-ms", str(period_ms),
                              "--deadline", str(deadline_s))
        self.load.expect("ready")
        self.groups: list[Group] = []
        self.names: list[str] = []
        for number in range(groups):
            ports = lab.ports(engines)
            first = len(self.names)
            peer = self._target(number, ports)
            for engine in peer.expect("ready", 60)["engines"]:
                self.names.append(engine["session"])
                self.load.ask(f"add {engine['session']} {engine['base']}", "added")
            self.groups.append(Group(number, ports, list(range(first, len(self.names))), peer))

    def _target(self, number: int, ports: list[int]) -> Peer:
        return self.lab.start("target", "b", "--ports", ",".join(map(str, ports)),
                              "--base", str(BASE + number * STRIDE), *self.extra)

    # ---- faults

    def begin(self, fault: str, groups: Sequence[Group], seconds: float) -> Outage:
        """Breaks these groups; `end` mends them."""
        ports = [port for group in groups for port in group.ports]
        if fault == "stop":
            start = min(group.peer.signal(signal.SIGSTOP) for group in groups)
        else:
            lab = self.lab
            faults: dict[str, Callable[[Sequence[int]], float]] = {
                "blackhole": lab.cut, "data_dead": lab.deafen, "flap": lab.refuse,
                "reset": lab.reset}
            start = faults[fault](ports)
        sessions = [session for group in groups for session in group.sessions]
        return Outage(fault, seconds, sessions, start, placed=time.monotonic())

    def end(self, outage: Outage, groups: Sequence[Group]) -> None:
        """The fault ends now."""
        ports = [port for group in groups for port in group.ports]
        if outage.fault == "stop":
            outage.end = min(group.peer.signal(signal.SIGCONT) for group in groups)
        elif outage.fault == "reset":
            outage.end = outage.start
        else:
            lab = self.lab
            mends: dict[str, Callable[[Sequence[int]], float]] = {
                "blackhole": lab.uncut, "data_dead": lab.undeafen, "flap": lab.unrefuse}
            outage.end = mends[outage.fault](ports)

    def settle(self, outages: Sequence[Outage], seconds: float) -> None:
        """Lets the sessions recover and asks the load what they went through."""
        time.sleep(seconds)
        steps = self.steps()
        for outage in outages:
            outage.settled = time.monotonic()
            self.study(outage, steps)
            self.outages.append(outage)

    def steps(self) -> dict[int, list[tuple[float, str, str, str]]]:
        """The transitions of every session: (when, from, to, cause)."""
        info = self.load.ask("info", "info")
        number = {name: i for i, name in enumerate(self.names)}
        return {number[one["session"]]: [tuple(step) for step in one["history"]]
                for one in info["sessions"] if one["session"] in number}

    @staticmethod
    def study(outage: Outage, steps: dict[int, list[Any]]) -> None:
        """Detection and false recoveries of one outage."""
        for session in outage.sessions:
            for at, before, after, _ in sorted(steps.get(session, [])):
                if at < outage.start - 0.002:
                    continue
                if session not in outage.detected and after in ("suspect", "failed"):
                    outage.detected[session] = max(0.0, at - outage.start)
                if before in ("failed", "probing") and after in ("probing", "healthy") \
                        and outage.placed < at < outage.end:
                    outage.false_recoveries += 1

    # ---- death

    def kill_and_restart(self, group: Group, pause: float, hold: float) -> Outage:
        """SIGKILL, then the same ports and addresses again while the old plan's writes go on."""
        start = group.peer.kill()
        gone = time.monotonic()
        outage = Outage("kill", pause, group.sessions, start, placed=gone, gone=gone - start)
        time.sleep(pause)
        old, group.peer = group.peer, self._target(group.number, group.ports)
        outage.end = group.peer.expect("ready", 60)["t"]
        time.sleep(hold)
        self.study(outage, self.steps())
        outage.stale_bytes = group.peer.ask("stale", "stale")["bytes"]
        old.close()  # lets a forked child go
        outage.end = time.monotonic()
        for session in group.sessions:
            if not self.load.ask(f"reopen {self.names[session]}", "reopened")["ok"]:
                raise RuntimeError(f"{self.names[session]} can't be opened again")
        time.sleep(0.2)
        outage.settled = time.monotonic()
        self.outages.append(outage)
        return outage

    # ---- results

    def finish(self) -> Records:
        """Ends the load (every request comes to its end first) and the targets."""
        done = self.load.ask("finish", "finished", self.deadline_s + 20)
        by_session: dict[int, list[tuple[float, float, int]]] = defaultdict(list)
        for submitted, ended, session, code in RECORD.iter_unpack(self._log.read_bytes()):
            by_session[session].append((submitted, ended, code))
        self._log.unlink()
        for group in self.groups:
            group.peer.close()
        self.load.close()
        return Records(by_session, bool(done["settled"]))


def recovered_after(outage: Outage, records: Records) -> list[float]:
    """Per session, seconds from the fault's end to the first completed request; inf: never."""
    result = []
    for session in outage.sessions:
        # A connection that hadn't been killed yet may still complete something.
        noticed = outage.start + outage.detected.get(session, 0.0)
        after = max(outage.end, noticed)
        times = [done for _, done, code in records.by_session[session]
                 if code == OK and after <= done <= outage.settled]
        result.append(min(times) - outage.end if times else float("inf"))
    return result
