"""SGLang's environment names, and what they mean to kvmend's engine and KV manager."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from ..engine import EngineOptions

__all__ = ["PARK_MAX", "Settings", "read_settings"]

#: Seconds that a prefill request waits for a decode whose session is blacklisted; then it fails.
PARK_MAX = 60.0

#: Seconds; kvmend's first probe comes no later.
LEAST_INTERVAL = 0.1

ENABLE = "SGLANG_ENABLE_FAILED_SESSION_PROBE"
INTERVAL = "SGLANG_FAILED_SESSION_PROBE_INTERVAL_S"
MAX_INTERVAL = "SGLANG_FAILED_SESSION_PROBE_MAX_INTERVAL_S"
IDLE = "SGLANG_FAILED_SESSION_IDLE_TIMEOUT_S"
BOOTSTRAP = "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"
WAITING = "SGLANG_DISAGGREGATION_WAITING_TIMEOUT"
STAGING = "SGLANG_DISAGG_STAGING_BUFFER"
HND = "SGLANG_USE_HND_KVCACHE"


class Settings(NamedTuple):
    """What the environment says, checked. Times are seconds."""

    engine: EngineOptions
    bootstrap_timeout: float
    waiting_timeout: float
    staging: bool
    hnd: bool


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Raises ValueError, which names the variable, for a value that SGLang wouldn't take either.

    kvmend probes a failed session every 0.1 s while requests wait for it, whatever is set here: a
    probe interval is the largest one, of sessions that nobody asks for.
    """
    env = os.environ if environ is None else environ
    options: EngineOptions = {"park_max": PARK_MAX, "probe": _flag(env, ENABLE, True)}
    if INTERVAL in env or MAX_INTERVAL in env:
        longest = _seconds(env, MAX_INTERVAL, 300.0)
        interval = _seconds(env, INTERVAL, longest)
        if MAX_INTERVAL in env and interval > longest:
            raise ValueError(f"Need 0 < {INTERVAL} <= {MAX_INTERVAL}: {interval} and {longest}")
        options["probe_max"] = max(LEAST_INTERVAL, interval)
    if IDLE in env:
        options["idle_timeout"] = _seconds(env, IDLE, 600.0)
    return Settings(
        engine=options,
        bootstrap_timeout=_seconds(env, BOOTSTRAP, 300.0),
        waiting_timeout=_seconds(env, WAITING, 300.0),
        staging=_flag(env, STAGING, False),
        hnd=_flag(env, HND, False),
    )


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name}={text} is no number of seconds") from None
    if not 0 < value < 1e9:
        raise ValueError(f"{name}={text} must be positive")
    return value


def _flag(env: Mapping[str, str], name: str, default: bool) -> bool:
    text = env.get(name)
    if text is None:
        return default
    if text.lower() in ("true", "1", "yes", "y"):
        return True
    if text.lower() in ("false", "0", "no", "n"):
        return False
    raise ValueError(f"{name}={text} must be true or false")
