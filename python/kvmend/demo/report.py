"""The table at the end, and the same numbers for `--json`; docs/demo.md explains them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from .router import Request

if TYPE_CHECKING:
    from .scenario import Scenario


@dataclass(frozen=True)
class Check:
    """Something that the demo proves, or fails to."""

    name: str
    ok: bool
    detail: str


def numbers(mode: str, scenario: Scenario, seconds: float) -> dict[str, Any]:
    """What `--json` writes."""
    router, log, checks = scenario.router, scenario.log, scenario.checks
    calm = [r for r in router.done if r.phases == ["calm"]]
    return {
        "mode": mode,
        "ok": all(check.ok for check in checks),
        "seconds": round(seconds, 3),
        "requests": {
            "total": len(router.requests),
            "done": len(router.done),
            "failed": len(router.failed),
            "withdrawn": len(router.withdrawn),
            "in_flight": len(router.in_flight),
        },
        "failures": router.failures_by_reason(),
        "bytes": sum(r.bytes for r in router.done),
        "gb_per_s": round(_gb_per_second(calm), 3),
        "tail_ms": _percentiles([r.tail_seconds for r in calm]),
        "tail_ms_with_faults": _percentiles([r.tail_seconds for r in router.done]),
        "transfer_ms": _percentiles([r.transfer_seconds for r in calm]),
        "retries": sum(scenario.retries.values()),
        "transports": sorted(scenario.transports),
        "faults": [
            {
                "kind": f.kind,
                "detect_s": _rounded(f.detect_seconds),
                "usable_s": _rounded(f.usable_seconds),
                "recover_s": _rounded(f.recover_seconds),
            }
            for f in log.faults
        ],
        "checks": [{"name": c.name, "ok": c.ok, "detail": c.detail} for c in checks],
    }


def print_tables(console: Console, report: dict[str, Any]) -> None:
    """The end of the demo for people."""
    table = Table(title=f"kvmend demo: {report['mode']}", title_justify="left")
    table.add_column("what")
    table.add_column("value", justify="right")
    requests = report["requests"]
    table.add_row("requests", f"{requests['total']}")
    table.add_row("  answered", f"{requests['done']}")
    for reason, count in report["failures"].items():
        table.add_row(f"  failed: {reason}", f"{count}")
    if requests["withdrawn"]:
        table.add_row("  withdrawn before they began", f"{requests['withdrawn']}")
    table.add_row("bytes moved", f"{report['bytes'] / 1e9:.3f} GB")
    computing = ", while prefill computes" if report["mode"].startswith("model") else ""
    table.add_row(f"GB/s, calm{computing}", f"{report['gb_per_s']:.2f}")
    for key, name in (
        ("transfer_ms", "transfer, calm"),
        ("tail_ms", "last send to success, calm"),
        ("tail_ms_with_faults", "last send to success, all"),
    ):
        p = report[key]
        table.add_row(f"{name}: p50 / p99", f"{p['p50']:.1f} / {p['p99']:.1f} ms")
    table.add_row("transport", ", ".join(report["transports"]))
    table.add_row("retries (frames sent again)", f"{report['retries']}")
    for fault in report["faults"]:
        table.add_row(f"{fault['kind']}: time to detect", _seconds(fault["detect_s"]))
        table.add_row(f"{fault['kind']}: until requests flow again", _seconds(fault["usable_s"]))
        table.add_row(f"{fault['kind']}: time to recover", _seconds(fault["recover_s"]))
    console.print(table)
    for check in report["checks"]:
        mark = "[green]ok    [/]" if check["ok"] else "[bold red]FAILED[/]"
        console.print(f"{mark} {check['name']}: {check['detail']}", soft_wrap=True)


def _gb_per_second(requests: list[Request]) -> float:
    """Bytes over the time in which at least one of these requests was on its way."""
    spans = sorted((r.transfer_ended - r.transfer_seconds, r.transfer_ended) for r in requests)
    busy, until = 0.0, 0.0
    for begin, end in spans:
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return sum(r.bytes for r in requests) / busy / 1e9 if busy else 0.0


def _percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    if not ordered:
        return {"p50": 0.0, "p99": 0.0}

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e3, 3)

    return {"p50": at(0.50), "p99": at(0.99)}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value * 1e3:.1f} ms"
