"""Follows an engine's sessions and tells about each change of state, once."""

from __future__ import annotations

import threading

from kvmend import KvmendError, TransferEngine
from kvmend._kvmend import SessionTransition

from .channel import Channel

_POLL = 0.02  # seconds
_Key = tuple[str, str, str]


class SessionWatch:
    """A thread that reads `engine.sessions()` and emits "session" and "sample" events."""

    def __init__(self, engine: TransferEngine, channel: Channel) -> None:
        self._engine = engine
        self._channel = channel
        self._transport = ""
        self._seen: dict[str, list[_Key]] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Looks once more, then ends."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            last = self._end.wait(_POLL)
            try:
                self._look()
            except KvmendError:
                return  # the engine is shut down
            if last:
                return

    def _look(self) -> None:
        now, sessions = self._engine._engine.sessions_as_of()
        for session in sessions:
            self._transport = session.transport
            history = session.history
            seen = self._seen.get(session.session_id, [])
            for change in history[_already_told(seen, [_key(c) for c in history]) :]:
                self._channel.emit(
                    "session",
                    t=now - change.seconds_ago,
                    peer=session.session_id,
                    from_state=change.from_state,
                    to_state=change.to_state,
                    cause=change.cause,
                )
            self._seen[session.session_id] = [_key(c) for c in history]
        stats = self._engine.stats()
        self._channel.emit(
            "sample",
            transport=self._transport,
            bytes_sent=stats.bytes_sent,
            bytes_received=stats.bytes_received,
            retries=stats.retries,
            recoveries=stats.recoveries,
        )


def _key(change: SessionTransition) -> _Key:
    return change.from_state, change.to_state, change.cause


def _already_told(seen: list[_Key], history: list[_Key]) -> int:
    """How many entries of `history` are the end of `seen` (old ones fall out at the front)."""
    for start in range(len(seen)):
        if history[: len(seen) - start] == seen[start:]:
            return len(seen) - start
    return 0
