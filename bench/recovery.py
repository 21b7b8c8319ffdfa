"""./dev bench recovery: real processes, broken in real ways; what was lost, seen and healed.

One load writes 4 KiB to every target engine every few milliseconds while processes are stopped and
killed and the network between two namespaces is cut. Every figure is per session: `detect_s` is the
slowest 1 % from the fault's beginning to its blacklisting (or to the strike that a reset is),
`recover_*` run from just before the fault is taken away to the first completed request.
"""

from __future__ import annotations

import math
import mmap
import os
import random
import statistics
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recovery_fleet import OK, PEER_RESTARTED, Fleet, Group, Outage, Records, recovered_after
from recovery_lab import Lab
from recovery_plot import Timeline, draw
from rich.console import Console
from rich.table import Table

Row = dict[str, Any]


@dataclass
class Plan:
    """How long and how often."""

    quick: bool
    rounds: int
    groups: int
    engines: int
    period_ms: float
    stop_s: float
    settle_s: float
    apart_s: float
    flaps: int
    restarts: int
    kv_engines: int
    deaths: int


QUICK = Plan(True, 3, 8, 6, 40, 3.0, 1.2, 0.3, 6, 5, 8, 2)
FULL = Plan(False, 5, 10, 20, 50, 10.0, 3.0, 1.5, 12, 50, 20, 10)
LONG_S = 45.0  # a stop and a black hole of this length, in full runs only


@dataclass
class Bench:
    """What the scenarios share."""

    lab: Lab
    plan: Plan
    console: Console
    rows: list[Row] = field(default_factory=list)
    timelines: list[Timeline] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Keeps a row and shows that it is there."""
        self.rows.append(row)
        p99 = row.get("recover_p99_s")
        self.console.print(f"  {row['fault']} {row['outage_s']:g} s: "
                           f"{row['failed_requests']} of {row['requests']} failed"
                           + (f", recover p99 {p99 * 1e3:.0f} ms" if p99 is not None else ""))


def percentile(values: Sequence[float], share: float) -> float | None:
    """Smallest value that at least `share` of the values don't exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered), math.ceil(share * len(ordered))) - 1]


def finite(value: float | None, digits: int = 4) -> float | None:
    """JSON knows no infinity: -1 is "never"."""
    if value is None:
        return None
    return -1.0 if math.isinf(value) else round(value, digits)


def row_of(outages: Sequence[Outage], records: Records, deadline_s: float, note: str) -> Row:
    """One line of the table from all outages of a kind."""
    recover = [one for outage in outages for one in recovered_after(outage, records)]
    detect = [one for outage in outages for one in outage.detected.values()]
    requests = failed = ended_by_restart = 0
    for outage in outages:
        for session in outage.sessions:
            for submitted, _, code in records.by_session[session]:
                if outage.start - 1 <= submitted <= outage.settled:
                    requests += 1
                    ended_by_restart += code == PEER_RESTARTED
                    failed += code not in (OK, PEER_RESTARTED)
    row = {
        "fault": outages[0].fault, "outage_s": outages[0].seconds, "requests": requests,
        "failed_requests": failed, "detect_s": finite(percentile(detect, 0.99)),
        "detect_p50_s": finite(percentile(detect, 0.5)),
        "recover_p50_s": finite(percentile(recover, 0.5)),
        "recover_p99_s": finite(percentile(recover, 0.99)),
        "recover_max_s": finite(max(recover)),
        "false_recoveries": sum(o.false_recoveries for o in outages),
        "stale_bytes": sum(o.stale_bytes for o in outages), "samples": len(recover),
        "noticed": len(detect), "ended_by_restart": ended_by_restart, "deadline_s": deadline_s,
        "note": note,
    }
    if outages[0].gone:
        row["process_gone_s"] = finite(percentile([o.gone for o in outages], 0.99))
        row["process_gone_p50_s"] = finite(percentile([o.gone for o in outages], 0.5))
    return row


def timeline_of(title: str, outage: Outage, records: Records, outages: Sequence[Outage],
                margin: float = 2.0) -> Timeline:
    """The picture of one outage of a kind (of all of them, for flapping)."""
    left = outage.start - margin
    right = max(o.settled for o in outages)
    done = [at - left for session in outage.sessions
            for _, at, code in records.by_session[session] if code == OK and left <= at <= right]
    return Timeline(title, done, [(o.start - left, o.end - left) for o in outages], right - left)


