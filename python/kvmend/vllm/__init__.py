"""vLLM's KV connector over kvmend, out of tree.

    --kv-transfer-config '{"kv_connector": "KvmendConnector",
                           "kv_connector_module_path": "kvmend.vllm", "kv_role": "kv_both"}'

Decode pulls: a request's blocks are read from prefill's cache by one-sided reads, and count only if
a last read finds prefill's lease on them still running. Prefill has no thread and answers nothing;
a lease is a word in its memory. docs/integrations-vllm.md says how to use it.

Layers, top first; a module imports only from those above it:

    settings, geometry, groups, parallel, leases, counters   values and pure logic
    offers, descriptor, orders                               what instances and processes exchange
    lessor, slots, scratch, fetch, peers, load, notes, mover one side's work at a worker
    scheduler_side, worker_side                              the two halves, without vLLM
    staging, tensors, cache_groups, metrics, connector       the only ones that import torch or vLLM
"""

from __future__ import annotations

from typing import Any

__all__ = ["KvmendConnector"]


def __getattr__(name: str) -> Any:
    """Imports vLLM only when the connector itself is asked for."""
    if name != "KvmendConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .connector import KvmendConnector

    return KvmendConnector
