"""Where ./dev bench recovery breaks things: two network namespaces, the processes in them, faults.

Everything it makes carries this process's number in its name, and is taken away again at the end,
also after a failure. It never touches an interface, a rule or a process that it didn't make.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

LOAD_ADDRESS = "10.77.0.1"
TARGET_ADDRESS = "10.77.0.2"

# Dropped where they arrive: a sender whose own host drops its packet retransmits sooner than one
# whose packets vanish on the way.
RULES = """
table inet kvmend {{
  set silent {{ type inet_service; }}
  set deaf {{ type inet_service; }}
  set refused {{ type inet_service; }}
  chain in {{
    type filter hook input priority 0; policy accept;
    tcp {port} @silent drop
    tcp {port} @deaf meta length > 600 drop
    tcp {port} @refused reject with tcp reset
  }}
}}
"""


class Peer:
    """A kvmend_recovery_peer. Events are read by a thread; one owner calls the methods."""

    def __init__(self, command: list[str], stderr: Path) -> None:
        self.started = time.monotonic()
        with stderr.open("ab") as errors:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=errors, text=True, bufsize=1)
        self.stderr = stderr
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # the rest is kvmend's log
                self._events.put(json.loads(line))
            else:
                with self.stderr.open("a") as log:
                    log.write(line)
        self._events.put(None)

    def expect(self, event: str, timeout: float = 20) -> dict[str, Any]:
        """The next event of that name; others are dropped."""
        until = time.monotonic() + timeout
        while (left := until - time.monotonic()) > 0:
            try:
                found = self._events.get(timeout=left)
            except queue.Empty:
                break
            if found is None:
                raise RuntimeError(f"a process ended: {self.stderr.read_text()[-2000:]}")
            if found["event"] == event:
                return found
        raise TimeoutError(f"no '{event}' within {timeout} s")

    def tell(self, line: str) -> None:
        """Sends a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def ask(self, line: str, event: str, timeout: float = 20) -> dict[str, Any]:
        """Sends a command and waits for its answer."""
        self.tell(line)
        return self.expect(event, timeout)

    def signal(self, number: int) -> float:
        """Returns the moment just before the signal."""
        now = time.monotonic()
        self.process.send_signal(number)
        return now

    def kill(self) -> float:
        """SIGKILL, and waits for the end. Returns the moment just before the signal."""
        now = self.signal(signal.SIGKILL)
        self.process.wait()
        return now

    def close(self) -> None:
        """Ends the process whatever its state."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()  # a forked child waits for this
        self._reader.join(timeout=5)


class Lab:
    """Two namespaces joined by a pair of virtual interfaces; processes; faults by port."""

    def __init__(self, peer_binary: Path) -> None:
        self._binary = peer_binary
        self._names = [f"kvmr{os.getpid()}{side}" for side in "ab"]
        self._peers: list[Peer] = []
        self.folder = Path(tempfile.mkdtemp(prefix="kvmend-recovery-"))
        self._next_port = 20000

    @staticmethod
    def obstacle() -> str:
        """Why there can be no lab here; empty if there can."""
        if os.geteuid() != 0:
            return "network namespaces need root"
        missing = [tool for tool in ("ip", "nft", "ss") if shutil.which(tool) is None]
        return f"no {', '.join(missing)} here (iproute2, nftables)" if missing else ""

    def __enter__(self) -> Self:
        # A terminated run takes its namespaces away too.
        signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        a, b = self._names
        try:
            for name in self._names:
                self._run("ip", "netns", "add", name)
                self._run("ip", "-n", name, "link", "set", "lo", "up")
            self._run("ip", "link", "add", "va", "netns", a, "type", "veth",
                      "peer", "name", "vb", "netns", b)
            for name, device, address in ((a, "va", LOAD_ADDRESS), (b, "vb", TARGET_ADDRESS)):
                self._run("ip", "-n", name, "address", "add", f"{address}/24", "dev", device)
                self._run("ip", "-n", name, "link", "set", device, "up")
            for name, port in ((a, "sport"), (b, "dport")):
                self._run("ip", "netns", "exec", name, "nft", "-f", "-",
                          text=RULES.format(port=port))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self._peers:
            peer.close()
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def _run(*command: str, text: str = "") -> None:
        done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")

    def ports(self, count: int) -> list[int]:
        """Ports that nobody else in the namespace uses: it is ours alone."""
        first = self._next_port
        self._next_port += count
        return list(range(first, first + count))

    def start(self, kind: str, where: str, *options: str) -> Peer:
        """Starts a process on the load's (`a`) or the targets' side (`b`)."""
        name = self._names["ab".index(where)]
        host = LOAD_ADDRESS if where == "a" else TARGET_ADDRESS
        peer = Peer(["ip", "netns", "exec", name, str(self._binary), kind, "--host", host,
                     *options], self.folder / f"{kind}-{len(self._peers)}.log")
        self._peers.append(peer)
        return peer

    # ---- faults; each returns the moment just before it began (or was taken away)

    def _change(self, what: str, kind: str, ports: Iterable[int], sides: str) -> float:
        elements = "{ " + ", ".join(map(str, ports)) + " }"
        now = time.monotonic()
        for side in sides:
            self._run("ip", "netns", "exec", self._names["ab".index(side)], "nft", what, "element",
                      "inet", "kvmend", kind, elements)
        return now

    def cut(self, ports: Iterable[int]) -> float:
        """A black hole: packets to and from these ports vanish."""
        return self._change("add", "silent", ports, "ba")

    def uncut(self, ports: Iterable[int]) -> float:
        """The black hole ends."""
        return self._change("delete", "silent", ports, "ba")

    def deafen(self, ports: Iterable[int]) -> float:
        """Small packets still pass, so handshakes are answered; data vanishes."""
        return self._change("add", "deaf", ports, "b")

    def undeafen(self, ports: Iterable[int]) -> float:
        """Data passes again."""
        return self._change("delete", "deaf", ports, "b")

    def refuse(self, ports: Iterable[int]) -> float:
        """Every packet to these ports is answered by a reset."""
        return self._change("add", "refused", ports, "b")

    def unrefuse(self, ports: Iterable[int]) -> float:
        """No more resets."""
        return self._change("delete", "refused", ports, "b")

    def reset(self, ports: Iterable[int]) -> float:
        """Kills every connection at these ports once; new ones are welcome."""
        which = " or ".join(f"sport = :{port}" for port in ports)
        now = time.monotonic()
        self._run("ip", "netns", "exec", self._names[1], "ss", "-K", "-tn", "state", "connected",
                  f"( {which} )")
        return now
