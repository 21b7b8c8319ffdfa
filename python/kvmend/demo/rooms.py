"""What prefill and decode have in common: rows of the aux pool, and how a room's end is told."""

from __future__ import annotations

import queue

from kvmend import KVReceiver, KVSender

from .channel import Channel
from .workload import AUX_ROWS


class AuxRows:
    """Free rows of the aux pool. Any thread."""

    def __init__(self) -> None:
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for row in range(AUX_ROWS):
            self._free.put(row)

    def take(self) -> int:
        return self._free.get()

    def give_back(self, row: int) -> None:
        self._free.put(row)


def tell_end(
    channel: Channel, side: str, end: KVSender | KVReceiver, tail_seconds: float = 0.0
) -> None:
    """Emits how a room ended, why, and what it cost."""
    error = end.failure_exception()
    metrics = end.metrics()
    channel.emit(
        "room_end",
        side=side,
        room=end.room,
        ok=error is None,
        reason=error.code_name if error else "",
        detail=error.detail if error else "",
        bytes=metrics.bytes,
        retries=metrics.retries,
        transfer_seconds=metrics.transferring_seconds,
        tail_seconds=tail_seconds,
    )
