"""Command line of the demo."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from .cluster import DemoError
from .model import NoModel
from .plans import model_plan, synthetic_plan
from .report import numbers, print_tables
from .scenario import Scenario
from .sessions_log import SessionLog
from .timeline import make_timeline


def main(argv: list[str] | None = None) -> int:
    """0: everything that the demo shows was so. 1: a check failed. 2: it couldn't be run."""
    args = _parse(argv)
    if args.json and (problem := _unwritable(Path(args.json))):
        print(f"demo: --json {args.json}: {problem}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGHUP, _leave)
    started = time.monotonic()
    log = SessionLog()
    timeline = make_timeline(log)
    failure = ""
    scenario = None
    try:
        plan = synthetic_plan(args.quick) if args.synthetic else model_plan(timeline, args.quick)
        plan.local = "off" if args.tcp else "auto"
        scenario = Scenario(plan, timeline, log)
        timeline.show(scenario.router)
        scenario.run()
    except NoModel as error:
        timeline.close()
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except DemoError as error:
        failure = str(error)
    except KeyboardInterrupt:
        timeline.close()
        print("interrupted; every process has been ended", file=sys.stderr)
        return 130
    timeline.close()
    if scenario is None:
        print(f"demo: {failure}", file=sys.stderr)
        return 1
    mode = ("synthetic" if args.synthetic else "model") + (", quick" if args.quick else "")
    report = numbers(mode, scenario, time.monotonic() - started)
    report["ok"] = report["ok"] and not failure
    report["error"] = failure
    print_tables(Console(), report)
    if args.json:
        try:
            Path(args.json).write_text(json.dumps(report, indent=2) + "\n")
        except OSError as error:
            failure = failure or f"--json {args.json}: {error.strerror}"
            report["ok"] = False
    if failure:
        print(f"demo: {failure}", file=sys.stderr)
    print("the demo passed" if report["ok"] else "THE DEMO FAILED")
    return 0 if report["ok"] else 1


def _unwritable(path: Path) -> str:
    """Why the file can't be written, or ""; asked before the minutes that fill it."""
    there = path.exists()
    try:
        with path.open("ab"):
            pass
        if not there:
            path.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _leave(number: int, _: object) -> NoReturn:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="kvmend.demo",
        description="Move a real model's KV cache between two processes, and pause, cut and kill "
        "them while it moves. Exit status: 0 when every check held, 1 when one failed.",
    )
    add = parser.add_argument
    add("--synthetic", action="store_true", help="made-up pages of Llama-3-8B's size, no model")
    add("--quick", action="store_true", help="less of everything")
    add("--tcp", action="store_true", help="don't copy straight from memory to memory on one host")
    add("--json", metavar="FILE", help="also write the table as JSON")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
