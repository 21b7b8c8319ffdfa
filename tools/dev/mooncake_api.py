"""Compares `kvmend.mooncake` with the real Mooncake wheel: every name of the module that is meant to
be there, every method of TransferEngine, the names, kinds and defaults of its arguments, and what
both return for bad arguments (not what ends the original's process). Exits 1 on a difference."""

from __future__ import annotations

import inspect
import os
import re
import sys
from typing import Any

os.environ.setdefault("MC_FORCE_TCP", "true")
os.environ.setdefault("GLOG_minloglevel", "3")

import kvmend.mooncake as ours
import mooncake.engine as real

#: docs/integrations-mooncake.md, Known gaps.
NOT_OFFERED = {
    "CoroRPCInterface", "InnerTransferEngine", "ReceivedData", "ReceivedTensor", "RpcInterface",
    "SharedSegment", "create_rpc_client", "create_rpc_server",
}  # fmt: skip


def real_arguments(doc: str) -> list[tuple[str, bool, Any]]:
    """(name, positional only, default or None) from pybind's first line, without self."""
    inside = doc.split("(", 1)[1].rsplit(") ->", 1)[0]
    out = []
    for part in re.split(r", (?=\w+: )", inside)[1:]:
        name, _, rest = part.partition(": ")
        default = rest.partition(" = ")[2] or None
        out.append((name, re.fullmatch(r"arg\d+", name) is not None, default))
    return out


def our_arguments(method: Any) -> list[tuple[str, bool, Any]]:
    out = []
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.name == "parts":  # given by the wrapper that checks `initialize`
            continue
        default = None if parameter.default is inspect.Parameter.empty else repr(parameter.default)
        out.append((parameter.name, parameter.kind == parameter.POSITIONAL_ONLY, default))
    return out


def differences() -> list[str]:
    found = []
    for name in dir(real):
        if not name.startswith("_") and name not in NOT_OFFERED and not hasattr(ours, name):
            found.append(f"{name} is missing")
    for name in dir(real.TransferEngine):
        if name.startswith("_"):
            continue
        method = getattr(ours.TransferEngine, name, None)
        if method is None:
            found.append(f"TransferEngine.{name} is missing")
            continue
        doc = (getattr(real.TransferEngine, name).__doc__ or "").strip().splitlines()[0]
        if "(self" not in doc:
            continue
        theirs, mine = real_arguments(doc), our_arguments(method)
        same = len(theirs) == len(mine) and all(
            (a[0] == b[0] or (a[1] and b[1])) and a[1] == b[1] and a[2] == b[2]
            for a, b in zip(theirs, mine, strict=True)
        )
        if not same:
            found.append(f"TransferEngine.{name}: {theirs}, here {mine}")
    for kind in ("Read", "Write"):
        if int(getattr(real, kind)) != int(getattr(ours, kind)):
            found.append(f"{kind} has another number")
    return found


def answers(module: Any) -> dict[str, Any]:
    """Return numbers that callers look at."""
    engine = module.TransferEngine()
    memory = bytearray(8192)
    import ctypes

    address = ctypes.addressof((ctypes.c_char * 8192).from_buffer(memory))
    out: dict[str, Any] = {"initialize": engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")}
    out["rpc port"] = engine.get_rpc_port() > 0
    out["register"] = engine.register_memory(address, 4096)
    out["register over it"] = engine.register_memory(address + 64, 64)
    out["register no bytes"] = engine.register_memory(address + 4096, 0)
    out["unregister unknown"] = engine.unregister_memory(address + 5000)
    out["batch unregister unknown"] = engine.batch_unregister_memory([address + 5000])
    name = f"127.0.0.1:{engine.get_rpc_port()}"
    out["first buffer"] = engine.get_first_buffer_address(name) == address
    out["write of no bytes"] = engine.transfer_sync_write(name, address, address, 0)
    out["empty batch"] = engine.batch_transfer_sync_write(name, [], [], [])
    out["batch of two lengths"] = engine.batch_transfer_sync_write(name, [address], [address], [])
    out["probe of itself"] = engine.send_probe(name)
    out["probe of nobody"] = engine.send_probe("127.0.0.1:9")
    out["notifies"] = engine.get_notifies()
    out["unregister"] = engine.unregister_memory(address)
    return out


def main() -> int:
    found = differences()
    theirs, mine = answers(real), answers(ours)
    for name, value in theirs.items():
        if mine[name] != value:
            found.append(f"{name}: {value!r}, here {mine[name]!r}")
    methods = sum(not name.startswith("_") for name in dir(real.TransferEngine))
    print(f"{methods} names of TransferEngine, {len(theirs)} answers: {found or 'the same'}")
    return 1 if found else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the original's threads may outlive its engine
