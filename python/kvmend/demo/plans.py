"""The two kinds of demo: what is moved, how much, and how an answer is checked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from . import model, synthetic
from .router import Request
from .scenario import Plan

if TYPE_CHECKING:
    from .timeline import Timeline


def synthetic_plan(quick: bool) -> Plan:
    """Pages of a known content; both sides' checksums must be the same."""

    def check(request: Request) -> str:
        if request.computed == request.answered:
            return ""
        return f"prefill has {request.computed}, decode {request.answered}"

    return Plan(
        workload={"kind": "synthetic", "pool_pages": 64 if quick else 192},
        specs=synthetic.specs(quick),
        check_answer=check,
        answers_equal="have the same checksums on both sides",
        calm_requests=12 if quick else 24,
        final_requests=8 if quick else 16,
    )


def model_plan(timeline: Timeline, quick: bool) -> Plan:
    """The real model; first, what one process alone answers to each prompt."""
    specs = model.specs()
    if quick:
        specs = specs[:6]
    started = time.monotonic()
    timeline.say(f"what one process alone answers to {len(specs)} prompts:")
    expected = {}
    for spec in specs:
        expected[spec.name] = model.reference(spec)
        timeline.say(f"  {spec.name}: {spec.tokens} tokens -> {len(expected[spec.name])} tokens")
    timeline.say(f"that took {time.monotonic() - started:.1f} s")

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
