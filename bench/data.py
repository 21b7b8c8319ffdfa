"""./dev bench tcp|local|delay|soak: the data plane beside the machine's limits and the peers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import contest
from contest import MoverFailedError, Movers, kvmend, middle, ratios, spread, take_turns
from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
KIB, MIB = 1 << 10, 1 << 20
PAGES = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB)
#: What a row of --quick has, and no more.
ROW = ("transport", "memory", "page_bytes", "threads", "gbps", "raw_gbps", "ratio_raw",
       "cpu_s_per_gib", "raw_cpu_s_per_gib", "p50_us", "p99_us")
#: What a run of tcp or local consists of: page sizes of two kinds of memory, threads and peers,
#: checksums and reads, other system calls for the sender.
PARTS = ("pool", "foreign", "threads", "variants", "senders")
REST_US = 2000  # before a write "from idle": every loop sleeps by then

Row = dict[str, Any]


def one_row(transport: str, memory: str, page: int, samples: dict[str, list[Row]],
            latency: Row) -> Row:
    """kvmend against the mean of the raw turns before and after it."""
    raw, after, own = samples["raw"], samples["raw again"], samples["kvmend"]
    both = [{"gbps": (a["gbps"] + b["gbps"]) / 2} for a, b in zip(raw, after, strict=True)]
    return {"transport": transport, "memory": memory, "page_bytes": page, "threads": 1,
            "gbps": middle(own, "gbps"), "raw_gbps": middle(raw + after, "gbps"),
            "ratio_raw": sorted(ratios(own, both))[len(own) // 2],
            "cpu_s_per_gib": middle(own, "cpu_s_per_gib"),
            "raw_cpu_s_per_gib": middle(raw + after, "cpu_s_per_gib"),
            "p50_us": latency["p50_us"], "p99_us": latency["p99_us"]}


def details(row: Row, samples: dict[str, list[Row]]) -> None:
    """What a full run adds: spreads, peers, Python, the plain raw stream."""
    own, raw, after = samples["kvmend"], samples["raw"], samples["raw again"]
    row["ratio_p10"], row["ratio_p90"] = spread(ratios(own, raw))
    row["raw_against_raw_p10"], row["raw_against_raw_p90"] = spread(ratios(after, raw))
    row["submit_ms"] = middle(own, "submit_ms")
    row["rounds"] = len(own)
    if samples.get("plain"):
        row["raw_plain_gbps"] = middle(samples["plain"], "gbps")
    if samples.get("python"):
        against = ratios(samples["python"], own)
        row["python_gbps"] = middle(samples["python"], "gbps")
        row["python_ratio"] = sorted(against)[len(against) // 2]
    peers = {name: samples[name] for name in ("mooncake", "nixl") if samples.get(name)}
    row["peers"] = {name: middle(taken, "gbps") for name, taken in peers.items()}
    row["peers_cpu_s_per_gib"] = {n: middle(taken, "cpu_s_per_gib") for n, taken in peers.items()}


def latencies(args: argparse.Namespace, transport: str, memory: str) -> tuple[Row, Row]:
    """Single 4 KiB writes from idle, and back to back: alone on the machine, a core each."""
    with Movers() as movers:
        own = movers.start(f"kvmend-{transport}-latency",
                           kvmend(args.bin / "kvmend_mover", transport=transport, memory=memory,
                                  total_mib=16, pin=True))
        own.ask("page 4096")
        idle = own.ask(f"latency {250 if args.quick else 1000} {REST_US}")
        return idle, {} if args.quick else own.ask("latency 3000 0")


def by_page(args: argparse.Namespace, transport: str, memory: str, console: Console) -> list[Row]:
    """One memory kind: every page size, one submitting thread, one peer."""
    rows: list[Row] = []
    latency, busy = latencies(args, transport, memory)
    with Movers() as movers:
        own = movers.start(f"kvmend-{transport}-{memory}",
                           kvmend(args.bin / "kvmend_mover", transport=transport, memory=memory))
        turns = {"raw": (own, "raw"), "kvmend": (own, "kvmend"), "raw again": (own, "raw")}
        others: dict[str, contest.Mover] = {}
        if not args.quick:
            if transport == "tcp":
                turns["plain"] = (own, "plain")
            others["python"] = movers.start(
                "python", [sys.executable, str(ROOT / "bench" / "mover_kvmend.py"), "--transport",
                           transport, "--memory", memory],
                {"PYTHONPATH": str(args.bin.parent / "python")})
            if memory == "pool":
                others |= contest.start_peers(movers, transport, 256)
            turns |= {name: (mover, "move") for name, mover in others.items()}
        for page in args.pages:
            for name, mover in [("", own), *others.items()]:
                try:
                    mover.ask(f"page {page}")
                except MoverFailedError as error:
                    console.print(f"[yellow]{error}[/]")
                    turns.pop(name, None)
            samples = take_turns(turns, (15 if transport == "tcp" else 11) if args.quick
                                 else args.reps, 1.0)
            row = one_row(transport, memory, page, samples, latency)
            if not args.quick:
                details(row, samples)
                row |= {f"busy_{k}": v for k, v in busy.items()}
                row |= {k: v for k, v in latency.items() if k.startswith("raw_")}
            rows.append(row)
            console.print(f"  {transport} {memory:>7} {page:>9,} B: {row['gbps']:.2f} GB/s, "
                          f"{row['ratio_raw']:.2f} of raw; "
                          + ", ".join(f"{n} {g:.2f}" for n, g in row.get("peers", {}).items()))
        if not args.quick and args.pages[0] == PAGES[0]:
            rows[0] |= own.ask("idle 10") | own.ask("bookkeeping") | own.ask("facts")
            for name in ("nixl", "mooncake"):
                if name in turns:
                    rows[0].setdefault("peers_p50_us", {})[name] = \
                        others[name].ask("latency 1000 0")["p50_us"]
    return rows


def by_threads(args: argparse.Namespace, transport: str, console: Console) -> list[Row]:
    """1 to 4 submitting threads, one and two peers, on pages of 64 KiB and 4 KiB."""
    rows: list[Row] = []
    for peers in (1, 2):
        for threads in (1, 2, 4) if peers == 1 else (1, 2):
            if (peers, threads) == (1, 1):
                continue  # by_page has it
            with Movers() as movers:
                own = movers.start("kvmend-threads",
                                   kvmend(args.bin / "kvmend_mover", transport=transport,
                                          threads=threads, peers=peers))
                turns = {"raw": (own, "raw"), "kvmend": (own, "kvmend"), "raw again": (own, "raw")}
                own.ask("page 4096")
                latency = own.ask(f"latency 250 {REST_US}")
                for page in (4 * KIB, 64 * KIB):
                    own.ask(f"page {page}")
                    row = one_row(transport, "pool", page, take_turns(turns, args.reps // 2),
                                  latency)
                    row |= {"threads": threads, "peer_engines": peers}
                    rows.append(row)
                    console.print(f"  {transport}, {threads} threads, {peers} peers, {page:>6,} B: "
                                  f"{row['gbps']:.2f} GB/s, {row['ratio_raw']:.2f} of raw")
    return rows


def variants(args: argparse.Namespace, transport: str, console: Console) -> list[Row]:
    """What checksums cost, and reads."""
    rows: list[Row] = []
    for name, options in (("checksum", {"checksum": True}), ("read", {"read": True})):
        with Movers() as movers:
            plain = movers.start("kvmend-plain", kvmend(args.bin / "kvmend_mover",
                                                        transport=transport))
            other = movers.start(f"kvmend-{name}", kvmend(args.bin / "kvmend_mover",
                                                          transport=transport, **options))
            for page in (4 * KIB, 64 * KIB):
                plain.ask(f"page {page}")
                other.ask(f"page {page}")
                turns = {"write": (plain, "kvmend"), name: (other, "kvmend")}
                samples = take_turns(turns, args.reps)
                against = sorted(ratios(samples[name], samples["write"]))
                rows.append({"transport": transport, "variant": name, "page_bytes": page,
                             "gbps": middle(samples[name], "gbps"),
                             "write_gbps": middle(samples["write"], "gbps"),
                             "ratio_write": against[len(against) // 2],
                             "cpu_s_per_gib": middle(samples[name], "cpu_s_per_gib"),
                             "write_cpu_s_per_gib": middle(samples["write"], "cpu_s_per_gib")})
                console.print(f"  {transport} {name} {page:>6,} B: {rows[-1]['gbps']:.2f} GB/s, "
                              f"{rows[-1]['ratio_write']:.2f} of a plain write")
    return rows


def senders(args: argparse.Namespace, console: Console) -> list[Row]:
    """What other system calls would give a tcp sender: raw streams, one and two of them."""
    rows: list[Row] = []
    for streams in (1, 2):
        for page in (4 * KIB, 64 * KIB, MIB):
            with Movers() as movers:
                own = movers.start("kvmend-senders",
                                   kvmend(args.bin / "kvmend_mover", peers=streams))
                turns = {n: (own, n) for n in ("raw", "splice", "uring", "kvmend")}
                own.ask(f"page {page}")
                samples = take_turns(turns, args.reps // 2, 1.0)
                for name, taken in samples.items():
                    if not taken:
                        continue
                    against = sorted(ratios(taken, samples["raw"]))
                    rows.append({"transport": "tcp", "variant": name, "page_bytes": page,
                                 "peer_engines": streams, "gbps": middle(taken, "gbps"),
                                 "ratio_raw": against[len(against) // 2],
                                 "cpu_s_per_gib": middle(taken, "cpu_s_per_gib")})
                console.print(f"  {streams} streams, {page:>9,} B: " + ", ".join(
                    f"{n} {middle(s, 'gbps'):.2f}" for n, s in samples.items() if s))
    return rows


def bench(args: argparse.Namespace, transport: str, console: Console) -> list[Row]:
    """The rows of ./dev bench tcp or local."""
    parts = set(args.parts or PARTS)
    if args.quick:
        # Over tcp the kernel copies either kind of memory; a full run has both.
        parts &= {"pool"} if transport == "tcp" else {"pool", "foreign"}
    rows: list[Row] = []
    for memory in ("pool", "foreign"):
        if memory in parts:
            rows += by_page(args, transport, memory, console)
    if args.quick:
        return [{key: row[key] for key in ROW} for row in rows]
    if "threads" in parts:
        rows += by_threads(args, transport, console)
    if "variants" in parts:
        rows += variants(args, transport, console)
    if "senders" in parts and transport == "tcp":
        rows += senders(args, console)
    return rows


def bench_delay(args: argparse.Namespace, console: Console) -> list[Row]:
    """10 ms of round trip by a proxy: kvmend against a raw stream with the same window."""
    rows: list[Row] = []
    for window in (4 * MIB, 64 * MIB):
        with Movers() as movers:
            own = movers.start("kvmend-delay",
                               kvmend(args.bin / "kvmend_mover", delay_us=5000, total_mib=128,
                                      window_bytes=window, lanes=1))
            turns = {"raw": (own, "window"), "kvmend": (own, "kvmend"),
                     "raw again": (own, "window")}
            own.ask("page 65536")
            latency = own.ask("latency 50 0")
            row = one_row("tcp", "pool", 64 * KIB, take_turns(turns, 5 if args.quick else 11),
                          latency)
            row |= {"round_trip_ms": 10, "window_bytes": window,
                    "raw_p50_us": latency["raw_p50_us"]}
            rows.append(row)
            console.print(f"  10 ms, window {window >> 20} MiB: {row['gbps']:.2f} GB/s, "
                          f"{row['ratio_raw']:.2f} of raw")
    return rows