def summarize(bench: Bench, fleet: Fleet, deadline_s: float, note: str = "") -> None:
    """Ends the fleet and turns its outages into rows and pictures."""
    records = fleet.finish()
    kinds: dict[tuple[str, float], list[Outage]] = {}
    for outage in fleet.outages:
        kinds.setdefault((outage.fault, outage.seconds), []).append(outage)
    for (fault, seconds), outages in kinds.items():
        size = f"{len(outages)} outages"
        bench.add(row_of(outages, records, deadline_s, f"{size}; {note}" if note else size))
        shown = outages if fault == "flap" else outages[-1:]
        length = f", {seconds:g} s" if seconds >= 1 else ""
        title = f"{fault}{length}"
        if all(known.title != title for known in bench.timelines):
            bench.timelines.append(timeline_of(title, shown[0], records, shown))
    inside = sum(row["failed_requests"] for row in bench.rows[-len(kinds):])
    everywhere = sum(code not in (OK, PEER_RESTARTED) for of_one in records.by_session.values()
                     for _, _, code in of_one)
    if everywhere > inside or not records.settled:
        bench.console.print(f"  [red]{everywhere - inside} requests failed outside of the faults; "
                            f"settled: {records.settled}")


# ------------------------------------------------------------------------------------- scenarios

def break_together(bench: Bench, fleet: Fleet, faults: Sequence[tuple[str, list[Group]]],
                   seconds: float) -> None:
    """Begins these faults at once and ends them one after the other; the rest stays healthy."""
    begun = []
    for fault, groups in faults:
        begun.append((fleet.begin(fault, groups, 0.0 if fault == "reset" else seconds), groups))
    time.sleep(seconds)
    for outage, groups in begun:
        fleet.end(outage, groups)
        time.sleep(bench.plan.apart_s)  # each kind recovers by itself
    fleet.settle([outage for outage, _ in begun], bench.plan.settle_s)


def broken_fleet(bench: Bench, seconds: float, deadline: float,
                 faults: Sequence[tuple[str, int]]) -> None:
    """`rounds` times these faults of so many groups each; the groups take turns."""
    plan = bench.plan
    fleet = Fleet(bench.lab, plan.groups, plan.engines, period_ms=plan.period_ms,
                  deadline_s=deadline)
    time.sleep(0.5)
    next_group = 0
    for _ in range(plan.rounds):
        chosen = []
        for fault, count in faults:
            groups = [fleet.groups[(next_group + i) % len(fleet.groups)] for i in range(count)]
            chosen.append((fault, groups))
            next_group += count
        break_together(bench, fleet, chosen, seconds)
    summarize(bench, fleet, deadline, "short outages (--quick)" if plan.quick else "")


def outages(bench: Bench) -> None:
    """stop, blackhole, data_dead, reset: never more than half of the peers at a time."""
    kinds = ("stop", "blackhole", "data_dead", "reset")
    if bench.plan.quick:
        broken_fleet(bench, bench.plan.stop_s, 30.0, [(kind, 1) for kind in kinds])
    else:
        broken_fleet(bench, bench.plan.stop_s, 30.0,
                     [(kind, 2) for kind in ("stop", "data_dead", "reset")])


def long_outages(bench: Bench) -> None:
    """A stop and a black hole of 45 s."""
    broken_fleet(bench, LONG_S, 60.0, [("stop", 2), ("blackhole", 2)])


def blips(bench: Bench) -> None:
    """Stops shorter than the progress deadline: nobody is blacklisted, nothing may be lost."""
    fleet = Fleet(bench.lab, 3, 20, period_ms=20)
    time.sleep(0.5)
    for r in range(12):
        break_together(bench, fleet, [("stop", [fleet.groups[r % 3]])], 0.5)
    summarize(bench, fleet, 30.0)


def flap(bench: Bench) -> None:
    """Refused, open, refused, ...: every request survives."""
    plan = bench.plan
    fleet = Fleet(bench.lab, 3, 6 if plan.quick else 20, period_ms=plan.period_ms)
    time.sleep(0.5)
    done = []
    for _ in range(plan.flaps):
        outage = fleet.begin("flap", [fleet.groups[0]], 0.3)
        time.sleep(0.3)
        fleet.end(outage, [fleet.groups[0]])
        fleet.settle([outage], 0.5)
        done.append(outage)
    time.sleep(0.5)
    summarize(bench, fleet, 30.0, "every packet reset for 0.3 s, then 0.5 s of peace")


def deaths(bench: Bench) -> None:
    """How soon a death is noticed, and that a restarted process gets nothing of the old plan."""
    kinds: list[tuple[str, list[str]]] = [
        ("64 KiB registered", []),
        ("1 GiB registered, living forked child", ["--registered-mib", "1024", "--fork-child"]),
        ("1 GiB registered", ["--registered-mib", "1024"]),
        ("1 GiB registered in huge pages", ["--registered-mib", "1024", "--huge-pages"]),
    ]
    for note, extra in kinds[:2] if bench.plan.quick else kinds:
        # Two groups whose pools need no further memory would be as good: one is hit at a time.
        fleet = Fleet(bench.lab, 2, 4 if bench.plan.quick else 20,
                      period_ms=10 if bench.plan.quick else 25, extra=extra)
        time.sleep(0.3)
        for r in range(bench.plan.deaths):
            fleet.kill_and_restart(fleet.groups[r % 2], 0.2, 0.5)
        time.sleep(0.3)
        summarize(bench, fleet, 30.0, f"raw engine; {note}; the old plan goes on for 0.5 s "
                  "against the new process, recover is from the user's open_session")


