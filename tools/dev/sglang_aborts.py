"""An abort by decode in the middle of a transfer: both sides end, the pages are free, and nothing
is written into them any more. Uses the classes of the SGLang harness.

The harness's own `robust` aborts a fixed time after it asked for the request. Ours is over by then,
or hasn't begun; here the abort is asked for until it meets the transfer.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from sglang_fleet import fleet


def abort_once(harness: Any, way: str) -> dict[str, Any]:
    with fleet(harness, way, way, layers=8, page_bytes=65536, pool_pages=1024) as (cluster, _):
        decode = cluster.decodes[0]
        stream = harness.Stream(cluster, cluster.a)
        aborting: list[dict[str, Any]] = []
        answered: list[dict[str, Any]] = []
        acknowledged: list[float] = []
        decode.sinks.append(lambda _, ev: aborting.append(ev) if ev["ev"] == "aborting" else None)
        decode.sinks.append(lambda _, ev: answered.append(ev) if ev["ev"] == "env" else None)

        # Whoever sees the acknowledgement first: the watcher of the abort, or the worker's own loop,
        # which gives the pages back on it and forgets it.
        def note_acknowledged(_: Any, ev: dict[str, Any]) -> None:
            if ev["ev"] == "abort_acked" and ev["after_s"] is not None:
                acknowledged.append(ev["after_s"])
            elif ev["ev"] == "released" and ev["drained"]:
                acknowledged.append(ev["held_s"])

        decode.sinks.append(note_acknowledged)

        def ended(room: int, seconds: float) -> dict[str, Any]:
            end = time.monotonic() + seconds
            while time.monotonic() < end and not stream.done(stream.reqs[room]):
                time.sleep(0.005)
            return dict(stream.reqs[room])

        for _ in range(3):
            ended(stream.issue(decode), 20)
        room = stream.room
        stream.room += 1
        stream.reqs[room] = {"room": room, "t_issue": time.monotonic()}
        pages = cluster.a.pool_pages - 8
        cluster.prefill.send(op="start", room=room, n=pages)
        decode.send(op="start", room=room, n=pages)
        asked = 0
        while not aborting and not stream.done(stream.reqs[room]):
            decode.send(op="abort", room=room)
            # Each abort is a generation of its own to SGLang's manager, and only the last one's
            # acknowledgement counts: so never a second one before this one was looked at.
            decode.send(op="env_timeouts")
            asked += 1
            while len(answered) < asked and not stream.done(stream.reqs[room]):
                time.sleep(0.001)
        end = time.monotonic() + 40
        while aborting and not acknowledged and time.monotonic() < end:
            time.sleep(0.005)
        request = ended(room, 20)
        following = ended(stream.issue(decode), 20)
        time.sleep(0.5)
        decode.send(op="leak")
        return {
            "phase": aborting[0]["phase"] if aborting else "over",
            "acknowledged_after_s": min(acknowledged, default=None),
            "errors": {s: request.get(s, {}).get("err") for s in ("prefill", "decode")},
            "next_request_ok": stream.ok(following),
            "pages_written_afterwards": decode.wait("leak", 20)["nonzero_pages"],
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", help="the folder of the harness")
    parser.add_argument("--ways", nargs="*", default=["backend", "engine"])
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    sys.path.insert(0, options.work)
    import harness

    good = True
    for way in options.ways:
        for _ in range(options.times):
            row = abort_once(harness, way)
            good &= row["phase"] == "xfer" and row["acknowledged_after_s"] is not None
            good &= all(row["errors"].values()) and row["next_request_ok"]
            good &= row["pages_written_afterwards"] == 0
            print(f"abort in mid-transfer, {way}: {row}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
