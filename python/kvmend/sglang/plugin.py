"""The entry point in SGLang's group `sglang.srt.plugins`: registers the transfer backend `kvmend`.

SGLang runs it in each of its processes, before arguments are parsed. It changes nothing but that
the backend's name is known, unless KVMEND_SGLANG_REPLACE_MOONCAKE=1 is set: then the classes of the
backend `mooncake` are kvmend's too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

__all__ = ["NAME", "REPLACE", "register"]

logger = logging.getLogger("kvmend.sglang")

NAME = "kvmend"
REPLACE = "KVMEND_SGLANG_REPLACE_MOONCAKE"

#: SGLang's KVClassType values and our classes.
_CLASSES = {
    "manager": "KvmendKVManager",
    "sender": "KvmendKVSender",
    "receiver": "KvmendKVReceiver",
    "bootstrap_server": "KvmendKVBootstrapServer",
}


def register() -> None:
    """Idempotent. Raises ImportError for an SGLang without transfer backends to choose from."""
    from sglang.srt.arg_groups.choices import DISAGG_TRANSFER_BACKEND_CHOICES
    from sglang.srt.disaggregation.utils import TransferBackend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if NAME in DISAGG_TRANSFER_BACKEND_CHOICES:
        return
    DISAGG_TRANSFER_BACKEND_CHOICES.append(NAME)
    _add_member(TransferBackend)
    HookRegistry.register(
        "sglang.srt.disaggregation.utils.get_kv_class", _get_kv_class, HookType.AROUND
    )


def _add_member(backends: Any) -> None:
    """SGLang's enumeration of backends has no way to add one."""
    member = object.__new__(backends)
    member._name_, member._value_ = NAME.upper(), NAME
    backends._member_map_[NAME.upper()] = member
    backends._value2member_map_[NAME] = member
    backends._member_names_.append(NAME.upper())


def _get_kv_class(original: Callable[[Any, Any], Any], transfer_backend: Any, class_type: Any) -> Any:
    ours = _CLASSES.get(class_type.value)  # KVArgs is the same for all backends
    wanted = (NAME, "mooncake") if replaces_mooncake() else (NAME,)
    if transfer_backend.value not in wanted:
        return original(transfer_backend, class_type)
    import kvmend.sglang

    # KVArgs are asked for first: from then on the buffers' names are known.
    kvmend.sglang.watch_metadata()
    if ours is None:
        return original(transfer_backend, class_type)
    return getattr(kvmend.sglang, ours)


def replaces_mooncake() -> bool:
    """Whether `--disaggregation-transfer-backend mooncake` means this one."""
    return os.environ.get(REPLACE, "").lower() in ("1", "true", "yes")