ENTRY = struct.Struct("<QddII")
PLACE_HEAD, ENTRIES = 64, 1 << 15
PLACE = PLACE_HEAD + ENTRIES * ENTRY.size


def read_board(path: Path, engines: int) -> tuple[list[list[tuple[int, float, float, int, int]]],
                                                   int, int]:
    """Rooms that decode saw end, by engine; stale bytes and watched sets of aborted rooms."""
    rooms, stale, watched = [], 0, 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as board:
        for i in range(engines):
            _, count, bad, sets = struct.unpack_from("<QQQQ", board, i * PLACE)
            stale += bad
            watched += sets
            start = i * PLACE + PLACE_HEAD
            rooms.append([ENTRY.unpack_from(board, start + k * ENTRY.size)
                          for k in range(min(count, ENTRIES))])
    return rooms, stale, watched


def restarts(bench: Bench) -> None:
    """Decode is killed and comes back on the same ports, through the KV manager."""
    plan, lab = bench.plan, bench.lab
    engines = plan.kv_engines
    board = lab.folder / "board"
    prefill = lab.start("prefill", "a", "--board", str(board), "--engines", str(engines))
    session = prefill.expect("ready")["session"]
    ports = ",".join(map(str, lab.ports(engines)))

    def decode(generation: int, aborts: int) -> Any:
        return lab.start("decode", "b", "--ports", ports, "--prefill", session, "--board",
                         str(board), "--generation", str(generation), "--base", str(BASE_KV),
                         "--period-ms", "3", "--abort-percent", str(aborts))

    peer = decode(0, 20)
    peer.expect("ready")
    time.sleep(1.0)
    lives = []
    elsewhere = 0
    pause, life = 0.2, 0.6
    for generation in range(1, plan.restarts + 1):
        killed = peer.kill()
        peer.close()
        time.sleep(pause)
        peer = decode(generation, 20)
        lives.append((generation, killed, peer.expect("ready")["engines"]))
        time.sleep(life)
        elsewhere += peer.ask("stale", "stale")["bytes"]
    time.sleep(0.3)
    peer.close()
    prefill.close()
    rooms, stale, watched = read_board(board, engines)
    board.unlink()
    recover, requests, failed = [], 0, 0
    for i in range(engines):
        requests += len(rooms[i])
        failed += sum(status == 0 for _, _, _, status, _ in rooms[i])
        for generation, _, listens in lives:
            first = [done for room, _, done, status, _ in rooms[i]
                     if room >> 40 == generation + 1 and status == 4]
            recover.append(min(first) - listens[i]["listens"] if first else math.inf)
    bench.add({
        "fault": "kill_restart", "outage_s": pause, "requests": requests,
        "failed_requests": failed, "detect_s": None,
        "recover_p50_s": finite(percentile(recover, 0.5)),
        "recover_p99_s": finite(percentile(recover, 0.99)), "recover_max_s": finite(max(recover)),
        "false_recoveries": 0, "stale_bytes": stale + elsewhere, "samples": len(recover),
        "aborts_watched": watched, "deadline_s": 30.0,
        "note": f"KV manager, {engines} decode engines x {plan.restarts} restarts, recover = "
                "listening -> first room done; rooms of the killed process aren't counted; 20 % of "
                "the rooms are aborted by decode",
    })


BASE_KV = 0x6_0000_0000_00


def fifty(bench: Bench) -> None:
    """52 peers vanish; one at a time returns for a moment."""
    fleet = Fleet(bench.lab, 4, 13, period_ms=50, deadline_s=60)
    time.sleep(0.5)
    ports = [port for group in fleet.groups for port in group.ports]
    start = bench.lab.cut(ports)
    time.sleep(12)
    for r in range(208):
        port = ports[r % len(ports)]
        outage = Outage("blackhole_50", 0, [r % len(ports)], start)
        outage.end = bench.lab.uncut([port])
        time.sleep(0.6)
        outage.settled = bench.lab.cut([port])
        outage.start = outage.end  # how long it was gone differs; requests: while it was back
        fleet.outages.append(outage)
    bench.lab.uncut(ports)
    time.sleep(2)
    for outage in fleet.outages:
        outage.seconds = 39.0
    summarize(bench, fleet, 60.0, "51 others stay black holes; outage_s: about, after the first 12 s")


