"""./dev bench: runs the benchmarks, prints a table, and writes their rows as JSON.

    ./dev bench                          tcp, every page size
    ./dev bench tcp --quick --json FILE  done in under 50 s
    ./dev bench local --quick --json FILE  copies between processes of this host
    ./dev bench kv --quick --json FILE   requests through the KV manager
    ./dev bench delay [--quick]          10 ms of round trip, by a proxy
    ./dev bench soak [--quick]           ten submitters for a minute: nothing grows
    ./dev bench instructions             small costs, counted by valgrind
    ./dev bench recovery [--quick]       faults in real processes (root; docs/benchmarks.md)

Every row of tcp, local and delay compares kvmend with the machine itself, measured in the same run
between the same processes, alternating; without --quick also with Python and with the peers
(Mooncake, NIXL), which are installed under build/peers/. Those of kv compare the KV manager with its
own engine. `gbps` are 10^9 bytes per second; CPU is
user + system of both processes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import data
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / "build" / "release" / "bin"

Row = dict[str, Any]

DATA_COLUMNS = (
    ("memory", "memory", "{}"),
    ("variant", "variant", "{}"),
    ("page", "page_bytes", "{:,}"),
    ("threads", "threads", "{}"),
    ("kvmend GB/s", "gbps", "{:.2f}"),
    ("raw GB/s", "raw_gbps", "{:.2f}"),
    ("ratio", "ratio_raw", "{:.2f}"),
    ("plain raw", "raw_plain_gbps", "{:.2f}"),
    ("of a write", "ratio_write", "{:.2f}"),
    ("Python", "python_ratio", "{:.2f}"),
    ("peers", "peer_engines", "{}"),
    ("GB/s of", "peers", "{}"),
    ("CPU-s/GiB", "cpu_s_per_gib", "{:.2f}"),
    ("raw CPU-s/GiB", "raw_cpu_s_per_gib", "{:.2f}"),
    ("4 KiB p50 us", "p50_us", "{:.0f}"),
    ("p99 us", "p99_us", "{:.0f}"),
    ("busy p50 us", "busy_p50_us", "{:.0f}"),
    ("raw p50 us", "raw_p50_us", "{:.0f}"),
    ("submit ms", "submit_ms", "{:.2f}"),
    ("idle cores", "idle_cores", "{:.5f}"),
)

KV_COLUMNS = (
    ("case", "case", "{}"),
    ("transport", "transport", "{}"),
    ("ok", "ok", "{}"),
    ("requests", "requests", "{:,}"),
    ("at once", "concurrency", "{:,}"),
    ("p50 ms", "p50_ms", "{:.3f}"),
    ("p99 ms", "p99_ms", "{:.3f}"),
    ("max ms", "max_ms", "{:.3f}"),
    ("requests/s", "requests_per_s", "{:,.0f}"),
    ("GB/s", "gbps", "{:.2f}"),
    ("engine GB/s", "engine_gbps", "{:.2f}"),
    ("ratio", "ratio_engine", "{:.2f}"),
    ("B/room decode", "bytes_per_room_decode", "{:,.0f}"),
    ("prefill", "bytes_per_room_prefill", "{:,.0f}"),
    ("left decode", "growth_per_room_decode", "{:.1f}"),
    ("left prefill", "growth_per_room_prefill", "{:.1f}"),
    ("of heap", "heap_growth_per_room_decode", "{:.2f}"),
    ("of heap,", "heap_growth_per_room_prefill", "{:.2f}"),
    ("midway", "midway", "{:,}"),
    ("foreign B", "foreign_bytes", "{}"),
)


def describe(row: Row) -> str:
    """One line about a row, printed as it comes."""
    if "page_bytes" in row:
        return (f"{row['page_bytes']:>9,} B pages: {row['gbps']:.2f} GB/s, "
                f"{row['ratio_raw']:.2f} of raw")
    return f"{row['case']}: " + ("ok" if row["ok"] else "NOT OK")


def run_rows(command: list[str], console: Console) -> list[Row]:
    """Runs a benchmark program that prints one JSON object per line; shows the rows as they come."""
    rows: list[Row] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("{"):
                continue  # a log line
            row = json.loads(line)
            rows.append(row)
            console.print(f"  {describe(row)}")
    if process.returncode != 0:
        raise SystemExit(f"bench: {' '.join(command)} failed (exit {process.returncode})")
    return rows


def shown(value: Any, form: str) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {number:.2f}" for name, number in value.items())
    return form.format(value)


def print_table(title: str, rows: list[Row], console: Console,
                known: tuple[tuple[str, str, str], ...] = DATA_COLUMNS) -> None:
    """One line per row; columns that no row has are left out."""
    columns = [c for c in known if any(c[1] in row for row in rows)]
    table = Table(title=title)
    for name, _, _ in columns:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(shown(row[key], form) if key in row else "" for _, key, form in columns))
    console.print(table)


def bench_tcp(args: argparse.Namespace, console: Console) -> list[Row]:
    """kvmend's tcp transport against one raw stream with headers."""
    rows = data.bench(args, "tcp", console)
    print_table("tcp on loopback, 256 MiB in scattered pages", rows, console)
    return rows


