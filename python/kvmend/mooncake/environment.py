"""The environment names of the original that mean something here."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from typing import NamedTuple

from ..engine import EngineOptions

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


# SGLang's names for what its own probes do. The engine below it heals sessions by itself, so they
# mean the engine's probes here.
PROBE = "SGLANG_ENABLE_FAILED_SESSION_PROBE"
PROBE_INTERVAL = "SGLANG_FAILED_SESSION_PROBE_INTERVAL_S"
PROBE_MAX_INTERVAL = "SGLANG_FAILED_SESSION_PROBE_MAX_INTERVAL_S"
IDLE_TIMEOUT = "SGLANG_FAILED_SESSION_IDLE_TIMEOUT_S"
LEAST_INTERVAL = 0.1  # seconds: the engine's first probe


class Environment(NamedTuple):
    """What was set, checked."""

    timeout: float  # seconds of a transfer, before what its size adds
    force_tcp: bool
    bind_address: str  # "": the host name's own address
    ports: range  # empty: any free port
    recovery: EngineOptions  # only what was set; else the engine's own schedule


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
        recovery=_recovery(env),
    )


def _recovery(env: Mapping[str, str]) -> EngineOptions:
    """The interval is the largest one: the engine's schedule begins at 0.1 s in any case."""
    options: EngineOptions = {}
    if PROBE in env:
        options["probe"] = env[PROBE].strip().lower() not in ("0", "false", "no", "off", "n", "f", "")
    for name in (PROBE_INTERVAL, PROBE_MAX_INTERVAL):
        seconds = _seconds(env, name)
        if seconds is not None:
            options["probe_max"] = max(LEAST_INTERVAL, seconds)
            break
    idle = _seconds(env, IDLE_TIMEOUT)
    if idle is not None:
        options["idle_timeout"] = idle
    return options


def _seconds(env: Mapping[str, str], name: str) -> float | None:
    text = env.get(name)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if 0 < seconds <= 86_400:
        return seconds
    logger.warning("%s=%s is no number of seconds up to a day: ignored", name, text)
    return None


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