def healthy_peers(bench: Bench) -> None:
    """p99 of seven healthy peers while the eighth is a black hole, against all eight healthy."""
    fleet = Fleet(bench.lab, 8, 1, period_ms=4)
    rng = random.Random(7)
    time.sleep(1)
    windows: list[dict[str, tuple[float, float, int]]] = []
    for r in range(24):
        lost = r % 8
        kinds = ["a", "a2", "b"]
        rng.shuffle(kinds)
        one: dict[str, tuple[float, float, int]] = {}
        for kind in kinds:
            start = bench.lab.cut(fleet.groups[lost].ports) if kind == "b" else time.monotonic()
            time.sleep(3)
            one[kind] = (start, time.monotonic(), lost)
            if kind == "b":
                bench.lab.uncut(fleet.groups[lost].ports)
                time.sleep(1)
        windows.append(one)
    records = fleet.finish()

    def p99(window: tuple[float, float, int]) -> float:
        start, end, lost = window
        waits = [done - submitted for session, of_one in records.by_session.items()
                 if session != lost for submitted, done, code in of_one
                 if code == OK and start <= submitted and done <= end]
        return percentile(waits, 0.99) or math.inf

    measured = [{kind: p99(window) for kind, window in one.items()} for one in windows]
    ratio = [m["b"] / m["a"] for m in measured]
    same = [m["a2"] / m["a"] for m in measured]
    quarters = statistics.quantiles(same, n=4)
    failed = sum(code != OK for of_one in records.by_session.values() for _, _, code in of_one)
    bench.add({
        "fault": "healthy_peers", "outage_s": 3.0,
        "requests": sum(map(len, records.by_session.values())), "failed_requests": failed,
        "detect_s": None, "recover_p50_s": None, "recover_p99_s": None, "false_recoveries": 0,
        "stale_bytes": 0, "pairs": len(ratio), "p99_ratio_median": round(statistics.median(ratio), 3),
        "a_against_a_median": round(statistics.median(same), 3),
        "a_against_a_quartiles": [round(quarters[0], 3), round(quarters[2], 3)],
        "p99_healthy_ms": round(1e3 * statistics.median(m["a"] for m in measured), 3),
        "note": "p99 of 7 healthy peers while the 8th is a black hole / while it is healthy, "
                "median of interleaved pairs",
    })


SCENARIOS: dict[str, Callable[[Bench], None]] = {
    "deaths": deaths, "outages": outages, "long_outages": long_outages, "flap": flap,
    "restarts": restarts,
    "blips": blips, "fifty": fifty, "healthy": healthy_peers,
}
QUICK_SCENARIOS = ("outages", "flap", "restarts", "deaths")

COLUMNS = (("fault", "fault", "{}"), ("outage s", "outage_s", "{:g}"),
           ("requests", "requests", "{:,}"), ("failed", "failed_requests", "{:,}"),
           ("detect s", "detect_s", "{:.3f}"), ("recover p50 s", "recover_p50_s", "{:.3f}"),
           ("p99 s", "recover_p99_s", "{:.3f}"), ("samples", "samples", "{}"),
           ("false rec.", "false_recoveries", "{}"), ("stale B", "stale_bytes", "{}"),
           ("note", "note", "{}"))


def print_table(rows: Sequence[Row], console: Console) -> None:
    """One line per fault."""
    table = Table(title="recovery, 4 KiB requests, real processes")
    for name, key, _ in COLUMNS:
        table.add_column(name, justify="left" if key in ("fault", "note") else "right")
    for row in rows:
        table.add_row(*(form.format(row[key]) if row.get(key) is not None else "-"
                        for _, key, form in COLUMNS))
    console.print(table)


def run(binary: Path, quick: bool, only: Sequence[str], svg: Path | None,
        console: Console) -> list[Row]:
    """Everything, or the scenarios named in `only`."""
    if why := Lab.obstacle():
        raise SystemExit(f"bench recovery: {why}")
    names = only or (QUICK_SCENARIOS if quick else tuple(SCENARIOS))
    load_before = os.getloadavg()[0]
    with Lab(binary) as lab:
        bench = Bench(lab, QUICK if quick else FULL, console)
        for name in names:
            start = time.monotonic()
            before = len(bench.rows)
            try:
                SCENARIOS[name](bench)
            except (RuntimeError, TimeoutError, OSError) as error:
                # The other figures stay worth having.
                console.print(f"  [red]{name} failed: {error}")
                bench.rows.append({"fault": name, "error": str(error)})
            for row in bench.rows[before:]:
                row["scenario"] = name
            console.print(f"  ({name}: {time.monotonic() - start:.0f} s)")
    print_table(bench.rows, console)
    console.print(f"{os.cpu_count()} cores; load average {load_before:.1f} before, "
                  f"{os.getloadavg()[0]:.1f} after (this run included)")
    if svg is not None:
        svg.write_text(draw(bench.timelines))
        console.print(f"timeline: {svg}")
    return bench.rows
