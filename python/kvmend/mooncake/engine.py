"""`mooncake.engine`: TransferEngine and what goes with it, over kvmend's engine."""

from __future__ import annotations

import ctypes
import enum
import functools
import logging
import operator
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from .. import engine as core
from .._kvmend import Transfer
from ..errors import Code, DeadlineExceededError, KvmendError
from . import codes, names
from .batches import Batches
from .codes import Rc
from .directory import Directory, Found, NoMetadata, PeerToPeer, open_directory
from .environment import read_environment
from .foreign import is_mooncake
from .memory import ManagedBuffers, Ranges, is_readable
from .names import UnknownName
from .peers import Peers
from .start import start_engine

__all__ = [
    "SUPPORT_CUDA",
    "SUPPORT_EFA",
    "SUPPORT_HIP",
    "SUPPORT_INTRA_NVLINK",
    "SUPPORT_MNNVL",
    "SUPPORT_MUSA",
    "Read",
    "TransferEngine",
    "TransferNotify",
    "TransferOpcode",
    "Write",
]

logger = logging.getLogger("kvmend.mooncake")

SUPPORT_CUDA = False
SUPPORT_EFA = False
SUPPORT_HIP = False
SUPPORT_INTRA_NVLINK = False
SUPPORT_MNNVL = False
SUPPORT_MUSA = False

OPEN_TIMEOUT = 5.0  # seconds, of questions to a peer
PROBE_TIMEOUT = 1.0  # seconds; callers probe one peer after another
ALIEN_AFTER = 1.0  # seconds until a transfer asks whether its peer is an engine of ours at all
SECONDS_PER_BYTE = 1e-9  # what a transfer's size adds to its deadline, as in the original

Addresses = npt.NDArray[np.uint64]
P = ParamSpec("P")
T = TypeVar("T")


class TransferOpcode(enum.IntEnum):
    """The direction of a transfer, seen from its initiator."""

    Read = 0
    Write = 1


Read = TransferOpcode.Read
Write = TransferOpcode.Write


class TransferNotify:
    """A message that follows a transfer's data."""

    def __init__(self, name: str = "", msg: str = "") -> None:
        self.name = name
        self.msg = msg

    def __repr__(self) -> str:
        return f"TransferNotify(name={self.name!r}, msg={self.msg!r})"


class _Parts:
    """What `initialize` makes; all of it or nothing."""

    def __init__(
        self, engine: core.TransferEngine, name: str, directory: Directory, timeout: float
    ) -> None:
        self.engine = engine
        self.name = name
        self.port = names.split(engine.session_id)[1]
        self.own_names = {engine.session_id, names.join(names.split(name)[0], self.port)}
        if not isinstance(directory, PeerToPeer):
            self.own_names.add(name)
        self.timeout = timeout
        self.peers = Peers(directory)


def _initialised(
    otherwise: Any,
) -> Callable[
    [Callable[Concatenate[TransferEngine, _Parts, P], T]],
    Callable[Concatenate[TransferEngine, P], T],
]:
    """Hands the parts of an initialised engine to a method; else that returns `otherwise`."""

    def wrap(
        method: Callable[Concatenate[TransferEngine, _Parts, P], T],
    ) -> Callable[Concatenate[TransferEngine, P], T]:
        @functools.wraps(method)
        def call(self: TransferEngine, *args: P.args, **kwargs: P.kwargs) -> T:
            parts = self._parts
            if parts is None:
                logger.error("%s: the engine isn't initialised", method.__name__)
                default: T = otherwise() if callable(otherwise) else otherwise
                return default
            return method(self, parts, *args, **kwargs)

        return call  # type: ignore[return-value]

    return wrap


