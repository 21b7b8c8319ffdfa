"""Fleets in which the two servers don't have the same backend or engine: each pair is refused, with
a line that names the mismatch and the fix. Uses the classes of the SGLang harness."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any, NamedTuple

from sglang_fleet import fleet


class Pair(NamedTuple):
    prefill: str
    decode: str
    where: str  # whose log or error says it
    says: tuple[str, ...]


BACKENDS = ("transfer backends differ", "--disaggregation-transfer-backend kvmend")
ENGINES = ("isn't a kvmend engine", "kvmend.exec")
PAIRS = (
    Pair("backend", "stock", "decode", BACKENDS),
    Pair("backend", "engine", "decode", BACKENDS),
    Pair("stock", "backend", "decode", BACKENDS),
    Pair("engine", "stock", "prefill", ENGINES),
    Pair("stock", "engine", "decode", ENGINES),
)


def meet(harness: Any, pair: Pair, seconds: float) -> tuple[str, bool]:
    """One request; returns what was said until then, and whether the request passed."""
    with fleet(harness, pair.prefill, pair.decode) as (cluster, logs):
        stream = harness.Stream(cluster, cluster.a)
        room = stream.issue(cluster.decodes[0])
        end = time.monotonic() + seconds
        while True:
            with stream.lock:
                request = dict(stream.reqs[room])
            with open(os.path.join(logs, pair.where + ".log")) as log:
                said = log.read() + str(request.get(pair.where, {}).get("err"))
            if all(text in said for text in pair.says) or time.monotonic() > end:
                return said, any(request.get(side, {}).get("ok") for side in ("prefill", "decode"))
            time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", help="the folder of the harness")
    parser.add_argument("--seconds", type=float, default=40.0)
    options = parser.parse_args()
    sys.path.insert(0, options.work)
    import harness

    good = True
    for pair in PAIRS:
        said, passed = meet(harness, pair, options.seconds)
        missing = [text for text in pair.says if text not in said]
        fine = not missing and not passed
        good &= fine
        print(f"prefill {pair.prefill}, decode {pair.decode}:", end=" ")
        if fine:
            line = next(line for line in said.splitlines() if pair.says[0] in line)
            print(f"refused\n  {line}", flush=True)
        else:
            print(f"NOT as it should be: passed {passed}, not said {missing}\n{said[-1500:]}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
