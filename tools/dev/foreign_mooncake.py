"""kvmend's KV manager over the real Mooncake engine (TCP): `KVManager(engine=mooncake's)`.

Needs the wheel; `./dev sglang` runs it in its virtual environment. Two decode processes; this one is
prefill. Every page and aux row is compared. Prints a line per case, then JSON; exits 1 when one
didn't end as it should. `--blocked-probe`: also a probe that blocks for a minute, as Mooncake's does
on a stopped process.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

os.environ.setdefault("MC_TRANSFER_TIMEOUT", "5")
os.environ.setdefault("MC_FORCE_TCP", "true")
os.environ.setdefault("GLOG_minloglevel", "3")

from mooncake.engine import TransferEngine as Mooncake

from kvmend import (
    ForeignOptions,
    KVManager,
    KVPoll,
    KVSender,
    PeerRestartedError,
    TransferEngine,
)
from kvmend.testing.peer import Peer, wait_until
from kvmend.testing.pools import Pools

SIZES = {"pages": 256, "buffers": 16, "item_len": 65536}
DECODE = """
import os, zlib
from mooncake.engine import TransferEngine as Mooncake
from kvmend.testing.pools import Pools
moon = Mooncake()
assert moon.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
pools = Pools(**sizes)
manager = KVManager(moon, "decode", pools.layout, room_deadline=150.0,
                    foreign={"control": engine})
rooms = {}

def receive(room, pages, aux):
    pools.kv[:, pages] = 0
    rooms[room] = KVReceiver(manager, prefill, room)
    rooms[room].send_metadata(pages, aux)

def ended(room):
    status = rooms[room].wait(timeout=60)
    return [status, str(rooms[room].failure_exception() or "")]
"""


class Report:
    def __init__(self) -> None:
        self.good = True
        self.rows: dict[str, Any] = {}

    def case(self, name: str, good: bool, **figures: Any) -> None:
        self.good &= good
        self.rows[name] = figures
        print(f"{name:44} {'as it should be' if good else 'WRONG'} {figures}", flush=True)


class Decode:
    """A decode process, and what this one sends it."""

    rooms = iter(range(1, 1 << 30))

    def __init__(self, manager: KVManager, pools: Pools) -> None:
        self.manager, self.pools = manager, pools
        self.peer = Peer(shutdown_grace=0.2)
        self.peer.run(DECODE, sizes=SIZES, prefill=manager.session_id)

    def announce(self, there: list[int]) -> int:
        room = next(Decode.rooms)
        self.peer.run("receive(room, pages, 2)", room=room, pages=there)
        return room

    def send(self, room: int, here: list[int]) -> KVSender:
        sender = KVSender(self.manager, room)
        sender.init(len(here), 6)
        half = len(here) // 2
        sender.send(here[:half])
        sender.send(here[half:])
        return sender

    def same(self, here: list[int], there: list[int]) -> bool:
        import zlib

        got = self.peer.get("zlib.crc32(pools.page_bytes(pages))", pages=there)
        aux = self.peer.get("pools.aux[2].tolist()") == self.pools.aux[6].tolist()
        return bool(zlib.crc32(self.pools.page_bytes(here)) == got and aux)


def plain(decode: Decode, report: Report) -> None:
    """16 MiB requests, one after the other."""
    seconds, good = 0.0, True
    for n in range(8):
        here = [(n * 31 + 7 * i) % 256 for i in range(16)]
        there = [(n * 17 + 5 * i) % 256 for i in range(16)]
        room = decode.announce(there)
        begin = time.monotonic()
        sender = decode.send(room, here)
        good &= sender.wait(60) == KVPoll.SUCCESS
        seconds += time.monotonic() - begin
        good &= decode.peer.get("ended(room)", room=room)[0] == KVPoll.SUCCESS
        good &= decode.same(here, there)
        sender.clear()
    report.case("16 MiB requests", good, GB_per_s=round(8 * 16 * 2**20 / seconds / 1e9, 2))


def in_one_call_too_many(decode: Decode, report: Report) -> None:
    """4,096 slices: more than Mooncake takes in one call."""
    here, there = list(range(0, 256)), [(i * 37 + 11) % 256 for i in range(256)]
    room = decode.announce(there)
    sender = decode.send(room, here)
    good = sender.wait(60) == KVPoll.SUCCESS and decode.same(here, there)
    report.case("4,096 slices", good, reason=str(sender.failure_exception() or ""))


def stopped(decode: Decode, other: Decode, report: Report) -> None:
    """Decode stands still: its request fails, others go on; the next one is served after it."""
    pages = list(range(32))
    manager = decode.manager
    room, later = decode.announce(pages), decode.announce([p + 64 for p in pages])
    decode.peer.stop()
    sender = decode.send(room, pages)
    failed = sender.wait(60) == KVPoll.FAILED
    blacklisted = manager.foreign_stats().blacklisted == 1
    parked = decode.send(later, pages)
    wait_until(lambda: manager.foreign_stats().probes >= 1, "a probe")
    begin = time.monotonic()
    room_of_other = other.announce(pages)
    good = other.send(room_of_other, pages).wait(60) == KVPoll.SUCCESS and other.same(pages, pages)
    other_took = time.monotonic() - begin
    waits = not parked.poll().is_terminal  # or is the one that tries whether it works again
    decode.peer.resume()
    begin = time.monotonic()
    recovered = parked.wait(60) == KVPoll.SUCCESS
    took = time.monotonic() - begin
    good &= failed and blacklisted and waits and recovered
    good &= decode.same(pages, [p + 64 for p in pages])
    report.case(
        "stopped",
        good and manager.foreign_stats().recoveries == 1,
        reason=str(sender.failure_exception()),
        another_decode_took_s=round(other_took, 2),
        first_success_after_s=round(took, 2),
        why_not="" if recovered else str(parked.failure_exception()),
    )


def killed(decode: Decode, other: Decode, report: Report) -> None:
    """Decode dies and another process follows: its requests go through; the end isn't delayed."""
    pages = list(range(32))
    manager = decode.manager
    room = decode.announce(pages)
    wait_until(lambda: manager.stats().announced == 1, "the room")  # else nobody knows whose it is
    decode.peer.kill()
    begin = time.monotonic()
    try:
        sender = decode.send(room, pages)
        good = sender.wait(60) == KVPoll.FAILED
        reason = str(sender.failure_exception())
    except PeerRestartedError as error:  # the room has ended already: its sender says so
        good, reason = True, str(error)
    took = time.monotonic() - begin
    good &= other.send(other.announce(pages), pages).wait(60) == KVPoll.SUCCESS
    follower = Decode(manager, decode.pools)
    good &= follower.send(follower.announce(pages), pages).wait(60) == KVPoll.SUCCESS
    good &= follower.same(pages, pages)
    follower.peer.stop()  # nobody waits for its answer
    begin = time.monotonic()
    end = threading.Thread(target=manager.teardown)
    end.start()
    end.join(30)
    torn_down = time.monotonic() - begin
    follower.peer.resume()
    report.case(
        "killed, and a follower",
        good and torn_down < 5,
        reason=reason,
        failed_after_s=round(took, 2),
        teardown_s=round(torn_down, 3),
    )
    follower.peer.kill()


