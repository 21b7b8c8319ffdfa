"""SGLang's transfer backend `kvmend`: its KV manager classes over kvmend's own KV manager.

The plugin (`kvmend.sglang.plugin`) registers the backend's name with SGLang; nobody needs to import
anything from here. The classes derive from SGLang's common ones, so importing them needs SGLang.
docs/integrations-sglang.md says how to use it and what differs from the original.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = [
    "KVBootstrapServer",
    "KVManager",
    "KVReceiver",
    "KVSender",
    "KvmendKVBootstrapServer",
    "KvmendKVManager",
    "KvmendKVReceiver",
    "KvmendKVSender",
    "watch_metadata",
]

_MODULES = {
    "KvmendKVBootstrapServer": "registry",
    "KvmendKVManager": "manager",
    "KvmendKVReceiver": "receiver",
    "KvmendKVSender": "sender",
}


def watch_metadata() -> None:
    """Lets the backend know SGLang's metadata buffers by name. Idempotent; needs SGLang."""
    from .aux_fields import watch

    watch(importlib.import_module("sglang.srt.disaggregation.utils"))


def __getattr__(name: str) -> Any:
    """Imports SGLang's classes only when one of ours is asked for."""
    full = name if name in _MODULES else f"Kvmend{name}"
    if full not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    watch_metadata()
    return getattr(importlib.import_module(f".{_MODULES[full]}", __name__), full)
