"""Rooms between two processes: this one is prefill, the peer is decode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kvmend
import numpy as np
import pytest
from kvmend import KVManager, KVPoll, KVSender, TransferEngine
from kvmend.testing.peer import Peer, wait_until
from kvmend.testing.pair import OPEN, Pair
from kvmend.testing.pools import Pools

#: The test that needs it is in test_kv_locked.py, so that its 15 s pass while others run.
pytestmark = pytest.mark.usefixtures("locked")


def test_a_request_in_chunks_with_aux(pair: Pair) -> None:
    pair.receive(1, [9, 3, 7, 5, 60], aux=2)
    sender = pair.sender(1, 5, aux=6)
    sender.send([10, 11])
    sender.send(np.array([2], np.int64))
    sender.send([0, 1])
    assert sender.wait(30) == KVPoll.SUCCESS
    assert pair.ended(1)[0] == KVPoll.SUCCESS
    assert pair.pages_equal([10, 11, 2, 0, 1], [9, 3, 7, 5, 60])
    assert pair.peer.get("pools.aux[2].tolist()") == pair.pools.aux[6].tolist()
    metrics = sender.metrics()
    assert metrics.chunks == 3
    assert metrics.bytes == 5 * 4 * 4096 + 128
    assert pair.peer.get("int(pools.kv.any(axis=(0, 2)).sum())") == 5, "other pages are untouched"


def test_send_before_the_announcement(pair: Pair) -> None:
    sender = pair.sender(2, 1)
    sender.send([4])
    assert sender.poll() == KVPoll.BOOTSTRAPPING
    pair.receive(2, [8])
    assert sender.wait(30) == KVPoll.SUCCESS
    assert pair.ended(2)[0] == KVPoll.SUCCESS
    assert pair.pages_equal([4], [8])


def test_prefill_learns_what_decode_has_and_who_it_is(pair: Pair) -> None:
    sender = KVSender(pair.manager, 4)
    assert (sender.prefix_tokens, sender.decode_session) == (0, "")
    pair.peer.run("receive(4, [8], prefix_tokens=2048)")
    assert sender.wait_for(KVPoll.WAITING_FOR_INPUT, 30) == KVPoll.WAITING_FOR_INPUT
    assert sender.prefix_tokens == 2048
    assert sender.decode_session == pair.peer.get("engine.session_id")
    sender.abort()


def test_many_rooms_at_once(pair: Pair) -> None:
    rooms = list(range(10, 60))
    pair.peer.run("for room in list: receive(room, [room])", list=rooms)
    senders = [pair.sender(room, 1) for room in rooms]
    for sender in senders:
        sender.send([sender.room])
    assert all(sender.wait(30) == KVPoll.SUCCESS for sender in senders)
    assert pair.peer.get("[ended(room)[0] for room in list]", list=rooms) == [4] * len(rooms)
    assert pair.pages_equal(rooms, rooms)
    for sender in senders:
        sender.clear()
    pair.peer.run("for room in rooms.values(): room.clear()")
    wait_until(lambda: pair.manager.stats().rooms == 0, "no room to be left here")
    wait_until(lambda: pair.peer.get("manager.stats().rooms") == 0, "no room to be left there")


def test_a_room_is_a_63_bit_number(pair: Pair) -> None:
    room = 2**63 - 1
    pair.receive(room, [1])
    sender = pair.sender(room, 1)
    sender.send([1])
    assert sender.wait(30) == KVPoll.SUCCESS
    for bad in (-1, 2**63):
        with pytest.raises(kvmend.InvalidArgumentError, match=str(bad)):
            KVSender(pair.manager, bad)


def test_decode_aborts(pair: Pair) -> None:
    pair.receive(3, [1, 2])
    sender = pair.sender(3, 2)
    sender.send([1])
    assert sender.wait_for(KVPoll.TRANSFERRING, 30) >= KVPoll.TRANSFERRING
    pair.peer.run("rooms[3].abort('the user left')")
    assert sender.wait(30) == KVPoll.FAILED
    error = sender.failure_exception()
    assert isinstance(error, kvmend.AbortedError) and "the user left" in str(error)
    with pytest.raises(kvmend.AbortedError):
        sender.send([2])


def test_wrong_use_is_refused_and_the_room_goes_on(pair: Pair) -> None:
    sender = KVSender(pair.manager, 4)
    with pytest.raises(kvmend.InvalidArgumentError):
        sender.send([1])  # before init
    sender.init(2)
    with pytest.raises(kvmend.InvalidArgumentError):
        sender.init(2)
    with pytest.raises(kvmend.OutOfRangeError, match="64"):
        sender.send([64])
    with pytest.raises(kvmend.InvalidArgumentError):
        sender.send([1, 2, 3])
    with pytest.raises(kvmend.InvalidArgumentError, match="whole numbers"):
        sender.send([0.5])  # type: ignore[list-item]
    with pytest.raises(kvmend.InvalidArgumentError, match="-1"):
        sender.send([-1])
    pair.receive(4, [5, 6])
    sender.send([1, 2])
    assert sender.wait(30) == KVPoll.SUCCESS
    assert pair.pages_equal([1, 2], [5, 6])


def test_a_manager_of_the_other_role_may_follow(engine: TransferEngine) -> None:
    pools = Pools()
    with KVManager(engine, "prefill", pools.layout) as manager:
        sender = KVSender(manager, 1)
        sender.init(1)
    assert sender.wait(30) == KVPoll.FAILED
    assert isinstance(sender.failure_exception(), kvmend.ShuttingDownError)
    with KVManager(engine, "decode", pools.layout):
        pass
    assert engine.stats().regions == 0


def test_layouts_that_differ_are_refused(
    engine: TransferEngine, start_peer: Callable[..., Peer]
) -> None:
    peer = start_peer()
    pools = Pools()
    manager = KVManager(engine, "prefill", pools.layout)
    peer.run(OPEN, sizes={"item_len": 8192}, prefill=engine.session_id)
    peer.run("receive(1, [1])")
    status, code, text = peer.get("ended(1)")
    assert (status, code) == (KVPoll.FAILED, "incompatible")
    assert "8192" in text and "4096" in text, "both sides' values are named"
    assert manager.stats().registrations_refused == 1


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"page_tokens": 0}, "page_tokens"),
        ({"components": []}, "component"),
    ],
)
def test_a_bad_layout_is_refused(
    engine: TransferEngine, change: dict[str, Any], word: str
) -> None:
    layout = Pools().layout
    for name, value in change.items():
        setattr(layout, name, value)
    with pytest.raises(kvmend.InvalidArgumentError, match=word):
        KVManager(engine, "prefill", layout)
    assert engine.stats().regions == 0


def test_a_chunk_waits_until_its_pages_are_filled(pair: Pair) -> None:
    pair.receive(30, [7, 8])
    sender = pair.sender(30, 2)
    gate = kvmend.KVGate()
    sender.send([1], ready=gate)
    sender.send([2])
    assert sender.wait_for(KVPoll.TRANSFERRING, 30) >= KVPoll.TRANSFERRING
    assert not gate.is_open and sender.poll() == KVPoll.TRANSFERRING
    pair.pools.kv[:, 1] = 77  # what the device computes meanwhile
    gate.open()
    assert sender.wait(30) == KVPoll.SUCCESS
    assert pair.ended(30)[0] == KVPoll.SUCCESS
    assert pair.pages_equal([1, 2], [7, 8])
