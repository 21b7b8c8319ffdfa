"""The engine of a process, which all managers of it share, and SGLang's view of its sessions."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from ..engine import TransferEngine
from ..errors import KvmendError
from ..mooncake.environment import read_environment
from ..mooncake.start import REFUSED_PATIENCE, start_engine
from .settings import PARK_MAX, Settings

__all__ = ["SessionWatch", "recoveries_counter", "shared_engine"]

logger = logging.getLogger("kvmend.sglang")

WATCH_PERIOD = 1.0  # seconds

_lock = threading.Lock()
_engine: TransferEngine | None = None


def shared_engine(host: str, settings: Settings) -> TransferEngine:
    """One engine per process: it outlives a change of the role. Raises KvmendError, UnknownName."""
    global _engine
    with _lock:
        if _engine is None:
            _engine = start_engine(host, read_environment(), **settings.engine)
            logger.info("kvmend engine at %s", _engine.session_id)
        return _engine


def recoveries_counter() -> Any:
    """`sglang:failed_session_recoveries_total` as SGLang itself counts it."""
    try:
        from sglang.srt.disaggregation.mooncake import conn

        return conn.FAILED_SESSION_RECOVERIES
    except (ImportError, AttributeError):  # a version that has none, or no Mooncake backend
        from prometheus_client import Counter

        return Counter(
            "sglang:failed_session_recoveries_total",
            "Number of sessions un-blacklisted via probe.",
        )


class SessionWatch:
    """Follows the engine's sessions once a second. The sets may be read by any thread."""

    def __init__(
        self, engine: TransferEngine, counter: Any, after: Callable[[], None] = lambda: None
    ) -> None:
        """`after`: called on the watch's thread after every look."""
        self._engine = engine
        self._counter = counter
        self._after = after
        self._since: dict[str, float] = {}  # session id -> when it was first seen blacklisted
        self._counted = engine.stats().recoveries
        self._stop = threading.Event()
        self.failed: set[str] = set()
        self.probed: dict[str, str] = {}  # session id -> state
        self.failures: dict[str, int] = {}
        self.lost: dict[str, str] = {}  # session id -> why nobody should wait for it any more
        self.thread = threading.Thread(target=self._run, name="KvmendSessionWatch", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Ends the thread after a last look."""
        self._stop.set()
        self.thread.join(timeout=3.0)

    def look(self) -> None:
        """Takes the sessions as they are now."""
        sessions = self._engine.sessions()
        probed = {s.session_id: s.state for s in sessions if s.state in ("failed", "probing")}
        for session in probed.keys() - self.failed:
            logger.warning("session %s is blacklisted", session)
        for session in self.failed - probed.keys():
            logger.info("session %s is usable again", session)
        self.failed = set(probed)
        self.probed = probed
        self.failures = {s.session_id: s.transfers_failed for s in sessions if s.transfers_failed}
        now = time.monotonic()
        self._since = {session: self._since.get(session, now) for session in probed}
        self.lost = {
            s.session_id: f"decode {s.session_id} is gone: {s.last_error}"
            for s in sessions
            if s.session_id in probed and now - self._since[s.session_id] >= _patience(s.last_error)
        }
        recoveries = self._engine.stats().recoveries
        if recoveries > self._counted:
            self._counter.inc(recoveries - self._counted)
            self._counted = recoveries

    def _run(self) -> None:
        while True:
            stopping = self._stop.wait(WATCH_PERIOD)
            try:
                self.look()
                self._after()
            except KvmendError as error:  # the engine has ended
                logger.debug("session watch: %s", error)
                return
            if stopping:
                return


def _patience(error: str) -> float:
    """Seconds to wait for a blacklisted peer; a host that refuses connections has no process."""
    return REFUSED_PATIENCE if "refused" in error else PARK_MAX
