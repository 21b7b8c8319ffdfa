"""Runs the cases of the SGLang harness with kvmend's engine and the stock one, in turns.

Prints one line per run, then JSON with medians and their ratio. Exits 1 when bytes were wrong, a
request failed that should not have, or a case of kvmend's engine didn't end as it should.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import Any

ENGINES = {"kvmend": "kvmend.mooncake", "stock": "mooncake.engine"}
BENCH = {
    "16 MiB, 64 KiB items": "--requests 32 --pages 16 --layers 8 --page-bytes 65536",
    "134 MiB, 64 KiB items, 2 at once": "--requests 12 --pages 64 --layers 16 --page-bytes 65536 "
    "--conc 2 --pool-pages 256",
    "1 MiB, 16 KiB items": "--requests 64 --pages 1 --layers 32 --page-bytes 16384",
    "4,096 random 4 KiB items": "--requests 8 --pages 64 --layers 32 --page-bytes 4096 "
    "--layout random",
    "state and chunks": "--requests 16 --pages 16 --layers 4 --page-bytes 16384 --chunks 4 "
    "--state-bytes 65536 --layout random",
}
FAULTS = {
    "stopped for 10 s": "--case stop --fault-s 10",
    "killed, back on another port": "--case kill-newport",
    "black-holed for 10 s": "--case blackhole --fault-s 10",
}


def run(work: str, engine: str, *arguments: str) -> dict[str, Any]:
    env = {**os.environ, "ENGINE_MODULE": ENGINES[engine]}
    command = [sys.executable, os.path.join(work, "harness.py"), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    try:
        result: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"error": done.stderr[-2000:]}
    return result


def bench(work: str, rounds: int) -> tuple[dict[str, Any], bool]:
    report: dict[str, Any] = {}
    good = True
    for name, arguments in BENCH.items():
        rows: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
        for _ in range(rounds):
            for engine in ENGINES:
                row = run(work, engine, "bench", *arguments.split())
                rows[engine].append(row)
                print(f"{name:34} {engine:7}", brief(row), flush=True)
                if engine == "kvmend":
                    wrong = [row.get(k, 1) for k in ("failed", "bad_bytes", "bad_aux", "bad_state")]
                    good &= not any(wrong)
        report[name] = {engine: medians(rows[engine]) for engine in ENGINES}
        rate = [report[name][engine]["GB_per_s"] for engine in ENGINES]
        report[name]["ratio_GB_per_s"] = round(rate[0] / rate[1], 2) if all(rate) else None
    return report, good


def brief(row: dict[str, Any]) -> str:
    if "error" in row:
        return row["error"].strip().rsplit("\n", 1)[-1]
    bad = row["bad_bytes"] + row["bad_aux"] + row["bad_state"]
    return (
        f"{row['ok']}/{row['requests']} ok, {bad} bad bytes, {row['GB_per_s']} GB/s, "
        f"p50 {row['decode_request']['p50_ms']} ms"
    )


def medians(rows: list[dict[str, Any]]) -> dict[str, Any]:
    rows = [row for row in rows if "error" not in row]
    rates = [row["GB_per_s"] or 0 for row in rows]
    p50 = [row["decode_request"]["p50_ms"] for row in rows if row["ok"]]
    return {
        "ok": sum(row["ok"] for row in rows),
        "requests": sum(row["requests"] for row in rows),
        "GB_per_s": statistics.median(rates) if rates else None,
        "p50_ms": statistics.median(p50) if p50 else None,
    }


def faults(work: str) -> tuple[dict[str, Any], bool]:
    report: dict[str, Any] = {}
    good = True
    for name, arguments in FAULTS.items():
        if "blackhole" in arguments and os.geteuid() != 0:
            print(f"{name:34} skipped: needs root (a network namespace)")
            continue
        row = run(work, "kvmend", "fault", *arguments.split())
        if "error" in row:
            print(f"{name:34} {row['error']}")
            good = False
            continue
        report[name] = {
            key: row[key]
            for key in ("issued", "ok", "prefill_failed", "first_ok_after_fault_end_s",
                        "failed_issued_after_fault_end", "bad_bytes", "dirty_pages_at_end")
        }  # fmt: skip
        print(f"{name:34} kvmend  {report[name]}", flush=True)
        lost = 0 if "kill" in arguments else row["issued"] - row["ok"]
        good &= not (lost or row["bad_bytes"] or row["thread_died"])
        good &= row["failed_issued_after_fault_end"] == 0 and row["dirty_pages_at_end"] in (0, None)
    return report, good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", help="the folder of the harness")
    parser.add_argument("--quick", action="store_true", help="one round, no faults")
    options = parser.parse_args()
    benches, bench_good = bench(options.work, 1 if options.quick else 3)
    fault_cases, fault_good = ({}, True) if options.quick else faults(options.work)
    print(json.dumps({"bench": benches, "faults": fault_cases}, indent=1))
    return 0 if bench_good and fault_good else 1


if __name__ == "__main__":
    sys.exit(main())
