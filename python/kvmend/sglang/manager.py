"""KvmendKVManager: what SGLang's schedulers see of kvmend's KV manager."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

from sglang.srt.disaggregation.base.conn import KVArgs, KVPoll
from sglang.srt.disaggregation.common.conn import CommonKVManager, PrefillServerInfo
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.runtime_context import get_device, get_disagg, get_parallel
from sglang.srt.utils.network import get_local_ip_auto

from .. import kv, kv_layout
from ..errors import UnavailableError
from ..mooncake import names
from .engine import SessionWatch, recoveries_counter, shared_engine
from .layout import layout_of
from .limits import STOCK_PREFILL, check_configuration, unequal
from .routes import PREFIX, Registration, ask_rank, is_stock
from .settings import read_settings

__all__ = ["KvmendKVManager"]

logger = logging.getLogger("kvmend.sglang")

DAY = 86_400.0
#: Seconds to wait for pages nobody writes any more: a turn of the engine's loop.
DECODE_CLOSE = 5.0
#: The same for pages nobody reads any more: a socket's unacknowledged bytes may stand in the way.
PREFILL_CLOSE = 0.05
#: Rooms that wait for decode to hear of their end; one more is ended at once.
MAX_UNHEARD = 4096

Room = kv.KVSender | kv.KVReceiver


class KvmendKVManager(CommonKVManager):
    """One per rank and role. The scheduler's thread uses it; SGLang's heartbeat has its own.

    SGLang's status table stays the truth about a room; `check_status` brings it up to date from
    kvmend's room, and a failure that comes from SGLang ends kvmend's room.
    """

    _kv_replica_factor: int | None  # of the base class

    supports_role_switch = True
    #: A failed room's pages are free at once: its grant is revoked before the failure is shown.
    supports_deferred_decode_kv_release = True
    reports_transfer_latency = True

    def __init__(
        self,
        args: KVArgs,
        disaggregation_mode: DisaggregationMode,
        server_args: Any,
        is_mla_backend: bool | None = False,
    ) -> None:
        """Starts the engine, and registers with the bootstrap server (prefill).

        Raises ValueError (settings this backend doesn't serve), KvmendError (the engine).
        """
        self._settings = read_settings()
        parallel = get_parallel()
        check_configuration(
            device=get_device().device,
            policy=get_disagg().disaggregation_decode_allocation_policy,
            staging=self._settings.staging,
            kv_sharding=parallel.enable_kv_cache_sharding,
            all_cp_ranks=False,  # known only below
            cp_tp_sharing=parallel.enable_cp_tp_group_sharing,
            dcp_size=parallel.attn_dcp_size,
        )
        self.engine = shared_engine(get_local_ip_auto(), self._settings)
        self.manager: kv.KVManager | None = None
        self.refusals: dict[str, str] = {}  # bootstrap address -> why its prefill isn't ours
        self._rooms: dict[int, Room] = {}
        self._unheard: dict[int, tuple[kv.KVSender, str, float]] = {}  # see _tell_later
        self._unheard_lock = threading.Lock()
        self._told_missing: list[str] = []
        self._registrations: list[Registration] = []
        self._worker_threads: list[threading.Thread] = []
        self.session_lock = threading.Lock()
        super().__init__(args, disaggregation_mode, server_args, is_mla_backend)
        self._open()
        # kvmend's engine carries the messages; SGLang's control socket has no use.
        self.server_socket.close(linger=0)
        self._zmq_ctx.destroy(linger=0)
        self._watch = SessionWatch(self.engine, recoveries_counter(), self._tell_unheard)
        self._worker_threads.append(self._watch.thread)
        if disaggregation_mode == DisaggregationMode.DECODE:
            self._worker_threads.append(self._start_heartbeat_checker_thread())

    # ------------------------------------------------------------------- kvmend's manager, memory

    def _open(self) -> None:
        """Makes kvmend's manager unless it is there. Runs inside the base class's constructor."""
        if self.manager is not None:
            return
        prefill = self.disaggregation_mode == DisaggregationMode.PREFILL
        check_configuration(
            device="cpu",
            policy="early",
            staging=False,
            kv_sharding=False,
            all_cp_ranks=prefill and self.attn_cp_size > 1 and self.enable_all_cp_ranks_for_transfer,
            cp_tp_sharing=False,
            dcp_size=1,
        )
        # Of several context-parallel ranks only the first sends, and it has every page.
        rank = kv_layout.KVRank(
            tp_rank=self.attn_tp_rank,
            tp_size=self.attn_tp_size,
            pp_rank=self.pp_rank,
            pp_size=self.pp_size,
        )
        mla = bool(self.is_mla_backend or self.is_hybrid_mla_backend)
        self._layout = layout_of(
            self.kv_args, rank, decode=not prefill, mla=mla, hnd=self._settings.hnd
        )
        if self._kv_replica_factor is None:
            self._kv_replica_factor = 1  # until SGLang asks with the room's destinations
        self.local_ip, self.rank_port = names.split(self.engine.session_id)
        settings = self._settings
        # A room of prefill also waits for its turn to be computed: decode's deadline ends it.
        self.manager = kv.KVManager(
            self.engine,
            "prefill" if prefill else "decode",
            self._layout.layout,
            room_deadline=DAY if prefill else settings.waiting_timeout,
            announced_ttl=settings.bootstrap_timeout,
        )

    def open_manager(self) -> kv.KVManager:
        """kvmend's manager. Raises UnavailableError while the pools are given back."""
        if self.manager is None:
            raise UnavailableError("the KV pools are not registered: the server gave them back")
        return self.manager

    def states(self, indices: Sequence[Any] | None) -> list[list[int]]:
        """SGLang's state indices in the order of the layout."""
        return self._layout.states(indices)

    def clear_missing_aux(self, row: int, came: Sequence[str]) -> None:
        """Decode: zeroes the fields of a row that its prefill doesn't have."""
        missing = self._layout.aux_rows.clear_missing(row, came)
        if missing and missing != self._told_missing:
            self._told_missing = missing
            logger.warning("prefill has no metadata %s: zero in every request", ", ".join(missing))

    @property
    def divided_states(self) -> bool:
        """Tensor ranks hold parts of some state: each has something to send."""
        return self._layout.divided_states

    def register_buffer_to_engine(self) -> None:
        """Takes the pools (again)."""
        self._open()

    def deregister_buffer_to_engine(self) -> None:
        """Gives the pools back: every room ends, and nothing touches them any more."""
        if self.manager is not None:
            self.manager.teardown()
            self.manager = None
        if hasattr(self, "connection_pool"):
            with self.connection_lock:
                self.connection_pool.clear()

    def teardown(self) -> None:
        """Ends the rooms and the threads; the engine stays for the next role."""
        shutdown = getattr(self, "_heartbeat_shutdown", None)
        if shutdown is not None:
            shutdown.set()
        for registration in self._registrations:
            registration.stop()
        self._watch.stop()
        self.deregister_buffer_to_engine()
        for thread in self._worker_threads:
            thread.join(timeout=3.0)
        self._worker_threads = []
        logger.info("torn down (was %s)", self.disaggregation_mode.value)

    def get_session_id(self) -> str:
        return self.engine.session_id

    # -------------------------------------------------------------------------------- bootstrapping

    def register_to_bootstrap(self) -> None:
        self._open()
        super().register_to_bootstrap()

    def _register_topology_row(self, url: str, payload: dict[str, Any]) -> None:
        url = url.removesuffix("/route") + f"{PREFIX}/route"
        self._registrations.append(Registration(url, payload))

    def try_ensure_parallel_info(self, bootstrap_addr: str) -> bool:
        """As the base class's, but a prefill that can't be paired fails its own requests only.

        Then it returns True, and `refusals` has the reason for the receivers' `init`.
        """
        if bootstrap_addr in self.prefill_info_table:
            return True
        self.refusals.pop(bootstrap_addr, None)
        ours = bootstrap_addr + PREFIX
        try:
            if super().try_ensure_parallel_info(ours):
                info = self.prefill_info_table.pop(ours)
                reason = unequal(info, self, self._layout.opaque)
            elif is_stock(bootstrap_addr):
                reason = STOCK_PREFILL.format(bootstrap_addr)
            else:
                return False
        except (RuntimeError, AssertionError) as error:
            reason = str(error)
        if reason is not None:
            logger.error("%s", reason)
            self.refusals[bootstrap_addr] = reason
            info = _nowhere()
        self.prefill_info_table[bootstrap_addr] = info
        return True

    def should_verify_kv_checksum(self, bootstrap_addr: str) -> bool:
        """Not where a prefill rank has digested other bytes than this rank receives."""
        info = self.prefill_info_table.get(bootstrap_addr)
        if info is None:
            return False
        ours = (self.attn_tp_size, self.pp_size)
        return (info.attn_tp_size, info.pp_size) == ours and info.attn_cp_size == 1

    # --------------------------------------------------------------------------------------- status

    def attach(self, room: int, end: Room) -> None:
        """From now on kvmend's room decides the status."""
        self._rooms[room] = end

    def forget_unheard(self, room: int) -> None:
        """A new request has the number of one that ended unheard."""
        with self._unheard_lock:
            known = self._unheard.pop(room, None)
        if known is not None:
            known[0].clear()

    def _tell_later(self, room: int, end: kv.KVSender) -> None:
        """A room that fails before decode has announced it stays open until then, so that decode
        learns the reason instead of waiting for its own timeout."""
        del self._rooms[room]
        until = time.monotonic() + self._settings.bootstrap_timeout
        reason = self.failure_records.get(room, "the request failed")
        with self._unheard_lock:
            if len(self._unheard) < MAX_UNHEARD:
                self._unheard[room] = end, reason, until

    def _tell_unheard(self) -> None:
        """Once a second: aborts those that decode has announced by now."""
        with self._unheard_lock:
            waiting = list(self._unheard.items())
        now = time.monotonic()
        for room, (end, reason, until) in waiting:
            if end.poll() == kv.KVPoll.BOOTSTRAPPING and now < until:
                continue
            end.abort(reason)
            with self._unheard_lock:
                if self._unheard.get(room, (None,))[0] is end:
                    del self._unheard[room]

    @property
    def lost_sessions(self) -> dict[str, str]:
        """Decode engines nobody should wait for any more, and why."""
        return self._watch.lost

    def detach(self, room: int) -> None:
        """The request is over; of decode, nobody can write its pages any more."""
        end = self._rooms.get(room)
        if end is None:
            return
        if isinstance(end, kv.KVSender) and end.poll() == kv.KVPoll.BOOTSTRAPPING:
            return self._tell_later(room, end)
        if not end.poll().is_terminal:
            end.clear()
            if not self._close(end) and self.disaggregation_mode == DisaggregationMode.DECODE:
                return  # kept for is_abort_release_safe
        del self._rooms[room]

    def _close(self, end: Room) -> bool:
        prefill = self.disaggregation_mode == DisaggregationMode.PREFILL
        return end.wait(PREFILL_CLOSE if prefill else DECODE_CLOSE).is_terminal

    def check_status(self, bootstrap_room: int) -> int:
        self._follow(bootstrap_room)
        status: int = super().check_status(bootstrap_room)
        return status

    def check_status_pp_consensus(self, bootstrap_room: int) -> int:
        self._follow(bootstrap_room)
        status: int = super().check_status_pp_consensus(bootstrap_room)
        return status

    def _follow(self, room: int) -> None:
        end = self._rooms.get(room)
        if end is None:
            return
        status = int(end.poll())
        if status == self.request_status.get(room):
            return
        if status == KVPoll.Failed:
            with self.failure_lock:
                self.failure_records.setdefault(room, str(end.failure_exception()))
        self.update_status(room, status)

    def update_status(self, bootstrap_room: int, status: int) -> None:
        """As the base class's; a failure also ends kvmend's room before it is shown."""
        if status == KVPoll.Failed:
            end = self._rooms.get(bootstrap_room)
            if isinstance(end, kv.KVSender) and end.poll() == kv.KVPoll.BOOTSTRAPPING:
                self._tell_later(bootstrap_room, end)
            elif end is not None and not end.poll().is_terminal:
                end.abort(self.failure_records.get(bootstrap_room, "the request failed"))
                self._close(end)
        super().update_status(bootstrap_room, status)

    def fail(self, room: int, reason: str) -> None:
        """Ends a room with its first cause."""
        with self.failure_lock:
            self.failure_records.setdefault(room, reason)
        self.update_status(room, KVPoll.Failed)

    def is_abort_release_safe(self, bootstrap_room: int, required_acks: int) -> bool:
        """Whether nobody can write the room's pages: kvmend revokes, it needs no answers."""
        end = self._rooms.get(bootstrap_room)
        return end is None or end.poll().is_terminal

    # ------------------------------------------------------ what monitors of Mooncake's manager read

    @property
    def failed_sessions(self) -> set[str]:
        """Blacklisted sessions, at most a second old."""
        return self._watch.failed

    @property
    def failed_session_probes(self) -> dict[str, str]:
        """The same with their states."""
        return self._watch.probed

    @property
    def session_failures(self) -> dict[str, int]:
        """Failed transfers per session."""
        return self._watch.failures

    # ------------------------------------------------------------------------------------ heartbeat

    def _on_heartbeat_success(self, bootstrap_addr: str) -> None:
        """The server answers; behind it a blacklisted rank may have been replaced by a new process.

        Only then its rooms fail: one that is merely out of reach comes back.
        """
        with self.connection_lock:
            known = [
                info
                for key, infos in self.connection_pool.items()
                if key.startswith(f"{bootstrap_addr}_")
                for info in infos
            ]
        for info in known:
            session = names.join(info["rank_ip"], info["rank_port"])
            if session not in self._watch.failed:
                continue
            now = ask_rank(bootstrap_addr, *info["asked"])
            if now is not None and names.join(now["rank_ip"], now["rank_port"]) != session:
                logger.warning("prefill %s has been replaced", session)
                self._handle_node_failure(bootstrap_addr)
                return


def _nowhere() -> PrefillServerInfo:
    return PrefillServerInfo(
        attn_tp_size=1,
        attn_cp_size=1,
        dp_size=1,
        pp_size=1,
        page_size=None,
        kv_cache_dtype=None,
        follow_bootstrap_room=True,
    )
