"""The two kinds of demo: what is moved, how much, and how an answer is checked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from . import synthetic
from .cluster import Cluster, DemoError, Event
from .model import NoModel
from .router import Request
from .scenario import Plan
from .workload import Spec

if TYPE_CHECKING:
    from .timeline import Timeline


def synthetic_plan(quick: bool) -> Plan:
    """Pages of a known content; both sides' checksums must be the same."""

    def check(request: Request) -> str:
        if request.computed == request.answered:
            return ""
        return f"prefill has {request.computed}, decode {request.answered}"

    return Plan(
        workload={"kind": "synthetic", "pool_pages": 80 if quick else 160},
        specs=synthetic.specs(quick),
        check_answer=check,
        answers_equal="have the same checksums on both sides",
        calm_requests=12 if quick else 24,
        final_requests=8 if quick else 16,
    )


def model_plan(timeline: Timeline, quick: bool) -> Plan:
    """The real model; first, another process tells what it alone answers to each prompt."""
    specs: list[Spec] = []
    expected: dict[str, list[int]] = {}
    ended: list[Event] = []
    started = time.monotonic()

    def on_event(event: Event) -> None:
        if event["event"] == "expected":
            spec = Spec(**event["spec"])
            specs.append(spec)
            expected[spec.name] = event["tokens"]
            timeline.say(f"  {spec.name}: {spec.tokens} tokens, answered with "
                         f"{len(event['tokens'])}")  # fmt: skip
        elif event["event"] == "no_model":
            raise NoModel(event["detail"])
        elif event["event"] in ("ready", "exited"):
            ended.append(event)

    timeline.say("what one process alone answers (loading the model first):")
    with Cluster(on_event) as cluster:
        cluster.start("reference", {"role": "reference", "prompts": 6 if quick else 99})
        while not ended:
            cluster.pump(0.1)
            timeline.refresh()
        if ended[0]["event"] == "exited":
            raise DemoError(f"the reference process has ended\n{cluster.log_tails()}")
        cluster.stop("reference", grace=5.0)
    timeline.say(f"{len(specs)} answers in {time.monotonic() - started:.1f} s")

    def check(request: Request) -> str:
        tokens = (request.answered or {}).get("tokens")
        if tokens == expected[request.spec.name]:
            return ""
        return f"one process alone: {expected[request.spec.name]}, here: {tokens}"

    return Plan(
        workload={"kind": "model", "pool_pages": 256},
        specs=specs,
        check_answer=check,
        answers_equal="equal what one process alone writes, token for token",
        concurrency=4,
        calm_requests=4,
        final_requests=3,
    )
