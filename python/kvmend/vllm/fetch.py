"""Decode's worker: a prefill rank's descriptor, and processes that take another's address."""

from __future__ import annotations

import threading

import numpy as np
from kvmend import Access, KvmendError, PeerRestartedError, TransferEngine
from kvmend._kvmend import Transfer

from .descriptor import Descriptor
from .offers import RankAddress

__all__ = ["Fetch"]


class Fetch:
    """A descriptor on its way, by one read. Several loads may wait for the same one.

    A session stays pinned to the process that it knew; an offer of a process that has taken its
    address is reason to accept the new one. What the old one offered fails all the same, since
    every transfer names the incarnation that it is meant for.
    """

    def __init__(self, engine: TransferEngine, address: RankAddress, deadline: float) -> None:
        """`deadline`: seconds."""
        self._engine = engine
        self._address = address
        self._deadline = deadline
        self._buffer = np.zeros(address.descriptor_bytes, np.uint8)
        self._here = engine.register_memory(self._buffer, Access.NONE)
        self._registered = True
        self._found: Descriptor | None = None
        self._error: Exception | None = None
        self._reopening: Reopening | None = None
        try:
            self._transfer = self._read()
        except BaseException:
            self.close()
            raise

    @property
    def failed(self) -> bool:
        return self._error is not None

    def poll(self) -> Descriptor | None:
        """The descriptor, or None while it is on its way. Raises KvmendError, Incompatible."""
        if self._found is None and self._error is None:
            try:
                self._found = self._step()
            except Exception as error:
                self._error = error
            if self._found or self._error:
                self.close()
        if self._error is not None:
            raise self._error
        return self._found

    def _step(self) -> Descriptor | None:
        if self._reopening and not self._reopening.used:
            if not self._reopening.done():
                return None
            if self._reopening.incarnation != self._address.incarnation:
                self._transfer.poll()  # raises: what was offered is gone
            self._transfer = self._read()
        if not self._transfer.done():
            return None
        try:
            self._transfer.poll()
        except PeerRestartedError:
            if self._reopening:
                raise
            self._reopening = Reopening(self._engine, self._address.session_id, self._deadline)
            return None
        return Descriptor.decode(self._buffer.tobytes())

    def _read(self) -> Transfer:
        return self._engine.submit(
            self._address.session_id, "read", self._here, self._address.descriptor,
            self._address.descriptor_bytes, deadline=self._deadline, urgent=True,
            target_incarnation=self._address.incarnation,
        )  # fmt: skip

    def close(self) -> None:
        """Takes the buffer back; a read that still runs ends."""
        if self._registered:
            self._engine.unregister_memory(self._buffer)
        self._registered = False


class Reopening(threading.Thread):
    """Accepts whatever process answers at a session's address now; that may take a while."""

    def __init__(self, engine: TransferEngine, session_id: str, deadline: float) -> None:
        super().__init__(name="kvmend-reopen", daemon=True)
        self.used = False
        self._engine, self._session_id, self._deadline = engine, session_id, deadline
        self.incarnation = 0
        self._error: KvmendError | None = None
        self.start()

    def run(self) -> None:
        try:
            self.incarnation = self._engine.open_session(
                self._session_id, self._deadline
            ).incarnation
        except KvmendError as error:
            self._error = error

    def done(self) -> bool:
        """Whether one has answered; raises what stood in the way."""
        if self.is_alive():
            return False
        self.used = True
        if self._error:
            raise self._error
        return True
