"""Bad input to the backend, with SGLang's own classes around it: wrong arguments of every kind at
both ends, garbage into every port, a bootstrap server that is asked nonsense or comes late.

Each ends in a Python exception, or in Failed with a reason; no thread ends, and the next request's
pages arrive. Prints a line per part; exits 1 when one didn't end as it should.
"""

from __future__ import annotations

import os
import random
import re
import socket
import sys
import threading
import time
from collections.abc import Callable

from kvmend.testing.peer import Peer

HERE = os.path.dirname(os.path.abspath(__file__))
PAGES = 16

#: One server's process: a manager over 2 buffers of PAGES pages and 8 aux rows.
SERVER = """
import os, sys, threading
sys.path[:0] = [work, here]
os.environ.update(ENGINE_MODULE="kvmend.mooncake", SGLANG_HOST_IP="127.0.0.1",
                  SGLANG_DISAGGREGATION_WAITING_TIMEOUT="8",
                  SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT="8")
import sglang_shim
ns = sglang_shim.install()
import kvmend.sglang as ours
from sglang_lifecycle import Pools
ns.CONFIG.disagg.disaggregation_bootstrap_port = int(bootstrap.rpartition(":")[2])
ns.CONFIG.disagg.disaggregation_mode = role
pools = Pools(ns.KVArgs())
server_args = type("ServerArgs", (), {"enable_pd_role_switch": False})()
mode = ns.DisaggregationMode
mode = mode.PREFILL if role == "prefill" else mode.DECODE
manager = ours.KVManager(pools.args, mode, server_args, False)
before = {thread.name for thread in threading.enumerate()}
ends = {}

def lost_threads():
    return sorted(before - {thread.name for thread in threading.enumerate()})

def reason(room):
    try:
        ends[room].failure_exception()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def array(values, kind="int32"):
    return np.array(values, kind)
"""

PREFILL = """
def begin(room):
    ends[room] = ours.KVSender(manager, bootstrap, room)

def fill(pages):
    pools.memory[:] = 0
    for buffer in range(2):
        for page in pages:
            pools.memory[buffer, page] = 1 + buffer * 40 + page
    pools.aux[1] = 77
"""

DECODE = """
def begin(room, dp=0):
    manager.try_ensure_parallel_info(bootstrap)
    ends[room] = ours.KVReceiver(manager, bootstrap, room)
    ends[room].init(dp)

def landed(here, there):
    wanted = np.zeros_like(pools.memory)
    for buffer in range(2):
        for one, other in zip(here, there):
            wanted[buffer, other] = 1 + buffer * 40 + one
    return bool((pools.memory == wanted).all() and (pools.aux[3] == 77).all())
"""

BOOTSTRAP = """
sys.path[:0] = [work, here]
os.environ.update(ENGINE_MODULE="kvmend.mooncake")
import logging
logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # it quotes garbage at length
import sglang_shim
sglang_shim.install()
import kvmend.sglang as ours
server = ours.KVBootstrapServer("127.0.0.1", int(bootstrap.rpartition(":")[2]))
"""

