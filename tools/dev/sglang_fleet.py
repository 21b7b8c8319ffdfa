"""Small fleets of the SGLang harness whose processes don't all run the same code."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from typing import Any

#: What takes the place of SGLang's engine and of its four manager classes.
WAYS = {
    "backend": {"ENGINE_MODULE": "kvmend.mooncake", "KV_MODULE": "kvmend.sglang"},
    "engine": {"ENGINE_MODULE": "kvmend.mooncake", "KV_MODULE": ""},
    "stock": {"ENGINE_MODULE": "mooncake.engine", "KV_MODULE": ""},
}


@contextlib.contextmanager
def fleet(harness: Any, prefill: str, decode: str, **changes: Any) -> Iterator[tuple[Any, str]]:
    """A bootstrap server and a prefill of one way, a decode of another; and their folder of logs."""
    options = argparse.Namespace(
        **{
            "layers": 2,
            "mla": 0,
            "page_bytes": 16384,
            "pool_pages": 64,
            "layout": "contig",
            "state_bytes": 0,
            "poll_us": 200.0,
            "log": "WARNING",
            "corrupt": 0,
            "pages": 4,
            "chunks": 1,
            **changes,
        }
    )
    logs = tempfile.mkdtemp(prefix="sglang_fleet_")
    cluster = harness.Cluster(options, logs)
    try:
        cluster.bootp = harness.Proc(
            "bootstrap", "bootstrap", ["--bootstrap", cluster.boot], env=WAYS[prefill], logdir=logs
        )
        cluster.procs.append(cluster.bootp)
        cluster.bootp.start()
        cluster.prefill = cluster.spawn("prefill", "prefill", env=WAYS[prefill])
        cluster.decodes = [cluster.spawn("decode", "decode", env=WAYS[decode])]
        cluster.prefill.start()
        cluster.decodes[0].start()
        yield cluster, logs
    finally:
        cluster.down()
