"""./dev bench instructions: small costs in instructions, which noise doesn't change.

Runs the microbenchmark of the receiver's work (micro_wire) under callgrind and divides what each
function took by the number of its calls. The frames are writes of 128 slices of 4 KiB.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich.console import Console

Row = dict[str, Any]

SLICES = 128
#: Function, as callgrind names it -> what it is; per frame, or per call where it says so.
WANTED = {
    "kvmend::wire::parse_header": "parse and check a frame's header",
    "kvmend::wire::check_matches": "check (XXH3) of header and body",
    "kvmend::wire::parse_data_body": "parse the slices",
    "kvmend::memory::GrantTable::resolve(": "check the slices against the grant, make addresses",
    "kvmend::memory::GrantTable::still_allowed": "ask the grant again, before every read into pages",
}


def costs(profile: str) -> dict[str, tuple[int, int]]:
    """Calls and inclusive instructions of every function that is called."""
    names: dict[str, str] = {}
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    callee, calls = "", 0
    for line in profile.splitlines():
        if match := re.match(r"c?fn=\((\d+)\)(?: (.*))?$", line):
            if match[2]:
                names[match[1]] = match[2]
            if line.startswith("cfn="):
                callee = names[match[1]]
        elif match := re.match(r"calls=(\d+) ", line):
            calls = int(match[1])
        elif calls:
            found[callee][0] += calls
            found[callee][1] += int(line.split()[-1])
            calls = 0
    return {name: (n, cost) for name, (n, cost) in found.items()}


def run(args: argparse.Namespace, console: Console) -> list[Row]:
    """One row for each function."""
    if shutil.which("valgrind") is None:
        raise SystemExit("bench: instructions needs valgrind")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "profile"
        subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}",
             str(args.bin / "micro_wire_bench"), "--benchmark_min_time=0.02",
             "--benchmark_filter=ParseAndResolve/slices:128/scattered:1/standing:0|StillAllowed"],
            check=True, capture_output=True)
        found = costs(out.read_text())
    rows: list[Row] = []
    for name, what in WANTED.items():
        of_name = [value for full, value in found.items() if full.startswith(name)]
        calls, total = sum(v[0] for v in of_name), sum(v[1] for v in of_name)
        if calls == 0:
            continue
        rows.append({"what": what, "function": name.rstrip("("), "instructions": total / calls,
                     "per_slice": total / calls / SLICES})
        console.print(f"  {total / calls:8.0f} instructions, {total / calls / SLICES:6.1f} a slice: "
                      f"{what}")
    return rows
