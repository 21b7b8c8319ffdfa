"""KvmendKVSender: prefill's end of a request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.common.conn import CommonKVSender

from .. import kv
from ..errors import KvmendError
from .manager import KvmendKVManager

__all__ = ["KvmendKVSender"]


class KvmendKVSender(CommonKVSender):
    """The scheduler's thread drives it: `init`, `send` per chunk, `poll`, `clear`."""

    kv_mgr: KvmendKVManager
    _transfer_start_time: float | None
    _early_send_wait_event: Any

    def __init__(
        self,
        mgr: KvmendKVManager,
        bootstrap_addr: str,
        bootstrap_room: int,
        req_has_disagg_prefill_dp_rank: bool = False,
    ) -> None:
        super().__init__(mgr, bootstrap_addr, bootstrap_room, req_has_disagg_prefill_dp_rank)
        self._end: kv.KVSender | None = None
        self._shown: int = KVPoll.Bootstrapping
        self._all_sent = False
        mgr.forget_unheard(bootstrap_room)
        if mgr.is_dummy_cp_rank or mgr.request_status.get(bootstrap_room) == KVPoll.Failed:
            return
        try:
            self._end = kv.KVSender(mgr.open_manager(), bootstrap_room)
        except KvmendError as error:
            mgr.fail(bootstrap_room, str(error))
        else:
            mgr.attach(bootstrap_room, self._end)

    def pop_decode_prefix_len(self) -> int:
        return self._end.prefix_tokens if self._end else 0

    def init(self, num_kv_indices: int, aux_index: int | None = None) -> None:
        super().init(num_kv_indices, aux_index)
        if self._end is None:
            return
        try:
            self._end.init(num_kv_indices, aux_index)
        except KvmendError as error:
            self.kv_mgr.fail(self.bootstrap_room, str(error))

    def send(
        self,
        kv_indices: npt.NDArray[Any],
        state_indices: Sequence[Any] | None = None,
        num_kv_tokens: int | None = None,
        indices_event: Any = None,
    ) -> None:
        if self.conclude_state in (KVPoll.Success, KVPoll.Failed):
            return
        kv_indices, _, last, skip = self._prepare_send_indices(kv_indices, state_indices)
        if skip or self._end is None:
            return
        if self._transfer_start_time is None:
            self._transfer_start_time = time.perf_counter()
        for event in (self._early_send_wait_event, indices_event):
            if event is not None:
                event.synchronize()
        self._early_send_wait_event = None
        states = self.kv_mgr.states(state_indices) if last else []
        try:
            self._end.send(kv_indices, states)
        except KvmendError as error:
            self.kv_mgr.fail(self.bootstrap_room, str(error))
            return
        self._all_sent = last
        self._record_transfer_indices(kv_indices, state_indices)

    def poll(self) -> int:
        self._give_up_lost_peer()
        return self._settled(super().poll())

    def poll_pp_consensus(self) -> int:
        self._give_up_lost_peer()
        return self._settled(super().poll_pp_consensus())

    def _give_up_lost_peer(self) -> None:
        """A write to a dead decode fails by itself; what waits for its last word would wait on."""
        lost = self.kv_mgr.lost_sessions
        if not lost or not self._all_sent or self._end is None or self.conclude_state is not None:
            return
        reason = lost.get(self._end.decode_session)
        if reason is not None and not self._end.poll().is_terminal:
            self.kv_mgr.fail(self.bootstrap_room, reason)

    def _settled(self, status: int) -> int:
        """A failure is shown once nothing reads the pages any more; until then the last status."""
        if status == KVPoll.Failed and self._end:
            end = self._end.poll()
            if end != kv.KVPoll.BOOTSTRAPPING and not end.is_terminal:
                return self._shown
        self._shown = status
        return status

    def clear(self) -> None:
        super().clear()
        self.kv_mgr.detach(self.bootstrap_room)