#: What decode's scheduler might say wrongly of a room `r`: everything else of it is right.
AT_DECODE = {
    "a page beyond the pool": "r.send_metadata(array([1, 99]), 3)",
    "a negative page": "r.send_metadata(array([-1]), 3)",
    "a page twice": "r.send_metadata(array([5, 5]), 3)",
    "pages that are no whole numbers": "r.send_metadata(array([1.5], 'float64'), 3)",
    "pages in two dimensions": "r.send_metadata(array([[1], [2]]), 3)",
    "a row beyond the pool": "r.send_metadata(array([1]), 99)",
    "a negative row": "r.send_metadata(array([1]), -1)",
    "states where there is none": "r.send_metadata(array([1]), 3, [[4]])",
    "a prefix longer than anything": "r.send_metadata(array([1]), 3, decode_prefix_len=1 << 70)",
    "a negative prefix": "r.send_metadata(array([1]), 3, decode_prefix_len=-16)",
    "a place in host memory": "r.send_metadata(array([1]), 3, device_kv_indices=array([1]))",
    "metadata twice": "r.send_metadata(array([1]), 3); r.send_metadata(array([2]), 4)",
    "no pages at all": "r.send_metadata(array([]), None)",
}
AT_PREFILL = {
    "a page beyond the pool": "s.init(2, 1); s.send(array([1, 99]))",
    "a negative page": "s.init(1, 1); s.send(array([-1]))",
    "pages that are no whole numbers": "s.init(1, 1); s.send(array([1.5], 'float64'))",
    "pages in two dimensions": "s.init(2, 1); s.send(array([[1], [2]]))",
    "a row beyond the pool": "s.init(1, 99); s.send(array([1]))",
    "a negative row": "s.init(1, -1); s.send(array([1]))",
    "a negative number of pages": "s.init(-1, 1); s.send(array([1]))",
    "other pages than decode has": "s.init(3, 1); s.send(array([1, 2, 3]))",
    "pages before it said how many": "s.send(array([1]))",
    "how many twice": "s.init(2, 1); s.init(1, 1); s.send(array([1]))",
    "more pages than it said": "s.init(1, 1); s.send(array([1, 2]))",
}
#: Rooms that no request has.
ROOMS = ["-1", "1 << 63", "1 << 70", "'x'", "1.5"]


class Servers:
    """A bootstrap server, a prefill and a decode."""

    rooms = iter(range(1, 1 << 30))

    def __init__(self, work: str, *, bootstrap_first: bool = True) -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{one.getsockname()[1]}"
        self.values = {"work": work, "here": HERE, "bootstrap": self.address}
        self.bootstrap, self.prefill, self.decode = (Peer(make_engine=False) for _ in range(3))
        if bootstrap_first:
            self.start_bootstrap()
        for peer, role, more in (
            (self.prefill, "prefill", PREFILL), (self.decode, "decode", DECODE),
        ):  # fmt: skip
            peer.begin(SERVER + more, role=role, **self.values)
        self.prefill.finish(120)
        self.decode.finish(120)

    def start_bootstrap(self) -> None:
        self.bootstrap.begin("import os, sys\n" + BOOTSTRAP, **self.values)
        self.bootstrap.finish(120)

    def close(self) -> None:
        for peer in (self.decode, self.prefill, self.bootstrap):
            peer.kill()

    def until(self, peer: Peer, room: int, *statuses: int, seconds: float = 30.0) -> int:
        """The status of its end of the room, once it is one of these."""
        end = time.monotonic() + seconds
        while True:
            status = int(peer.get("int(ends[room].poll())", room=room))
            if status in statuses:
                return status
            if time.monotonic() > end:
                return -status - 1  # none of them
            time.sleep(0.005)

    def good(self) -> str:
        """One request as it should be; what was wrong with it."""
        room, here, there = next(self.rooms), [4, 5, 9], [7, 2, 3]
        self.prefill.run("fill(pages); begin(room)", pages=here, room=room)
        self.decode.run("pools.memory[:] = 0; pools.aux[:] = 0; begin(room)", room=room)
        if self.until(self.decode, room, 2, 0) != 2:
            return f"decode: {self.decode.get('reason(room)', room=room)}"
        self.decode.run("ends[room].send_metadata(array(pages), 3)", room=room, pages=there)
        if self.until(self.prefill, room, 2, 0) != 2:
            return f"prefill: {self.prefill.get('reason(room)', room=room)}"
        self.prefill.run(
            "ends[room].init(len(pages), 1); ends[room].send(array(pages))", room=room, pages=here
        )
        for peer in (self.prefill, self.decode):
            if self.until(peer, room, 4, 0) != 4:
                return str(peer.get("reason(room)", room=room))
            peer.run("ends[room].clear()", room=room)
        return "" if self.decode.get("landed(a, b)", a=here, b=there) else "wrong bytes"

    def lost(self) -> list[str]:
        """Threads that have ended at either server."""
        return [*self.prefill.get("lost_threads()"), *self.decode.get("lost_threads()")]

    def listening(self) -> list[int]:
        """All ports of the three processes."""
        found: set[int] = set()
        for peer in (self.bootstrap, self.prefill, self.decode):
            inodes = set()
            for fd in os.listdir(f"/proc/{peer.pid}/fd"):
                try:
                    match = re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{peer.pid}/fd/{fd}"))
                except OSError:
                    continue
                if match:
                    inodes.add(match[1])
            with open(f"/proc/{peer.pid}/net/tcp") as table:
                for line in list(table)[1:]:
                    part = line.split()
                    if part[3] == "0A" and part[9] in inodes:
                        found.add(int(part[1].split(":")[1], 16))
        return sorted(found)