class TransferEngine:
    """The original's engine: same methods, arguments and return numbers.

    Any thread may call any method; the interpreter lock is released while bytes move. Arguments of
    the wrong type raise TypeError, everything else is a return number and one line in the log
    `kvmend.mooncake`. A transfer that returned is over: nothing reads or writes its memory any
    more, whatever it returned.

    A peer's name is pinned to the first process that answers to it. When that has restarted, calls
    by address return -1 ("peer restarted") until `get_first_buffer_address(name)` asks for the new
    process's addresses.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: _Parts | None = None
        self._ranges = Ranges()
        self._managed = ManagedBuffers()
        self._batches = Batches()

    # ----------------------------------------------------------------------------------- the start

    def initialize(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, /
    ) -> int:
        """Starts the engine at a fresh port of `local_hostname`; 0 or -1.

        `metadata_server`: "P2PHANDSHAKE" or "http://host:port/metadata". `protocol`: everything
        becomes tcp. `device_name` is ignored.
        """
        return self._initialize(local_hostname, metadata_server, "", protocol)

    def initialize_ext(
        self,
        local_hostname: str,
        metadata_server: str,
        protocol: str,
        device_name: str,
        metadata_type: str,
        /,
    ) -> int:
        """`initialize` with the scheme of `metadata_server` in an argument of its own."""
        return self._initialize(local_hostname, metadata_server, metadata_type, protocol)

    def _initialize(self, name: str, metadata: str, kind: str, protocol: str) -> int:
        for text in (name, metadata, kind, protocol):
            if not isinstance(text, str):
                raise TypeError(f"{text!r} isn't a str")
        environment = read_environment()
        if protocol not in ("tcp", "") and not environment.force_tcp:
            logger.warning("protocol %r isn't offered: using tcp", protocol)
        with self._lock:
            if self._parts is not None:
                logger.error("initialize: this engine runs already, as %s", self._parts.name)
                return Rc.INVALID_ARGUMENT
            try:
                directory = open_directory(metadata, kind)
                engine = start_engine(
                    names.split(name)[0], environment, default_deadline=environment.timeout
                )
            except (KvmendError, UnknownName, NoMetadata) as error:
                logger.error("initialize(%r): %s", name, error)
                return Rc.INVALID_ARGUMENT
            try:
                directory.announce(name, Found(engine.session_id, engine.incarnation))
            except NoMetadata as error:
                logger.error("initialize(%r): %s", name, error)
                engine.shutdown(0)
                return Rc.INVALID_ARGUMENT
            self._parts = _Parts(engine, name, directory, environment.timeout)
            # At the latest at exit, and before the engine itself ends.
            weakref.finalize(self, directory.withdraw, name)
            return Rc.OK

    @_initialised(otherwise=-1)
    def get_rpc_port(self, parts: _Parts) -> int:
        """The port of the session id "host:port"; -1 before `initialize`."""
        return parts.port

    # -------------------------------------------------------------------------------------- memory

    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """0; -7 overlaps a registered buffer; -1 no bytes, or no host memory of this process."""
        return self._register([(_number(buffer_addr), _number(capacity))])

    def batch_register_memory(
        self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = "*"
    ) -> int:
        """All of them or none; numbers as of `register_memory`, -1 when the lists differ."""
        addresses, lengths = list(buffer_addresses), list(capacities)
        if len(addresses) != len(lengths):
            logger.error("%d buffer addresses but %d capacities", len(addresses), len(lengths))
            return Rc.INVALID_ARGUMENT
        return self._register(
            [(_number(a), _number(n)) for a, n in zip(addresses, lengths, strict=True)]
        )

    @_initialised(otherwise=-1)
    def _register(self, parts: _Parts, ranges: list[tuple[int, int]]) -> int:
        if not ranges:
            return Rc.OK
        if any(length == 0 for _, length in ranges):
            logger.error("register: a buffer of 0 bytes")
            return Rc.INVALID_ARGUMENT
        strange = is_readable(ranges)
        if strange:
            logger.error("register: %d bytes at %#x are no host memory", strange[1], strange[0])
            return Rc.INVALID_ARGUMENT
        try:
            parts.engine.register_batch(ranges)
        except KvmendError as error:
            logger.error("register: %s", error)
            return codes.of_memory(error)
        self._ranges.add(ranges)
        return Rc.OK

    def unregister_memory(self, buffer_addr: int, /) -> int:
        """0; -3 isn't registered."""
        return self._unregister([_number(buffer_addr)])

    def batch_unregister_memory(self, buffer_addresses: Sequence[int], /) -> int:
        """0; -3 when some aren't registered (the others are taken back all the same)."""
        return self._unregister([_number(address) for address in buffer_addresses])

    @_initialised(otherwise=-1)
    def _unregister(self, parts: _Parts, addresses: list[int]) -> int:
        result = int(Rc.OK)
        for address in addresses:
            self._ranges.remove(address)
            try:
                parts.engine.unregister_memory(address)
            except KvmendError as error:
                logger.error("unregister: %s", error)
                result = codes.of_memory(error)
        return result

    def allocate_managed_buffer(self, length: int, /) -> int:
        """The address of registered, zeroed memory that belongs to the engine; 0: there is none."""
        length = max(1, _number(length))
        address = self._managed.allocate(length)
        if address and self._register([(address, length)]) != 0:
            self._managed.take(address)
            return 0
        return address

    def free_managed_buffer(self, buffer_addr: int, length: int, /) -> int:
        """0; -1 when `allocate_managed_buffer` hasn't returned that address."""
        address = _number(buffer_addr)
        _number(length)
        memory = self._managed.take(address)
        if memory is None:
            logger.error("free_managed_buffer: %#x isn't a managed buffer", address)
            return Rc.INVALID_ARGUMENT
        if self._unregister([address]) != 0:
            self._managed.put_back(address, memory)
            return Rc.INVALID_ARGUMENT
        return Rc.OK

    def write_bytes_to_buffer(self, buffer_addr: int, data: bytes | str, length: int, /) -> int:
        """Copies `length` bytes into registered memory of this process; 0 or -1."""
        address, length = _number(buffer_addr), _number(length)
        raw = data.encode() if isinstance(data, str) else bytes(data)
        if length > len(raw) or (length and not self._ranges.contains(address, length)):
            logger.error("write_bytes_to_buffer: %d of %d bytes to %#x: beyond the end, or not "
                         "registered", length, len(raw), address)
            return Rc.INVALID_ARGUMENT
        if length:
            ctypes.memmove(address, raw, length)
        return Rc.OK

    def read_bytes_from_buffer(self, buffer_addr: int, length: int, /) -> bytes:
        """`length` bytes of registered memory of this process; ValueError when it isn't."""
        address, length = _number(buffer_addr), _number(length)
        if length == 0:
            return b""
        if not self._ranges.contains(address, length):
            raise ValueError(f"{length} bytes at {address:#x} aren't registered")
        return ctypes.string_at(address, length)

    @_initialised(otherwise=0)
    def get_first_buffer_address(self, parts: _Parts, segment_name: str, /) -> int:
        """The address of the buffer that the peer registered first, or 0.

        This asks the process that answers to the name now, and pins the name to it.
        """
        if segment_name in parts.own_names:
            return self._ranges.first()
        try:
            found = parts.peers.find_again(segment_name)
            regions = parts.engine.peer_regions(found.session_id, OPEN_TIMEOUT)
        except (KvmendError, UnknownName, NoMetadata) as error:
            logger.error("get_first_buffer_address(%r): %s", segment_name, error)
            return 0
        parts.peers.accept_restart(segment_name)
        return regions[0][0] if regions else 0

    # ----------------------------------------------------------------------------------- transfers

    def transfer_sync_write(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        """0 once the bytes are in the peer's memory, else -1."""
        return self._sync(target_hostname, [buffer], [peer_buffer_address], [length], Write)

    def transfer_sync_read(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        """0 once the peer's bytes are in `buffer`, else -1."""
        return self._sync(target_hostname, [buffer], [peer_buffer_address], [length], Read)

    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """`transfer_sync_write` of any number of runs of bytes; nothing to do is 0."""
        return self._sync(target_hostname, buffers, peer_buffer_addresses, lengths, Write)

    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """`transfer_sync_read` of any number of runs of bytes; nothing to do is 0."""
        return self._sync(target_hostname, buffers, peer_buffer_addresses, lengths, Read)

    def transfer_sync(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """Either direction; `notify` reaches the peer after the data has."""
        return self._sync(
            target_hostname, [buffer], [peer_buffer_address], [length], opcode, notify
        )

    def batch_transfer_sync(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """`transfer_sync` of any number of runs of bytes."""
        return self._sync(
            target_hostname, buffers, peer_buffer_addresses, lengths, opcode, notify
        )

    def batch_transfer_async_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Starts a write; its id for `get_batch_transfer_status`, or 0."""
        return self._start(target_hostname, buffers, peer_buffer_addresses, lengths, Write)

    def batch_transfer_async_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Starts a read; its id for `get_batch_transfer_status`, or 0."""
        return self._start(target_hostname, buffers, peer_buffer_addresses, lengths, Read)

    def batch_transfer_async(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: TransferOpcode,
        transport_hint: str = "",
    ) -> int:
        """Starts a transfer in either direction; its id, or 0."""
        return self._start(target_hostname, buffers, peer_buffer_addresses, lengths, opcode)

    def get_batch_transfer_status(self, batch_ids: Sequence[int], /) -> int:
        """Waits until all are over: 0 when all went well, else -1, also for an unknown id."""
        result = int(Rc.OK)
        for number in dict.fromkeys(_number(number) for number in batch_ids):
            try:
                transfer = self._batches.take(number)
            except KeyError:
                logger.error("get_batch_transfer_status: there is no batch %d (any more)", number)
                result = Rc.INVALID_ARGUMENT
                continue
            if transfer is not None and not self._wait(transfer):
                result = Rc.INVALID_ARGUMENT
        return result

    def transfer_submit_write(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        """Starts a write; its id for `transfer_check_status`, or 0."""
        return self._start(target_hostname, [buffer], [peer_buffer_address], [length], Write)

    def transfer_check_status(self, batch_id: int, /) -> int:
        """1 done, 0 still running, -1 failed or no such id, -2 timed out.

        The first answer but 0 is the last one: the id means nothing afterwards.
        """
        number = _number(batch_id)
        try:
            transfer = self._batches.get(number)
        except KeyError:
            logger.error("transfer_check_status: there is no transfer %d (any more)", number)
            return Rc.INVALID_ARGUMENT
        try:
            if transfer is not None and not transfer.poll():
                return 0
            result = 1
        except DeadlineExceededError:
            result = -2
        except KvmendError as error:
            logger.error("transfer %d: %s", number, error)
            result = -1
        try:
            self._batches.take(number)
        except KeyError:
            return Rc.INVALID_ARGUMENT  # another thread asked at the same time
        return result

    @_initialised(otherwise=-1)
    def _sync(
        self,
        parts: _Parts,
        target: str,
        local: Sequence[int],
        remote: Sequence[int],
        lengths: Sequence[int],
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
    ) -> int:
        batch = _batch(local, remote, lengths, opcode)
        if batch is None:
            return Rc.INVALID_ARGUMENT
        try:
            if batch[2].size:
                note = notify if opcode == Write else None
                if not self._wait(self._submit(parts, target, batch, opcode, note), parts, target):
                    return Rc.INVALID_ARGUMENT
                if note is not None:
                    return Rc.OK
            if notify is not None:
                transfer = self._submit(parts, target, batch, Write, notify, empty=True)
                return Rc.OK if self._wait(transfer, parts, target) else Rc.INVALID_ARGUMENT
        except (KvmendError, UnknownName, NoMetadata) as error:
            self._explain(parts, target, error)
            return Rc.INVALID_ARGUMENT
        return Rc.OK

    @_initialised(otherwise=0)
    def _start(
        self,
        parts: _Parts,
        target: str,
        local: Sequence[int],
        remote: Sequence[int],
        lengths: Sequence[int],
        opcode: TransferOpcode,
    ) -> int:
        batch = _batch(local, remote, lengths, opcode)
        if batch is None:
            return 0
        try:
            if not batch[2].size:
                return self._batches.add(None)
            return self._batches.add(self._submit(parts, target, batch, opcode))
        except (KvmendError, UnknownName, NoMetadata) as error:
            self._explain(parts, target, error)
            return 0

    def _submit(
        self,
        parts: _Parts,
        target: str,
        batch: tuple[Addresses, Addresses, Addresses],
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
        empty: bool = False,
    ) -> Transfer:
        if not isinstance(target, str):
            raise TypeError(f"target_hostname {target!r} isn't a str")
        found = parts.peers.find(target)
        nothing = np.zeros(0, np.uint64)
        local, remote, lengths = (nothing, nothing, nothing) if empty else batch
        return parts.engine.submit(
            found.session_id,
            "write" if opcode == Write else "read",
            local,
            remote,
            lengths,
            deadline=parts.timeout + float(lengths.sum()) * SECONDS_PER_BYTE,
            target_incarnation=found.incarnation,
            notify=None if notify is None else (notify.name, _encode(notify.msg)),
        )

    def _wait(
        self, transfer: Transfer, parts: _Parts | None = None, target: str | None = None
    ) -> bool:
        try:
            if parts is not None and target is not None and not transfer.wait(ALIEN_AFTER):
                if self._is_alien(parts, target):
                    transfer.cancel()
                    return False
            transfer.wait()  # its deadline ends it
        except KvmendError as error:
            if parts is not None and target is not None:
                self._explain(parts, target, error)
            else:
                logger.error("transfer %d: %s", transfer.id, error)
            return False
        except BaseException:  # an interrupt
            transfer.cancel()
            raise
        return True

    def _is_alien(self, parts: _Parts, target: str) -> bool:
        """Whether a real Mooncake engine answers where no kvmend engine ever did; says so."""
        session_id = parts.peers.find(target).session_id
        for session in parts.engine.sessions():
            if session.session_id == session_id and session.incarnation:
                return False
        if not is_mooncake(*names.split(session_id)):
            return False
        logger.error(
            "%s is Mooncake's own engine, it isn't a kvmend engine, and the two don't understand "
            "each other: start its program with `python -m kvmend.exec` too (or this one without)",
            target,
        )
        return True

    def _explain(self, parts: _Parts, target: str, error: Exception) -> None:
        """One line per failure; a restart is news only once."""
        restarted = isinstance(error, KvmendError) and error.code == Code.PEER_RESTARTED
        if not restarted and isinstance(error, KvmendError) and error.origin in ("peer", "link"):
            restarted = parts.peers.has_moved(target)
        if not restarted:
            logger.error("transfer with %s: %s", target, error)
        elif parts.peers.mark_restarted(target):
            logger.error(
                "peer restarted: another process answers as %s, and addresses of the old one mean "
                "nothing there; get_first_buffer_address(%r) accepts it (%s)",
                target,
                target,
                error,
            )

    # --------------------------------------------------------------------------------------- peers

    @_initialised(otherwise=-1)
    def send_probe(self, parts: _Parts, peer_server_name: str) -> int:
        """Moves real bytes to the peer's scratch memory and back: 0, the peer is usable.

        -101: the name isn't known; -102: it can't be reached or doesn't answer; -104: it restarted
        (writes by address would return -1), speaks another version or is Mooncake's own engine.
        """
        try:
            found = parts.peers.find(peer_server_name)
        except (UnknownName, NoMetadata) as error:
            logger.error("send_probe(%r): %s", peer_server_name, error)
            return Rc.DNS
        if parts.peers.has_restarted(peer_server_name) or parts.peers.has_moved(peer_server_name):
            return Rc.REJECTED
        result = codes.of_probe(parts.engine.send_probe(found.session_id, PROBE_TIMEOUT))
        if result != Rc.OK and self._is_alien(parts, peer_server_name):
            return Rc.REJECTED
        return result

    @_initialised(otherwise=list)
    def get_notifies(self, parts: _Parts) -> list[TransferNotify]:
        """The notifications that arrived since the last call."""
        try:
            arrived = parts.engine.take_notifications()
        except KvmendError as error:
            logger.error("get_notifies: %s", error)
            return []
        return [
            TransferNotify(note.name, note.message.decode(errors="surrogateescape"))
            for note in arrived
        ]

    def get_local_topology(self, device_name: str | None = None) -> str:
        """JSON of the network devices per memory location: tcp uses none by name."""
        return "{}\n"

    def warmup_efa_segment(self, segment_name: str) -> int:
        """0: nothing to warm up."""
        return Rc.OK

    @_initialised(otherwise=None)
    def get_engine(self, parts: _Parts) -> core.TransferEngine:
        """kvmend's engine below; None before `initialize`."""
        return parts.engine

    def get_engine_ptr(self) -> int:
        """0: there is no C++ object of the original that an extension could use."""
        logger.error("get_engine_ptr: kvmend has no engine for extensions of Mooncake")
        return 0


# Outside the class, where the name means the type in every annotation.
setattr(TransferEngine, "TransferOpcode", TransferOpcode)  # noqa: B010


def _number(value: Any) -> int:
    """Raises TypeError for what isn't a whole number from 0 to 2**64 - 1."""
    number = operator.index(value)
    if not 0 <= number < 2**64:
        raise TypeError(f"{number} isn't a number from 0 to 2**64 - 1")
    return number


def _numbers(values: Any) -> Addresses:
    try:
        if isinstance(values, np.ndarray):
            return core._numbers("addresses and lengths", values)
        return np.fromiter(map(operator.index, values), np.uint64, len(values))
    except (OverflowError, ValueError) as error:
        raise TypeError(f"addresses and lengths must be from 0 to 2**64 - 1: {error}") from None


def _batch(
    local: Sequence[int], remote: Sequence[int], lengths: Sequence[int], opcode: TransferOpcode
) -> tuple[Addresses, Addresses, Addresses] | None:
    """The three as arrays, without runs of no bytes; None when their sizes differ."""
    if opcode not in (Read, Write):
        raise TypeError(f"opcode {opcode!r} isn't a TransferOpcode")
    arrays = _numbers(local), _numbers(remote), _numbers(lengths)
    if not arrays[0].size == arrays[1].size == arrays[2].size:
        logger.error(
            "%d buffers, %d peer buffer addresses and %d lengths", *(a.size for a in arrays)
        )
        return None
    if arrays[2].all():
        return arrays
    some = arrays[2] != 0
    return arrays[0][some], arrays[1][some], arrays[2][some]


def _encode(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode(errors="surrogateescape")
