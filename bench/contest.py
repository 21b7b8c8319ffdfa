"""Movers that take turns: the processes that ./dev bench tcp|local measures side by side."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "build" / "peers"

#: Peers' packages, each with what it needs in an environment of its own.
PACKAGES = {"mooncake": [["numpy", "mooncake-transfer-engine-non-cuda"]],
            "nixl": [["numpy"], ["--no-deps", "nixl-cu12"]]}  # it can do without torch


class MoverFailedError(Exception):
    """A mover's process ended, or doesn't answer."""


class Mover:
    """A process group that obeys commands (mover.cc, pages_py.py), and stands still in between.

    Some peers spin while they are idle, which would take a core from the others' turns.
    """

    def __init__(self, name: str, command: list[str], env: dict[str, str] | None = None,
                 freeze: bool = False) -> None:
        self.name = name
        self._freeze = freeze
        logs = ROOT / "build" / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self._log = open(logs / f"mover-{name}.log", "w")  # noqa: SIM115
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, **(env or {})}, process_group=0)
        self._stopped = False

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def ask(self, command: str) -> dict[str, Any]:
        """Sends one command and waits for its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        if self._stopped:
            self._signal(signal.SIGCONT)
            self._stopped = False
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise MoverFailedError(f"{self.name} has ended; see {self._log.name}") from None
        for line in self._process.stdout:
            if line.startswith("{"):
                if self._freeze:
                    self._signal(signal.SIGSTOP)
                    self._stopped = True
                answer = dict(json.loads(line))
                if "error" in answer:
                    raise MoverFailedError(f"{self.name} failed at '{command}': {answer['error']}")
                return answer
        raise MoverFailedError(f"{self.name} ended at '{command}'; see {self._log.name}")

    def close(self) -> None:
        """Ends the whole group."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()


class Movers(contextlib.ExitStack):
    """The movers of one contest, ended with it."""

    def start(self, *args: Any, **kwargs: Any) -> Mover:
        mover = Mover(*args, **kwargs)
        self.callback(mover.close)
        return mover


def kvmend(binary: Path, name: str = "kvmend", **options: Any) -> list[str]:
    """The command line of the C++ mover; options as it names them."""
    command = [str(binary)]
    for key, value in options.items():
        flag = "--" + key.replace("_", "-")
        command += [flag] if value is True else [] if value is False else [flag, str(value)]
    return command


def take_turns(turns: dict[str, tuple[Mover, str]], rounds: int,
               limit: float | None = None) -> dict[str, list[dict[str, Any]]]:
    """Runs all commands in order, once as a warm-up and `rounds` times measured.

    A mover that fails drops out; its samples are lost. `limit`: a slow one (seconds of its warm-up)
    gets 3 rounds only.
    """
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in turns}
    out: set[str] = set()
    slow: set[str] = set()
    for r in range(-1, rounds):
        for name, (mover, command) in turns.items():
            if name in out or (name in slow and r >= 3):
                continue
            try:
                sample = mover.ask(command + (" check" if r < 0 else ""))
            except MoverFailedError as error:
                print(f"bench: {error}", file=sys.stderr)
                out.add(name)
                samples[name] = []
                continue
            if r >= 0:
                samples[name].append(sample)
            elif limit is not None and sample["seconds"] > limit:
                slow.add(name)
    return samples


def middle(samples: list[dict[str, Any]], key: str) -> float:
    return float(statistics.median(s[key] for s in samples))


def ratios(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> list[float]:
    """Of the throughputs, round by round."""
    return [x["gbps"] / y["gbps"] for x, y in zip(a, b, strict=False)]


def spread(values: list[float]) -> tuple[float, float]:
    """The 10th and 90th percentile."""
    ordered = sorted(values)
    return ordered[len(ordered) // 10], ordered[min(len(ordered) - 1, len(ordered) * 9 // 10)]


def peer_python(name: str) -> str | None:
    """The interpreter of a peer's own environment, made on first use; None: not available."""
    python = PEERS / name / "bin" / "python"
    done = PEERS / name / "installed"
    if done.exists():
        return str(python)
    print(f"bench: installing {name} into {PEERS / name}", file=sys.stderr)
    try:
        venv.create(PEERS / name, with_pip=True, clear=True)
        for packages in PACKAGES[name]:
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"bench: {name} isn't available: {error}", file=sys.stderr)
        return None
    done.touch()
    return str(python)


def start_peers(movers: Movers, transport: str, total_mib: int) -> dict[str, Mover]:
    """Those that can be had here, in their best mode over this transport."""
    peers: dict[str, Mover] = {}
    size = ["--total-mib", str(total_mib)]
    nixl = peer_python("nixl")
    if nixl is not None:
        script = [nixl, str(ROOT / "bench" / "peers" / "nixl_mover.py"), *size]
        if transport == "tcp":
            peers["nixl"] = movers.start(
                "nixl", [*script, "--polling"], {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}, True)
        else:
            peers["nixl"] = movers.start("nixl", script, {}, True)
    mooncake = peer_python("mooncake") if transport == "tcp" else None
    if mooncake is not None:
        script = [mooncake, str(ROOT / "bench" / "peers" / "mooncake_mover.py"), *size]
        peers["mooncake"] = movers.start("mooncake", script, {"MC_FORCE_TCP": "true"}, True)
    return peers