def said(peer: Peer, name: str, code: str, room: int) -> str:
    """What came of a call: "raised ..." or "no exception"."""
    peer.run(
        "try:\n"
        f"    {name} = ends[room]; {code}\n"
        "    outcome = 'no exception'\n"
        "except Exception as error:\n"
        "    outcome = f'raised {type(error).__name__}: {error}'",
        room=room,
    )
    return str(peer.get("outcome"))


def wrong_calls(servers: Servers, end: str) -> list[str]:
    """What didn't end as it should of the calls of one end; its other end is right."""
    peer, other = servers.prefill, servers.decode
    found = []
    for name, code in (AT_DECODE if end == "decode" else AT_PREFILL).items():
        room = next(servers.rooms)
        servers.prefill.run("begin(room)", room=room)
        servers.decode.run("begin(room)", room=room)
        if end == "decode":
            peer, other = servers.decode, servers.prefill
            servers.until(peer, room, 2)
            outcome = said(peer, "r", code, room)
        else:
            servers.until(other, room, 2)
            other.run("ends[room].send_metadata(array([7]), 3)", room=room)
            servers.until(peer, room, 2)
            outcome = said(peer, "s", code, room)
        if outcome == "no exception":
            status = servers.until(peer, room, 0, 4, seconds=20)
            outcome = f"status {status}: " + str(peer.get("reason(room)", room=room)) \
                if status == 0 else f"status {status}"  # fmt: skip
        # A scheduler that gets an exception aborts; the other end learns it.
        peer.run("ends[room].abort()", room=room)
        if servers.until(other, room, 0, 4, seconds=20) not in (0, 4):
            outcome += "; the other end hangs"
        for one in (peer, other):
            one.run("reason(room); ends[room].clear(); del ends[room]", room=room)
        fine = outcome.startswith(("raised ", "status 0: KVTransferError"))
        print(f"  {end}: {name:34} {outcome[:150]}", flush=True)
        if not fine or "hangs" in outcome:
            found.append(f"{name}: {outcome}")
    return found


def rooms_of_nobody(servers: Servers) -> list[str]:
    """Room numbers that can't be: refused, or failed, at either end."""
    found = []
    for peer in (servers.prefill, servers.decode):
        for text in ROOMS:
            peer.run(
                "try:\n"
                f"    begin({text}); end = ends.pop({text})\n"
                "    if hasattr(end, 'send_metadata') and end.poll() != 0:\n"
                "        end.send_metadata(array([1]), 3)\n"
                "    outcome = int(end.poll())\n"
                "    end.clear()\n"
                "except Exception as error:\n"
                "    outcome = str(error)"
            )
            outcome = peer.get("outcome")
            if outcome in (1, 2, 3, 4):
                found.append(f"room {text}: status {outcome}")
    servers.decode.run("begin(77, dp=5)")  # there is one
    if servers.until(servers.decode, 77, 0, seconds=20) != 0:
        found.append("an unknown dp rank doesn't fail")
    return found


