"""What this engine knows about its peers' names."""

from __future__ import annotations

import threading

from .directory import Directory, Found

__all__ = ["Peers"]

MAX_PEERS = 65536


class Peers:
    """Names resolve once and stay pinned; a peer that restarted is marked. Any thread."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._found: dict[str, Found] = {}
        self._restarted: set[str] = set()

    def find(self, name: str) -> Found:
        """Raises UnknownName, NoMetadata."""
        with self._lock:
            found = self._found.get(name)
        return found or self.find_again(name)

    def find_again(self, name: str) -> Found:
        """Asks anew and forgets what was known: the caller learns the peer's addresses anew."""
        found = self._directory.find(name)
        with self._lock:
            if len(self._found) >= MAX_PEERS:
                self._found.clear()
            self._found[name] = found
        return found

    def has_moved(self, name: str) -> bool:
        """Whether the directory names another process than the pinned one; never raises."""
        with self._lock:
            known = self._found.get(name)
        if known is None or not known.incarnation:
            return False
        try:
            return self._directory.find(name).incarnation != known.incarnation
        except Exception:
            return False

    def mark_restarted(self, name: str) -> bool:
        """Whether that is news."""
        with self._lock:
            news = name not in self._restarted
            if len(self._restarted) < MAX_PEERS:
                self._restarted.add(name)
            return news

    def accept_restart(self, name: str) -> None:
        with self._lock:
            self._restarted.discard(name)

    def has_restarted(self, name: str) -> bool:
        with self._lock:
            return name in self._restarted
