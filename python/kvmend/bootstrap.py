"""The registry where decode finds prefill ranks: a server, and a client that asks again."""

from __future__ import annotations

from typing import NamedTuple, TypedDict

from . import _kvmend
from .kv import KVManager

__all__ = ["BootstrapClient", "BootstrapServer", "PrefillRank", "Topology"]

DEFAULT_PORT = 8998
DEFAULT_TIMEOUT = 30.0  # seconds


class PrefillRank(NamedTuple):
    """Where a prefill rank's engine listens, and which process it is."""

    session_id: str
    incarnation: int


class Topology(TypedDict):
    """The shape of a complete prefill instance."""

    tp_size: int
    cp_size: int
    dp_size: int
    pp_size: int
    page_tokens: int
    dtype: str
    backend: str
    version: str
    epoch: int  # changes whenever a rank's address may have


class BootstrapServer:
    """The registry, in memory, with SGLang's HTTP routes. Any thread; it has threads of its own.

    Listens on loopback; another address needs `insecure=True`, and `shared_key` to say who may
    register. Port 0: any free one.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        *,
        insecure: bool = False,
        shared_key: str = "",
    ) -> None:
        """Raises InvalidArgumentError, PermissionDeniedError, ResourceExhaustedError (port)."""
        self._server = _kvmend.BootstrapServer(host, port, insecure, shared_key)

    def __enter__(self) -> BootstrapServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """ "host:port", IPv6 in brackets."""
        return self._server.address

    @property
    def url(self) -> str:
        """ "http://host:port"."""
        return self._server.url

    def stats(self) -> dict[str, int]:
        """Counters since the start; `ranks` and `rooms` as of now."""
        return self._server.stats()

    def stop(self) -> None:
        """Ends the server. Idempotent."""
        self._server.stop()


class BootstrapClient:
    """Asks a registry, again and again with growing pauses until a timeout. Any thread.

    Every call raises DeadlineExceededError (names the registry and the last reason),
    IncompatibleError (another manager than kvmend's stands on the other side), AuthFailedError or
    ProtocolError (no registry answers there).
    """

    def __init__(self, registry: str, *, shared_key: str = "") -> None:
        """`registry`: "host:port", "[::1]:8998", "::1" or a URL; port 8998 if there is none."""
        self._client = _kvmend.BootstrapClient(registry, shared_key)

    @property
    def url(self) -> str:
        """Where it asks."""
        return self._client.url

    def register(
        self, manager: KVManager, *, lease: int = 0, timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        """Enters a prefill manager's rank; doing it twice is harmless.

        `lease`: seconds after which the entry goes unless it is registered again; 0: never.
        Raises PeerRestartedError if a newer process has taken this rank's place.
        """
        layout, engine = manager.layout, manager.control
        self._client.register_rank(
            engine.session_id,
            engine.incarnation,
            layout.rank,
            layout.page_tokens,
            layout.components[0].dtype,
            lease,
            timeout,
        )

    def find(
        self,
        *,
        dp_rank: int = 0,
        cp_rank: int = 0,
        tp_rank: int = 0,
        pp_rank: int = 0,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> PrefillRank:
        """Waits until the instance is complete, then tells one rank. Raises NotFoundError."""
        return PrefillRank(*self._client.find_rank(dp_rank, cp_rank, tp_rank, pp_rank, timeout))

    def topology(self, timeout: float = DEFAULT_TIMEOUT) -> Topology:
        """Waits until the instance is complete, then tells its shape."""
        shape: Topology = self._client.topology(timeout)  # type: ignore[assignment]
        return shape