def garbage(servers: Servers) -> list[str]:
    """Random and half-right bytes into every port while requests run."""
    ports, stop = servers.listening(), threading.Event()
    dice = random.Random(7)
    sent = 0

    def pieces() -> list[bytes]:
        return [
            dice.randbytes(dice.choice([1, 9, 64, 700, 70_000])),
            b"GET /kvmend/route?prefill_dp_rank=x HTTP/1.1\r\n\r\n",
            b"PUT /kvmend/route HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n{",
            b"\x00" * 4096, b"\xff" * 4096, b"KVM" + dice.randbytes(61),
        ]  # fmt: skip

    def hammer() -> None:
        nonlocal sent
        idle: list[socket.socket] = []
        while not stop.is_set():
            port = dice.choice(ports)
            try:
                one = socket.create_connection(("127.0.0.1", port), timeout=1)
                one.sendall(dice.choice(pieces()))
                sent += 1
            except OSError:
                continue
            idle.append(one) if dice.random() < 0.3 else one.close()
            if len(idle) > 64:
                idle.pop(0).close()
        for one in idle:
            one.close()

    thread = threading.Thread(target=hammer)
    thread.start()
    found = [said for said in (servers.good() for _ in range(20)) if said]
    stop.set()
    thread.join()
    found += [said for said in (servers.good() for _ in range(3)) if said]
    print(f"  {sent} pieces into {len(ports)} ports", flush=True)
    return found + ([] if sent > 100 and len(ports) >= 3 else ["too little was sent"])


def nonsense_for_bootstrap(servers: Servers) -> list[str]:
    import requests

    url = f"http://{servers.address}/kvmend/route"
    everything = {
        name: "-1"
        for name in ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
    }
    topology = requests.get(url, params=everything, timeout=5).json()
    row = {"attn_tp_size": "x", "attn_tp_rank": 0}
    answers = {
        "no JSON": (requests.put(url, data=b"\xff{", timeout=5), 400),
        "a list": (requests.put(url, json=[1], timeout=5), 400),
        "a word for a number": (requests.put(url, json=row, timeout=5), 400),
        "nothing asked": (requests.get(url, timeout=5), 400),
        "words asked": (requests.get(url, params={**everything, "target_tp_rank": "x"},
                                     timeout=5), 400),
        "an unknown rank": (requests.get(url, params=dict.fromkeys(everything, "7"),
                                         timeout=5), 404),
        "another method": (requests.delete(url, timeout=5), 405),
        "10 MB": (requests.put(url, data=b" " * 10_000_000, timeout=5), 413),
    }  # fmt: skip
    found = [
        f"{name}: {answer.status_code}, not {code}"
        for name, (answer, code) in answers.items()
        if answer.status_code != code
    ]
    if requests.get(url, params=everything, timeout=5).json() != topology:
        found.append("the topology has changed")
    return found


def late_bootstrap(work: str) -> list[str]:
    """Case B2, B3: it starts after both servers, and later than one attempt."""
    servers = Servers(work, bootstrap_first=False)
    try:
        time.sleep(2.5)
        servers.start_bootstrap()
        end = time.monotonic() + 30
        while not servers.decode.get("bool(manager.try_ensure_parallel_info(bootstrap))"):
            if time.monotonic() > end:
                return ["prefill never registered"]
            time.sleep(0.2)
        return [said] if (said := servers.good()) else []
    finally:
        servers.close()


def main() -> int:
    work = os.path.abspath(sys.argv[1])
    servers = Servers(work)
    good = True

    def part(name: str, found: list[str]) -> None:
        nonlocal good
        good &= not found
        print(f"{name:40} {found if found else 'as it should be'}", flush=True)

    def and_then(of: Callable[[], list[str]]) -> list[str]:
        found = of()
        if said := servers.good():
            found.append(f"the next request: {said}")
        return found + [f"thread {name} has ended" for name in servers.lost()]

    try:
        part("a request as it should be", [said] if (said := servers.good()) else [])
        part("wrong calls at decode", and_then(lambda: wrong_calls(servers, "decode")))
        part("wrong calls at prefill", and_then(lambda: wrong_calls(servers, "prefill")))
        part("rooms of nobody", and_then(lambda: rooms_of_nobody(servers)))
        part("garbage into every port", and_then(lambda: garbage(servers)))
        part("nonsense for the bootstrap server", and_then(lambda: nonsense_for_bootstrap(servers)))
    finally:
        servers.close()
    part("a bootstrap server that comes late", late_bootstrap(work))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
