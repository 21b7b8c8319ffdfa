"""Case R11: a request that goes to two decode ranks waits, goes out and ends as one."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import kvmend
import pytest
from kvmend import KVManager, KVPoll, KVSender, TransferEngine
from kvmend.testing.pair import OPEN
from kvmend.testing.peer import Peer, wait_until
from kvmend.testing.pools import Pools


class Ranks:
    """One prefill engine here, two decode ranks in processes of their own."""

    def __init__(
        self, start_peer: Callable[..., Peer], *, local: str = "off", **options: Any
    ) -> None:
        self.engine = TransferEngine(
            shutdown_grace=0.2, admin_listen="127.0.0.1:0", local=local, **options
        )
        self.pools = Pools()
        self.pools.fill(seed=1)
        self.manager = KVManager(self.engine, "prefill", self.pools.layout)
        self.decode = [start_peer(local=local) for _ in range(2)]
        prefill = [[self.engine.session_id, 2, False]]
        for peer in self.decode:
            peer.run(OPEN, sizes={}, prefill=prefill)
            peer.run("prefill = [KVSource(*one) for one in prefill]")

    def announce(self, room: int, pages: list[int]) -> KVSender:
        """Both ranks ask for the room, and the sender knows it."""
        for peer in self.decode:
            peer.run("receive(room, pages)", room=room, pages=pages)
        sender = KVSender(self.manager, room)
        sender.init(len(pages))
        assert sender.wait_for(KVPoll.WAITING_FOR_INPUT, 30) == KVPoll.WAITING_FOR_INPUT
        return sender

    def run_room(self, room: int) -> None:
        sender = self.announce(room, [room])
        sender.send([room])
        assert sender.wait(30) == KVPoll.SUCCESS

    def session(self, rank: int) -> kvmend.SessionInfo:
        (info,) = [
            s for s in self.engine.sessions() if s.session_id == self.decode[rank].session_id
        ]
        return info

    def lose(self, rank: int) -> None:
        """Stops the rank and waits until it is blacklisted (the heartbeat notices)."""
        self.decode[rank].stop()
        wait_until(lambda: self.session(rank).state == "failed", "it to be blacklisted")

    def close(self) -> None:
        self.manager.teardown()
        self.engine.shutdown()


@pytest.fixture
def start_ranks(start_peer: Callable[..., Peer]) -> Iterator[Callable[..., Ranks]]:
    made: list[Ranks] = []

    def start(**options: Any) -> Ranks:
        made.append(Ranks(start_peer, **options))
        made[-1].run_room(1)
        return made[-1]

    yield start
    for ranks in made:
        ranks.close()


def test_r11_a_stopped_rank_parks_the_pair_as_one(start_ranks: Callable[..., Ranks]) -> None:
    ranks = start_ranks()
    senders = {room: ranks.announce(room, [room]) for room in range(10, 18)}
    ranks.lose(1)
    before = ranks.session(0).bytes_written
    for room, sender in senders.items():
        sender.send([room])
    wait_until(lambda: ranks.session(0).pair_parked == len(senders), "the rooms to be parked")
    until = time.monotonic() + 1
    wait_until(lambda: time.monotonic() > until, "a second")
    assert ranks.session(0).state == "healthy"
    assert ranks.session(0).bytes_written == before, "the healthy rank was served alone"
    assert ranks.session(0).pair_waits_for == ranks.decode[1].session_id
    with urllib.request.urlopen(ranks.engine.admin_url + "/sessions") as answer:
        shown = {s["session_id"]: s for s in json.load(answer)["sessions"]}
    assert shown[ranks.decode[0].session_id]["pair_waits_for"] == ranks.decode[1].session_id
    with urllib.request.urlopen(ranks.engine.admin_url + "/metrics") as answer:
        assert f"kvmend_pair_parked_transfers {len(senders)}" in answer.read().decode()
    ranks.decode[1].resume()
    for room, sender in senders.items():
        assert sender.wait(30) == KVPoll.SUCCESS
        for peer in ranks.decode:
            assert peer.get("ended(room)", room=room)[0] == KVPoll.SUCCESS
    assert ranks.session(0).pair_parked == 0
    assert ranks.session(0).transfers_failed + ranks.session(1).transfers_failed == 0


def test_r11_a_killed_rank_ends_the_room_everywhere(start_ranks: Callable[..., Ranks]) -> None:
    ranks = start_ranks(local="auto")  # peers of one host: its death is proven
    sender = ranks.announce(10, [10])
    before = ranks.session(0).bytes_written
    ranks.decode[1].kill()
    assert sender.wait(30) == KVPoll.FAILED
    assert ranks.decode[1].session_id in str(sender.failure_exception())
    status, code, text = ranks.decode[0].get("ended(10)")
    assert status == KVPoll.FAILED
    assert ranks.decode[1].session_id in text, (code, text)
    assert ranks.session(0).bytes_written == before


def test_r11_fail_fast_ends_the_room_naming_the_rank(start_ranks: Callable[..., Ranks]) -> None:
    ranks = start_ranks(failed_session_policy="fail_fast")
    sender = ranks.announce(10, [10])
    ranks.lose(1)
    before = ranks.session(0).bytes_written
    try:
        sender.send([10])
    except kvmend.KvmendError:
        pass  # it has failed already: looked at below
    assert sender.wait(30) == KVPoll.FAILED
    error = sender.failure_exception()
    assert isinstance(error, kvmend.SessionFailedError)
    assert ranks.decode[1].session_id in str(error)
    status, code, text = ranks.decode[0].get("ended(10)")
    assert status == KVPoll.FAILED
    assert ranks.decode[1].session_id in text, (code, text)
    assert ranks.session(0).bytes_written == before


def test_r11_prefill_ranks_wait_for_each_other(
    start_peer: Callable[..., Peer], engine: TransferEngine
) -> None:
    """Two prefill stages and one decode: the healthy stage isn't told before the other is back."""
    prefill = [start_peer(), start_peer()]
    pools = Pools()
    for rank, peer in enumerate(prefill):
        peer.run("""
            from kvmend import KVComponent, KVLayout, KVPool, KVRank
            import numpy as np
            kv = np.full((2, 64, 4096), 1 + rank, np.uint8)
            layout = KVLayout([KVComponent(list(kv), 4096, dtype="uint8",
                                           layer_ids=[2 * rank, 2 * rank + 1])],
                              page_tokens=16, kv_heads=1, head_dim=256,
                              rank=KVRank(pp_rank=rank, pp_size=2))
            manager = KVManager(engine, "prefill", layout)
            senders = {}
            def send(room, pages):
                senders[room] = KVSender(manager, room)
                senders[room].init(len(pages))
                senders[room].send(pages)
        """, rank=rank)
    layout = kvmend.KVLayout(
        [kvmend.KVComponent(list(pools.kv), 4096, dtype="uint8", layer_ids=[0, 1, 2, 3])],
        page_tokens=16, kv_heads=1, head_dim=256,
    )
    sessions = [peer.session_id for peer in prefill]
    with KVManager(engine, "decode", layout) as manager:
        def receive(room: int) -> kvmend.KVReceiver:
            receiver = kvmend.KVReceiver(manager, sessions, room)
            receiver.init()
            receiver.send_metadata([room])
            return receiver

        for peer in prefill:
            peer.run("send(1, [1])")
        assert receive(1).wait(30) == KVPoll.SUCCESS
        for peer in prefill:
            peer.run("send(2, [2])")
        prefill[1].stop()

        def state() -> str:
            (info,) = [s for s in engine.sessions() if s.session_id == sessions[1]]
            return info.state

        wait_until(lambda: state() == "failed", "it to be blacklisted")
        receiver = receive(2)
        until = time.monotonic() + 1
        wait_until(lambda: time.monotonic() > until, "a second")
        assert prefill[0].get("senders[2].poll()") == KVPoll.BOOTSTRAPPING
        assert not pools.kv[:, 2].any(), "the healthy stage wrote alone"
        prefill[1].resume()
        assert receiver.wait(30) == KVPoll.SUCCESS
        assert (pools.kv[:2, 2] == 1).all() and (pools.kv[2:, 2] == 2).all()
