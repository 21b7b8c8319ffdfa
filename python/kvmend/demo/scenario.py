"""What happens, in order: calm, a pause, a reset of every connection, a kill and a restart."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .cluster import Cluster, DemoError, Event
from .report import Check
from .router import Request, Router
from .sessions_log import Fault, SessionLog
from .timeline import Timeline
from .workload import Spec

PAUSE_SECONDS = 5.0
_PATIENCE = 60.0  # seconds that any one step may take


@dataclass
class Plan:
    """What a kind of demo needs to know."""

    workload: dict[str, Any]
    specs: list[Spec]
    check_answer: Callable[[Request], str]  # what is wrong with it, or ""
    answers_equal: str  # what the check says when nothing is
    concurrency: int = 4
    calm_requests: int = 8
    final_requests: int = 4
    every_prompt: bool = True  # each must have been answered at the end
    local: str = "auto"  # the engine's option: "off" takes TCP even on one host


@dataclass
class Scenario:
    """Straight-line code; `_until` lets the events in."""

    plan: Plan
    timeline: Timeline
    log: SessionLog
    checks: list[Check] = field(default_factory=list)
    retries: dict[str, int] = field(default_factory=dict)  # process -> frames sent again
    wrong: list[str] = field(default_factory=list)
    transports: set[str] = field(default_factory=set)  # that carried the pages

    def __post_init__(self) -> None:
        self.cluster = Cluster(self._on_event)
        self.router = Router(
            self.cluster, self.plan.specs, self.plan.concurrency, self._on_request_end
        )
        self._stopping = False
        self._last: dict[tuple[str, str], Event] = {}  # (who, event) -> the latest

    def run(self) -> None:
        """The whole demo; raises DemoError when it can't go on."""
        with self.cluster:
            try:
                self._start()
                self._calm()
                self._pause()
                self._reset()
                self._kill()
                self._finish()
                self._stop()
            except DemoError as error:
                raise DemoError(f"{error}\n{self.cluster.log_tails()}") from None

    # ------------------------------------------------------------------------------------ the steps

    def _start(self) -> None:
        self.timeline.say("starting a registry, a prefill and a decode process")
        self.cluster.start("registry", {"role": "registry"})
        self._await("registry", "ready")
        self.cluster.start("prefill", self._rank("prefill"))
        prefill = self._await("prefill", "ready")
        self.cluster.start("decode", self._rank("decode"))
        decode = self._await("decode", "ready")
        self.router.decode_session = decode["session_id"]
        self.timeline.say(f"prefill is {prefill['session_id']}, decode {decode['session_id']}")
        self.router.flowing = True

    def _calm(self) -> None:
        self._phase("calm", "requests flow")
        self._until(lambda: len(self.router.done) >= self.plan.calm_requests, "the first answers")

    def _pause(self) -> None:
        decode = self.cluster.processes["decode"]
        self._phase("pause", f"decode is stopped (SIGSTOP) for {PAUSE_SECONDS:.0f} s")
        fault = self._inject(Fault("pause", time.monotonic()))
        decode.popen.send_signal(signal.SIGSTOP)
        self._until(lambda: time.monotonic() >= fault.began + PAUSE_SECONDS, "the pause")
        decode.popen.send_signal(signal.SIGCONT)
        fault.ended = time.monotonic()
        self.timeline.say("decode goes on (SIGCONT)")
        self._until(lambda: self.log.measure(fault), "the session's recovery from the pause")
        self._check_unharmed("pause")

    def _reset(self) -> None:
        port = int(self.router.decode_session.rsplit(":", 1)[1])
        self._phase("reset", "every connection between prefill and decode is reset")
        fault = self._inject(Fault("reset", time.monotonic()))
        self.cluster.processes["prefill"].command("reset_connections", port=port)
        fault.ended = self._await("prefill", "was_reset")["t"]
        self._until(lambda: self.log.measure(fault), "the session's recovery from the reset")
        count = self._last["prefill", "was_reset"]["count"]
        self._check("connections were reset", count > 0, f"{count} of them")
        self._check_unharmed("reset")

    def _kill(self) -> None:
        port = int(self.router.decode_session.rsplit(":", 1)[1])
        self._phase("kill", "decode is killed (SIGKILL) and started again on the same port")
        self.router.flowing = False
        fault = self._inject(Fault("kill", 0.0))
        old = self._last["decode", "listening"]["incarnation"]
        fault.began = self.cluster.kill("decode")
        self.log.on_decode_killed(fault.began)
        self.router.decode_died()
        self.retries["the decode that was killed"] = self.retries.pop("decode", 0)
        victims = self.router.in_flight
        self.cluster.start("decode", self._rank("decode", port=port))
        self._await("decode", "ready")
        new = self._last["decode", "listening"]
        fault.ended = new["t"]
        if new["incarnation"] != old:
            self.router.decode_restarted()
        self.timeline.say("the new decode process has registered")
        self._until(lambda: all(v.is_over for v in victims), "the end of the requests in flight")
        victims = [v for v in victims if v.state != "withdrawn"]  # they hadn't begun
        restarted = [v for v in victims if v.reason == "peer_restarted"]
        self._check(
            "requests in flight at the kill",
            bool(victims) and len(restarted) == len(victims),
            f"{len(restarted)} of {len(victims)} ended with peer_restarted",
        )
        self._check_canary("nothing stale landed in the new process", untouched=True)
        self._phase("after", "requests flow again, those that failed first")
        self.router.try_again(self.router.failed + self.router.withdrawn)
        self.router.flowing = True
        self._until(lambda: self.log.measure(fault), "the session with the new process")

    def _finish(self) -> None:
        def enough() -> bool:
            after = [r for r in self.router.done if r.phases == ["after"]]
            answered = {r.spec.name for r in self.router.done}
            missing = self.plan.every_prompt and len(answered) < len(self.plan.specs)
            return len(after) >= self.plan.final_requests and not missing

        self._until(enough, "answers after the restart", patience=4 * _PATIENCE)
        self.router.flowing = False
        self._until(lambda: not self.router.in_flight, "the last answers")
        after = [r for r in self.router.requests.values() if r.phases == ["after"]]
        good = [r for r in after if r.state == "done"]
        self._check(
            "new requests after the restart",
            len(good) == len(after),
            f"{len(good)} of {len(after)} answered",
        )
        self._check_canary("no page outside the grants was written", untouched=False)
        done = len(self.router.done)
        self._check(
            "answers",
            not self.wrong and done > 0,
            "; ".join(self.wrong) or f"{done} of {done} {self.plan.answers_equal}",
        )

    def _stop(self) -> None:
        self._stopping = True
        statuses = self.cluster.stop_all(grace=15.0)
        bad = {name: status for name, status in statuses.items() if status}
        self._check(
            "clean end", not bad, f"exit statuses {bad}" if bad else "every process ended by itself"
        )

    # ---------------------------------------------------------------------------------- the helpers

    def _rank(self, role: str, port: int = 0) -> dict[str, Any]:
        registry = self._last["registry", "ready"]["address"]
        return {
            "role": role,
            "port": port,
            "registry": registry,
            "workload": self.plan.workload,
            "local": self.plan.local,
        }

    def _phase(self, name: str, text: str) -> None:
        if name in ("pause", "reset", "kill"):
            # A fault is to hit pages that are on their way.
            self._until(self.router.transferring, f"pages on their way, for the {name}")
        self.timeline.say(f"--- {name}: {text}")
        self.router.begin_phase(name)

    def _inject(self, fault: Fault) -> Fault:
        self.log.faults.append(fault)
        return fault

    def _check(self, name: str, ok: bool, detail: str) -> None:
        self.checks.append(Check(name, ok, detail))
        self.timeline.say(f"{'ok' if ok else 'FAILED'}: {name}: {detail}")

    def _check_unharmed(self, phase: str) -> None:
        """Every request that was in flight during a phase must end well."""
        touched = [r for r in self.router.requests.values() if phase in r.phases]
        self._until(lambda: all(r.is_over for r in touched), f"the requests of the {phase}")
        failed = [f"room {r.room}: {r.reason}" for r in touched if r.state != "done"]
        self._check(
            f"requests during the {phase}",
            not failed,
            "; ".join(failed) or f"{len(touched)} of {len(touched)} answered",
        )

    def _check_canary(self, name: str, untouched: bool) -> None:
        self.cluster.processes["decode"].command("check_canary")
        found = self._await("decode", "canary")
        broken, unused, pages = found["broken"], found["never_used"], found["pages"]
        self._check(
            name,
            not broken and (unused == pages or not untouched),
            f"pages {broken[:20]} were written"
            if broken
            else f"{unused} of {pages} pages were never granted and are as they were",
        )

    def _await(self, who: str, event: str) -> Event:
        """The next event of that kind."""
        self._last.pop((who, event), None)
        self._until(lambda: (who, event) in self._last, f"{event} of {who}", refill=False)
        return self._last[who, event]

    def _until(
        self,
        condition: Callable[[], bool],
        what: str,
        patience: float = _PATIENCE,
        refill: bool = True,
    ) -> None:
        deadline = time.monotonic() + patience
        while not condition():
            if time.monotonic() > deadline:
                raise DemoError(f"gave up after {patience:.0f} s of waiting for {what}")
            if refill:
                self.router.refill()
            self.cluster.pump(0.02)
            self.timeline.refresh()

    def _on_event(self, event: Event) -> None:
        self._last[event["who"], event["event"]] = event
        if event["event"] == "exited" and not self._stopping:
            raise DemoError(f"the process '{event['who']}' has ended unexpectedly")
        if event["event"] == "sample":
            self.retries[event["who"]] = event["retries"]
            if event["who"] == "prefill" and event["transport"] not in ("", "none"):
                self.transports.add(event["transport"])
        change = self.log.on_event(event)
        if change is not None:
            self.timeline.change(change)
        self.router.on_event(event)

    def _on_request_end(self, request: Request) -> None:
        if request.state == "done":
            wrong = self.plan.check_answer(request)
            if wrong:
                self.wrong.append(f"room {request.room} ({request.spec.name}): {wrong}")
        self.timeline.request_ended(request)
