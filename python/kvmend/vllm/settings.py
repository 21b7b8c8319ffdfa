"""Settings of the connector: vLLM's `kv_connector_extra_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["Settings"]

#: Options of a kvmend engine that suit a peer whose work can be recomputed.
ENGINE_DEFAULTS: dict[str, Any] = {
    "park_max": 2.0,  # a blacklisted prefill: this long to come back, then recompute
    "refused_park_max": 0.5,  # its host refuses connections: the process is gone
    "shutdown_grace": 0.5,
}


@dataclass(frozen=True)
class Settings:
    """All have defaults; unknown names are refused. Times are seconds, sizes bytes."""

    #: Numeric address that other instances reach this one at. Beyond loopback needs `insecure`.
    host: str = "127.0.0.1"
    #: Connections aren't authenticated: say that the network is trusted.
    insecure: bool = False
    #: How long prefill keeps a finished request's blocks for decode.
    lease_seconds: float = 60.0
    #: The most time that a load may take; then decode recomputes (or fails, by vLLM's policy).
    load_deadline_seconds: float = 10.0
    #: XXH3-64 over every frame.
    checksum: bool = False
    #: "auto": caches must be in host memory; "always": go through a pool there.
    staging: str = "auto"
    #: Host memory of a worker for that.
    staging_bytes: int = 1 << 30
    #: Move states of Mamba layers too: untested with vLLM itself.
    states: bool = False
    #: More options of kvmend.TransferEngine, e.g. {"admin_listen": "127.0.0.1:9400"}.
    engine: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("lease_seconds", "load_deadline_seconds", "staging_bytes"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}, but must be positive")
        if self.staging not in ("auto", "always"):
            raise ValueError(f"staging is {self.staging!r}, but must be 'auto' or 'always'")

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> Settings:
        """From kv_connector_extra_config. Raises ValueError for names that don't exist."""
        names = [f.name for f in fields(cls)]
        if unknown := sorted(set(extra) - set(names)):
            raise ValueError(
                f"kv_connector_extra_config: there is no {', '.join(map(repr, unknown))}; "
                f"there are {', '.join(names)}"
            )
        return cls(**extra)

    def engine_options(self) -> dict[str, Any]:
        """Keyword arguments of kvmend.TransferEngine."""
        own = {"host": self.host, "insecure": self.insecure}
        return {**ENGINE_DEFAULTS, **own, **self.engine}
