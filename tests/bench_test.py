"""The driver of ./dev bench: rows, turns, and what happens when a contestant fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))
pytest.importorskip("rich")

import contest  # noqa: E402
import data  # noqa: E402
import data_plot  # noqa: E402

#: Answers every command with a throughput that grows; ends at the second "move" when told to.
FAKE = """
import json, sys
n = 0
for line in sys.stdin:
    n += line.startswith("move")
    if n == 2 and len(sys.argv) > 1:
        sys.exit(1)
    print("a log line")
    print(json.dumps({"gbps": float(n), "seconds": 0.1, "cpu_s_per_gib": 1.0}), flush=True)
"""


def sample(gbps: float) -> dict[str, float]:
    return {"gbps": gbps, "cpu_s_per_gib": 0.5, "submit_ms": 1.0}


def test_a_quick_row_has_exactly_the_documented_fields() -> None:
    samples = {"raw": [sample(4.0)] * 3, "kvmend": [sample(3.0)] * 3, "raw again": [sample(8.0)] * 3}
    row = data.one_row("tcp", "pool", 4096, samples, {"p50_us": 1.0, "p99_us": 2.0, "raw_p50_us": 3})
    assert tuple(row) == data.ROW
    assert row["ratio_raw"] == pytest.approx(0.5)  # of the mean of the turns around it
    data.details(row, samples | {"nixl": [sample(1.5)], "mooncake": []})
    assert row["peers"] == {"nixl": 1.5}


@pytest.fixture
def movers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> contest.Movers:
    (tmp_path / "build" / "logs").mkdir(parents=True)
    monkeypatch.setattr(contest, "ROOT", tmp_path)
    with contest.Movers() as started:
        yield started


def test_movers_take_turns_and_one_that_fails_drops_out(movers: contest.Movers) -> None:
    good = movers.start("good", [sys.executable, "-c", FAKE], freeze=True)
    bad = movers.start("bad", [sys.executable, "-c", FAKE, "bad"])
    samples = contest.take_turns({"good": (good, "move"), "bad": (bad, "move")}, 3)
    assert [s["gbps"] for s in samples["good"]] == [2.0, 3.0, 4.0]  # the warm-up isn't counted
    assert samples["bad"] == []


def test_the_plot_shows_every_contestant() -> None:
    rows = [{"transport": "tcp", "memory": "pool", "page_bytes": page, "threads": 1, "gbps": 2.0,
             "raw_gbps": 2.5, "python_gbps": 1.9, "peers": {"nixl": 1.0, "mooncake": 0.1}}
            for page in (4096, 65536)]
    svg = data_plot.draw(rows)
    assert all(name in svg for name in ("raw", "kvmend", "kvmend, Python", "nixl", "mooncake"))
    assert svg.count("<polyline") == 5
