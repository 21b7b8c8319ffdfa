"""Engines that aren't kvmend's under a KV manager: whatever has the API of `mooncake.engine`.

`KVManager(engine=obj, ...)` uses this; the only name here for users is `ForeignOptions`.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Protocol, TypedDict, runtime_checkable

from . import _kvmend
from .engine import TransferEngine
from .errors import InvalidArgumentError, KvmendError
from .kv_layout import KVLayout

__all__ = ["ForeignEngine", "ForeignOptions", "Foreign"]

logger = logging.getLogger("kvmend.foreign")

#: What a probe of an engine without `send_probe` returns.
UNAVAILABLE = -1
#: Seconds after which a thread that had nothing to do ends, unless it is the last one.
IDLE = 30.0


@runtime_checkable
class ForeignEngine(Protocol):
    """What a manager calls; Mooncake's engine has it. Return numbers: 0 is success.

    `send_probe(session) -> int` is used where there is one.
    """

    def batch_register_memory(self, addresses: list[int], lengths: list[int]) -> int: ...

    def batch_unregister_memory(self, addresses: list[int]) -> int: ...

    def batch_transfer_sync_write(
        self, session: str, buffers: list[int], peer_addresses: list[int], lengths: list[int]
    ) -> int: ...

    def get_rpc_port(self) -> int: ...


class ForeignOptions(TypedDict, total=False):
    """How a manager uses such an engine. Times are seconds."""

    session_id: str  #: how peers' engines name this one; default: control's host:get_rpc_port()
    control: TransferEngine  #: carries the messages; default: one at the host of `session_id`
    register: bool  #: register the layout's buffers with the engine (True)
    writers: int  #: threads that write, at most (16)
    probers: int  #: threads that probe, at most (32)
    probe: bool  #: ask blacklisted sessions (True)
    probe_interval: float  #: the first one; doubles (1.0)
    probe_max_interval: float  #: (30.0)
    idle_timeout: float  #: a blacklisted session nobody wanted is forgotten (600.0)


class Foreign:
    """An engine, the control engine beside it, and the threads that call it. Any thread."""

    def __init__(self, engine: Any, layout: KVLayout, options: ForeignOptions) -> None:
        """Raises InvalidArgumentError (the engine lacks methods, an option, registering failed)."""
        wanted = [name for name in dir(ForeignEngine) if not name.startswith("_")]
        missing = [name for name in wanted if not callable(getattr(engine, name, None))]
        if missing:
            raise InvalidArgumentError(
                f"{type(engine).__name__} is neither a kvmend.TransferEngine nor an engine with "
                f"Mooncake's API: it has no {', '.join(missing)}"
            )
        unknown = options.keys() - ForeignOptions.__annotations__.keys()
        if unknown:
            raise InvalidArgumentError(f"unknown foreign options: {', '.join(sorted(unknown))}")
        self._limits = {False: options.get("writers", 16), True: options.get("probers", 32)}
        for probe, limit in self._limits.items():
            if not 1 <= limit <= 1024:
                name = "probers" if probe else "writers"
                raise InvalidArgumentError(f"{name} is {limit}, but must be 1 to 1024")
        self.engine = engine
        control = options.get("control")
        self._owned: TransferEngine | None = None
        session_id = options.get("session_id")
        if session_id is None:
            if control is None:
                raise InvalidArgumentError(
                    "a foreign engine doesn't tell its host: give "
                    "foreign={'session_id': 'host:port'} as peers' engines name it"
                )
            session_id = f"{_host(control.session_id)}:{engine.get_rpc_port()}"
        if control is None:
            control = self._owned = TransferEngine(host=_host(session_id).strip("[]"))
        self.control = control
        self.calls = _kvmend.ForeignCalls(
            session_id,
            options.get("probe", True),
            options.get("probe_interval", 1.0),
            options.get("probe_max_interval", 30.0),
            options.get("idle_timeout", 600.0),
        )
        self._registered: list[int] = []
        try:
            if options.get("register", True):
                self._register(layout)
        except BaseException:
            self._shut_down_owned()
            raise
        self._lock = threading.Lock()
        self._threads = {False: 0, True: 0}
        self._idle = {False: 0, True: 0}

    def start(self) -> None:
        """Begins to run calls. After the manager is made: it checks the options."""
        for probe in (False, True):
            self._spawn(probe)

    def close(self) -> None:
        """After the manager's teardown. Doesn't wait for calls inside the engine: their threads
        end with them, and nobody looks at what they return."""
        self.calls.close()
        registered, self._registered = self._registered, []
        if registered:
            try:
                rc = self.engine.batch_unregister_memory(registered)
                if rc != 0:
                    logger.warning("unregistering %d buffers returned %s", len(registered), rc)
            except Exception as error:
                logger.warning("unregistering %d buffers: %r", len(registered), error)
        self._shut_down_owned()

    def _shut_down_owned(self) -> None:
        owned, self._owned = self._owned, None
        if owned is not None:
            try:
                owned.shutdown()
            except KvmendError as error:
                logger.warning("the control engine: %s", error)

    def _register(self, layout: KVLayout) -> None:
        buffers = {
            address: component.items * item_len
            for component in layout.components
            for address, item_len, *_ in component.buffer_list
            if item_len
        }
        addresses = list(buffers)
        rc = self.engine.batch_register_memory(addresses, list(buffers.values()))
        if rc != 0:
            raise InvalidArgumentError(
                f"{type(self.engine).__name__}.batch_register_memory of {len(buffers)} buffers "
                f"returned {rc}; where they are registered already give foreign={{'register': False}}"
            )
        self._registered = addresses

    # ------------------------------------------------------------------------------------- threads

    def _spawn(self, probe: bool) -> None:
        with self._lock:
            if self._threads[probe] >= self._limits[probe] or self._idle[probe] > 0:
                return
            self._threads[probe] += 1
            self._idle[probe] += 1
        name = "KvmendForeignProbe" if probe else "KvmendForeignWrite"
        threading.Thread(target=self._run, args=(probe,), name=name, daemon=True).start()

    def _run(self, probe: bool) -> None:
        while True:
            call = self.calls.take(probe, IDLE)
            with self._lock:
                if call is None and (self.calls.closed or self._idle[probe] > 1):
                    self._threads[probe] -= 1
                    self._idle[probe] -= 1
                    return
                if call is None:
                    continue
                self._idle[probe] -= 1
            self._spawn(probe)  # one always waits, however long this one takes
            rc, error = 0, ""
            try:
                rc = self._call(probe, *call[1:])
            except BaseException as raised:  # whatever the engine throws is a result
                error = f"{type(raised).__name__}: {raised}"
            with self._lock:
                self._idle[probe] += 1
            self.calls.finish(call[0], rc, error)

    def _call(
        self, probe: bool, session: str, sources: list[int], targets: list[int], lengths: list[int]
    ) -> int:
        if not probe:
            return int(self.engine.batch_transfer_sync_write(session, sources, targets, lengths))
        ask = getattr(self.engine, "send_probe", None)
        return UNAVAILABLE if ask is None else int(ask(session))


def _host(session_id: str) -> str:
    host, colon, port = session_id.rpartition(":")
    if not (colon and host and port.isdigit()):
        raise InvalidArgumentError(f"session_id is {session_id!r}, but must be 'host:port'")
    return host