def blocked_probe(decode: Decode, other: Decode, report: Report) -> None:
    """A stopped process's probe isn't interrupted: it blocks its thread until Mooncake gives up.
    Meanwhile others are served, and when the process goes on it is, too."""
    pages = list(range(8))  # what fails stays in quarantine, a quarter of all at most
    manager = decode.manager
    room, later = decode.announce(pages), decode.announce([p + 64 for p in pages])
    before = manager.foreign_stats()
    decode.peer.stop()
    failed = decode.send(room, pages).wait(60) == KVPoll.FAILED
    parked = decode.send(later, pages)
    wait_until(lambda: manager.foreign_stats().probes > before.probes, "a probe")
    begin = time.monotonic()
    slowest = 0.0
    good = failed
    # The next probe begins only when this one has returned.
    while manager.foreign_stats().probes == before.probes + 1 and time.monotonic() - begin < 90:
        asked = time.monotonic()
        good &= other.send(other.announce(pages), pages).wait(60) == KVPoll.SUCCESS
        slowest = max(slowest, time.monotonic() - asked)
        time.sleep(0.5)
    blocked = time.monotonic() - begin
    good &= parked.poll() == KVPoll.WAITING_FOR_INPUT
    decode.peer.resume()
    begin = time.monotonic()
    good &= parked.wait(120) == KVPoll.SUCCESS and decode.same(pages, [p + 64 for p in pages])
    took = time.monotonic() - begin
    good &= manager.foreign_stats().recoveries == before.recoveries + 1
    report.case(
        "a probe that blocks",
        good,
        next_probe_after_s=round(blocked, 1),
        another_decode_took_at_most_s=round(slowest, 3),
        first_success_after_s=round(took, 2),
        why_not=str(parked.failure_exception() or ""),
    )


def ended_while_blocked(decode: Decode, report: Report) -> None:
    """The end of a manager whose probe blocks, and another one on the same engine afterwards."""
    pages = list(range(8))
    manager = decode.manager
    room = decode.announce(pages)
    before = manager.foreign_stats().probes
    decode.peer.stop()
    good = decode.send(room, pages).wait(60) == KVPoll.FAILED
    wait_until(lambda: manager.foreign_stats().probes > before, "a probe")
    time.sleep(1)
    begin = time.monotonic()
    manager.teardown()
    torn_down = time.monotonic() - begin
    decode.peer.resume()
    report.case(
        "ended while a probe blocks", good and torn_down < 5, teardown_s=round(torn_down, 3)
    )


def another_manager(decode: Decode, report: Report) -> None:
    """On the same two engines, with what is left of the blocked probe: it knows of no blacklist."""
    pages = list(range(32))
    begin = time.monotonic()
    sender = decode.send(decode.announce(pages), pages)
    good = sender.wait(120) == KVPoll.SUCCESS and decode.same(pages, pages)
    report.case(
        "another manager afterwards",
        good,
        took_s=round(time.monotonic() - begin, 2),
        why_not=str(sender.failure_exception() or ""),
    )


def main() -> int:
    long = "--blocked-probe" in sys.argv[1:]
    moon = Mooncake()
    assert moon.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    pools = Pools(**SIZES)
    pools.fill(1)
    report = Report()
    with TransferEngine() as control:
        foreign: ForeignOptions = {"control": control, "probe_interval": 0.2}
        options: dict[str, Any] = {"parked_share": 1.0, "parked_share_per_session": 1.0,
                                   "quarantine_share": 1.0, "room_deadline": 150.0}  # fmt: skip
        manager = KVManager(moon, "prefill", pools.layout, foreign=foreign, **options)
        decode, other = Decode(manager, pools), Decode(manager, pools)
        plain(decode, report)
        in_one_call_too_many(decode, report)
        stopped(decode, other, report)
        if long:
            blocked_probe(decode, other, report)
            ended_while_blocked(decode, report)
            manager = KVManager(moon, "prefill", pools.layout, foreign=foreign, **options)
            for one in (decode, other):
                one.manager = manager
                another_manager(one, report)
        killed(decode, other, report)
        other.peer.kill()
    print(json.dumps(report.rows, indent=1))
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
