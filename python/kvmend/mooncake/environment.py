"""The environment names of the original that mean something here."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Environment", "read_environment"]

logger = logging.getLogger("kvmend.mooncake")

DEFAULT_TIMEOUT = 30
MIN_TIMEOUT = 5  # what the original raises smaller values to

_HONOURED = frozenset(
    {
        "MC_FORCE_TCP",
        "MC_TRANSFER_TIMEOUT",
        "MC_TCP_BIND_ADDRESS",
        "MC_MIN_RPC_PORT",
        "MC_MAX_RPC_PORT",
        # As the original spells them.
        "MC_MIN_PRC_PORT",
        "MC_MAX_PRC_PORT",
        # Read by programs around the engine, not by the engine.
        "MC_METADATA_SERVER",
        "MC_LOCAL_SERVER_NAME",
    }
)


class Environment(NamedTuple):
    """What was set, checked."""

    timeout: float  # seconds of a transfer, before what its size adds
    force_tcp: bool
    bind_address: str  # "": the host name's own address
    ports: range  # empty: any free port


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """Reads the process's environment; one warning line names what is set but has no meaning."""
    env = os.environ if environ is None else environ
    ignored = sorted(name for name in env if name.startswith("MC_") and name not in _HONOURED)
    if ignored:
        logger.warning("these names of the environment have no meaning here: %s", " ".join(ignored))
    timeout = _number(env, "MC_TRANSFER_TIMEOUT", DEFAULT_TIMEOUT)
    return Environment(
        timeout=max(MIN_TIMEOUT, timeout),
        force_tcp="MC_FORCE_TCP" in env,
        bind_address=env.get("MC_TCP_BIND_ADDRESS", ""),
        ports=_ports(env),
    )


def _ports(env: Mapping[str, str]) -> range:
    low = _number(env, "MC_MIN_RPC_PORT", _number(env, "MC_MIN_PRC_PORT", 0))
    high = _number(env, "MC_MAX_RPC_PORT", _number(env, "MC_MAX_PRC_PORT", 0))
    if low == 0 and high == 0:
        return range(0)
    low, high = low or 1024, high or 65535
    if 0 < low <= high <= 65535:
        return range(low, high + 1)
    logger.warning("ports from %d to %d are no range: taking any free port", low, high)
    return range(0)


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        logger.warning("%s=%s is no whole number: taking %d", name, text, default)
        return default