def bench_local(args: argparse.Namespace, console: Console) -> list[Row]:
    """kvmend's local transport against two raw threads of the receiver."""
    rows = data.bench(args, "local", console)
    print_table("local: two processes of this host, 256 MiB in scattered pages", rows, console)
    return rows


def bench_kv(args: argparse.Namespace, console: Console) -> list[Row]:
    """Requests through the KV manager, both sides on this host, over tcp (and local)."""
    command = [str(args.bin / "kvmend_kv_bench"), "--rounds", "5" if args.quick else str(args.reps),
               "--aborts", "200" if args.quick else "1000"]
    if args.only:
        command += ["--only", ",".join(args.only)]
    rows = run_rows(command if args.quick else [*command, "--sweep"], console)
    if not args.quick:
        rows += run_rows([*command, "--local"], console)
    print_table("requests from decode's metadata to Success on both sides", rows, console,
                KV_COLUMNS)
    return rows


def bench_delay(args: argparse.Namespace, console: Console) -> list[Row]:
    """kvmend and a raw stream with the same window behind a proxy that delays."""
    rows = data.bench_delay(args, console)
    print_table("tcp with 10 ms of round trip", rows, console)
    return rows


def bench_soak(args: argparse.Namespace, console: Console) -> list[Row]:
    """Ten submitters for a minute."""
    sys.path.insert(0, str(args.bin.parent / "python"))
    import soak

    return soak.run(args, console)


def bench_recovery(args: argparse.Namespace, console: Console) -> list[Row]:
    """What faults cost: requests lost, time to detect and to recover."""
    import recovery

    return recovery.run(args.bin / "kvmend_recovery_peer", args.quick, args.only,
                        args.svg, console)


def bench_instructions(args: argparse.Namespace, console: Console) -> list[Row]:
    """Small costs, counted."""
    import instructions

    return instructions.run(args, console)


BENCHES = {"kv": bench_kv, "delay": bench_delay, "instructions": bench_instructions, "local": bench_local,
           "recovery": bench_recovery, "soak": bench_soak, "tcp": bench_tcp}


def what_row(row: Row) -> tuple[Any, ...]:
    """What a row is of, whatever was measured."""
    return tuple(row.get(key) for key in ("scenario", "case", "transport", "memory", "variant",
                                          "page_bytes", "threads", "peer_engines"))


def main() -> int:
    """Parses the command line and runs what it names."""
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="tcp", choices=sorted(BENCHES))
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds, < 50 s")
    parser.add_argument("--reps", type=int, default=21, help="measured rounds of each line")
    parser.add_argument("--parts", nargs="*", choices=data.PARTS, help="tcp, local: only these")
    parser.add_argument("--pages", nargs="*", type=int, metavar="BYTES", choices=data.PAGES,
                        default=data.PAGES, help="tcp, local: only these sizes")
    parser.add_argument("--json", metavar="FILE", help="write the rows here")
    parser.add_argument("--merge", action="store_true",
                        help="keep those of FILE's rows that aren't measured now: "
                        "a long run may be made in pieces")
    parser.add_argument("--svg", metavar="FILE", type=Path, help="draw what was measured")
    parser.add_argument("--only", nargs="*", default=(), metavar="SCENARIO",
                        help="recovery: deaths outages long_outages flap restarts blips fifty "
                        "healthy; kv: "
                        "control control_c8 1MiB 1MiB_c8 16MiB frag4096 heads256 heads256_direct "
                        "rooms switch abort")
    parser.add_argument("--bin", type=Path, default=BIN, help="folder of the benchmark programs")
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    start = time.monotonic()
    rows = BENCHES[args.what](args, console)
    console.print(f"{len(rows)} rows in {time.monotonic() - start:.0f} s; medians; "
                  "the machine is shared: compare ratios, not figures of different runs")
    if args.json:
        file = Path(args.json)
        kept: list[Row] = []
        if args.merge and file.exists():
            fresh = {what_row(row) for row in rows}
            kept = [row for row in json.loads(file.read_text()) if what_row(row) not in fresh]
        rows = sorted(kept + rows, key=lambda row: row.get("page_bytes", 0))
        file.write_text(json.dumps(rows, indent=1) + "\n")
    if args.svg and args.what in ("tcp", "local"):
        import data_plot

        args.svg.write_text(data_plot.draw(rows))
    return 1 if any("error" in row or not row.get("ok", True) for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
