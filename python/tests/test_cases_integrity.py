"""Cases I1, I2, I7 and I9: what "complete" means, and what aborts do and tell."""

from __future__ import annotations

import kvmend
import numpy as np
from kvmend import KVPoll, KVSender, TransferEngine
from kvmend.testing.far import FarPair
from kvmend.testing.pair import Pair
from kvmend.testing.peer import Peer, wait_until


def test_i1_a_write_is_complete_only_when_its_bytes_are_there(
    engine: TransferEngine, peer: Peer
) -> None:
    """A paused receiver's socket takes 2.4 MB; that is no completion."""
    size = 2_400_000
    source = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    local = engine.register_memory(source)
    peer.run("memory = np.zeros(size, np.uint8); engine.register_memory(memory)", size=size)
    remote = peer.get("memory.ctypes.data")
    engine.open_session(peer.session_id)
    peer.stop()
    transfer = engine.submit(peer.session_id, "write", local, remote, size)
    assert transfer.wait(timeout=1.0) is False
    peer.resume()
    assert transfer.wait(timeout=30) is True
    assert peer.get("kvmend._kvmend.xxh3_64(memory)") == kvmend._kvmend.xxh3_64(source)


def test_i1_a_room_succeeds_only_when_its_pages_are_there(pair: Pair) -> None:
    pair.receive(1, list(range(64)))
    pair.receive(2, [])
    sender = pair.sender(1, 64)
    assert sender.wait_for(KVPoll.WAITING_FOR_INPUT, 30) == KVPoll.WAITING_FOR_INPUT
    pair.peer.stop()
    sender.send(list(range(64)))
    assert sender.wait(timeout=1.0) != KVPoll.SUCCESS
    pair.peer.resume()
    assert sender.wait(30) == KVPoll.SUCCESS
    assert pair.ended(1)[0] == KVPoll.SUCCESS
    assert pair.pages_equal(list(range(64)), list(range(64)))


def test_i2_an_aborted_rooms_pages_are_anothers_at_once(far: FarPair) -> None:
    """Its bytes crawl over a narrow way: half of them arrive after the abort, and none lands."""
    sender = far.announce(2, 256)
    sender.send(range(256))
    wait_until(lambda: far.decode.get("bool(pools.kv[0, 40, -1])"), "some pages to land")
    far.decode.run("""
        rooms[2].abort('client went away')
        assert rooms[2].wait(30) == KVPoll.FAILED
        assert rooms[2].pages_released()
        pools.kv[:] = 0xEE  # what another request has there
        receive(3, list(range(100, 108)))  # and some of them are a third one's
    """)
    far.pools.kv[:, :8] = 5
    third = KVSender(far.manager, 3)
    third.init(8)
    third.send(range(8))
    assert third.wait(60) == KVPoll.SUCCESS, "it came behind the rest of the aborted one's bytes"
    assert far.decode.get("ended(3)[0]") == KVPoll.SUCCESS
    assert far.decode.get("bool((pools.kv[:, 100:108] == 5).all())")
    others = "[*range(100), *range(108, 256)]"
    assert far.decode.get(f"bool((pools.kv[:, {others}] == 0xEE).all())")


def test_i7_a_prefill_that_aborts_tells_decode_why(pair: Pair) -> None:
    pages = list(range(8))
    pair.receive(7, pages)
    sender = pair.sender(7, len(pages))
    sender.send([0])
    sender.wait_for(KVPoll.TRANSFERRING, 30)
    sender.abort("the model ran out of memory")
    status, code, text = pair.ended(7)
    assert (status, code) == (KVPoll.FAILED, "aborted")
    assert "the model ran out of memory" in text
    assert sender.poll() == KVPoll.FAILED


def test_i9_a_retry_after_success_changes_nothing(pair: Pair) -> None:
    """Decode goes on writing into its last page; the connections break before prefill knows."""
    pair.peer.run("""
        from kvmend.testing.connections import reset_connections

        def append_and_break(room, page):
            assert rooms[room].wait(30) == KVPoll.SUCCESS
            pools.kv[:, page, 2048:] = room  # the tokens that decode generates
            reset_connections()
    """)
    for room in range(1, 21):
        page = room
        pair.receive(room, [page], aux=1)
        sender = pair.sender(room, 1, aux=1)
        pair.peer.begin("append_and_break(room, page)", room=room, page=page)
        sender.send([page])
        pair.peer.finish()
        assert sender.wait(30) == KVPoll.SUCCESS, "answered 'already complete'"
    for page in range(1, 21):
        first, rest = pair.peer.get(
            "[pools.kv[:, page, :2048].tobytes().hex(),"
            " bool((pools.kv[:, page, 2048:] == page).all())]",
            page=page,
        )
        assert first == pair.pools.kv[:, page, :2048].tobytes().hex()
        assert rest, "what decode wrote stays"
