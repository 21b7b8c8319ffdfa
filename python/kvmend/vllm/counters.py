"""What the connector counts, and how counts of several ranks and steps are added up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["COUNTERS", "LOAD_SECONDS", "add", "new"]

#: name -> what it counts. Sums over ranks.
COUNTERS = {
    "loads": "Loads of a request's blocks that succeeded",
    "loads_refused": "Loads refused because prefill's lease was over",
    "loads_failed": "Loads that failed because of the peer, the link or the deadline",
    "loads_cancelled": "Loads of requests that were aborted",
    "loads_incompatible": "Loads refused because the two caches can't be mapped",
    "load_bytes": "Bytes of blocks that were loaded",
    "leases": "Leases begun on finished requests' blocks",
    "leases_done": "Leases ended because decode had finished",
    "leases_expired": "Leases ended by their time",
    "transfer_retries": "Frames sent again after a fault",
    "session_recoveries": "Sessions that came back after they had failed",
}

#: Seconds of every load that succeeded: a list.
LOAD_SECONDS = "load_seconds"


def new() -> dict[str, Any]:
    """All zero."""
    return {**dict.fromkeys(COUNTERS, 0), LOAD_SECONDS: []}


def add(to: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Adds `more` to `to`."""
    for name in COUNTERS:
        to[name] = to.get(name, 0) + more.get(name, 0)
    to[LOAD_SECONDS] = [*to.get(LOAD_SECONDS, ()), *more.get(LOAD_SECONDS, ())]
