"""KvmendKVReceiver: decode's end of a request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
from sglang.srt.disaggregation.base.conn import KVPoll, KVTransferDestination
from sglang.srt.disaggregation.common.conn import CommonKVReceiver

from .. import kv
from ..errors import KvmendError
from ..mooncake import names
from .manager import KvmendKVManager
from .routes import ask_rank

__all__ = ["KvmendKVReceiver"]


class KvmendKVReceiver(CommonKVReceiver):
    """The scheduler's thread drives it: `init`, `send_metadata`, `poll`, `clear`.

    kvmend's room begins with the metadata: before that it has no pages to watch over, and no
    deadline.
    """

    kv_mgr: KvmendKVManager
    bootstrap_infos: Any  # None, or one dictionary per prefill rank
    _end: kv.KVReceiver | None = None  #: until its aux row has been looked at
    _aux_index = 0

    def init(self, prefill_dp_rank: int) -> None:
        reason = self.kv_mgr.refusals.get(self.bootstrap_addr)
        if reason is None:
            super().init(prefill_dp_rank)
            return
        # Asked again for the next request: the server may have been replaced by then.
        self.kv_mgr.prefill_info_table.pop(self.bootstrap_addr, None)
        self.bootstrap_infos = None
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        self.kv_mgr.fail(self.bootstrap_room, reason)
        self.conclude_state = KVPoll.Failed

    def _get_bootstrap_info_from_server(
        self, prefill_dp_rank: int, prefill_cp_rank: int, target_tp_rank: int, target_pp_rank: int
    ) -> dict[str, Any] | None:
        return ask_rank(
            self.bootstrap_addr, prefill_dp_rank, prefill_cp_rank, target_tp_rank, target_pp_rank
        )

    def _register_kv_args(self) -> bool:
        """kvmend's manager registers its layout by itself, with the first room of a session."""
        return self.bootstrap_infos is not None

    def send_metadata(
        self,
        kv_indices: npt.NDArray[Any],
        aux_index: int | None = None,
        state_indices: Sequence[Any] | None = None,
        decode_prefix_len: int | None = None,
        destination: KVTransferDestination = KVTransferDestination.DEVICE,
        device_kv_indices: npt.NDArray[Any] | None = None,
    ) -> None:
        if self.conclude_state == KVPoll.Failed:
            return
        if destination != KVTransferDestination.DEVICE or device_kv_indices is not None:
            raise NotImplementedError("the kvmend backend doesn't offer host KV destinations")
        # Of ranks with the same KV cache one sends; the others only have to know of the room.
        sources = [
            kv.KVSource(
                names.join(info["rank_ip"], info["rank_port"]),
                self.required_dst_info_num,
                bool(info.get("is_dummy")) and not self.kv_mgr.divided_states,
            )
            for info in self.bootstrap_infos
        ]
        try:
            end = kv.KVReceiver(self.kv_mgr.open_manager(), sources, self.bootstrap_room)
            self.kv_mgr.attach(self.bootstrap_room, end)
            if aux_index is not None:
                self._end, self._aux_index = end, int(aux_index)
            end.send_metadata(
                kv_indices, aux_index, self.kv_mgr.states(state_indices), decode_prefix_len or 0
            )
        except KvmendError as error:
            self._fail(str(error))
            return
        self.init_time = time.time()

    def poll(self) -> int:
        known = self.conclude_state is not None
        status: int = super().poll()
        if status == KVPoll.Success and self._end is not None:
            end, self._end = self._end, None
            self.kv_mgr.clear_missing_aux(self._aux_index, end.aux_fields())
        if status == KVPoll.Failed and not known:
            self.invalidate_cached_bootstrap_infos()  # the prefill may be another process by now
        return status

    def _send_abort_notification(self, *, force_arm: bool = False) -> None:
        """kvmend's room tells prefill; here its pages are closed."""
        self.kv_mgr.detach(self.bootstrap_room)

    def clear(self) -> None:
        super().clear()
        self.kv_mgr.detach(self.bootstrap_room)
